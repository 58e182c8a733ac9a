//! What a VM costs its host, as the host's kernel counts it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result};

/// Bytes of pages that a process has mapped and that are present: private,
/// shared, and huge ones from the pool, which RSS leaves out.
pub(crate) fn resident_bytes(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))
        .with_context(|| format!("the process {pid} is gone"))?;
    Ok(sum_kib(&status, &["VmRSS", "HugetlbPages"]) << 10)
}

/// Bytes that a process' memfds hold, mapped or not: a shared mapping that was
/// merely unmapped keeps its pages here.
pub(crate) fn memfd_bytes(pid: u32) -> Result<u64> {
    let mut seen = std::collections::BTreeSet::new();
    let mut bytes = 0;
    for directory in ["fd", "map_files"] {
        let path = format!("/proc/{pid}/{directory}");
        for entry in fs::read_dir(&path).with_context(|| format!("cannot read {path}"))? {
            let link = entry?.path();
            let is_memfd =
                fs::read_link(&link).is_ok_and(|to| to.to_string_lossy().starts_with("/memfd:"));
            if !is_memfd {
                continue;
            }
            let data = fs::metadata(&link)?;
            if seen.insert((data.dev(), data.ino())) {
                bytes += data.blocks() * 512;
            }
        }
    }
    Ok(bytes)
}

/// Bytes that a process costs alone, its share of shared pages included,
/// without the mappings that are guest memory (1 MiB and larger).
pub(crate) fn own_pss_bytes(pid: u32) -> Result<u64> {
    /// Guest memory is mapped in pieces of at least an LMB; nothing else that
    /// the VMM maps is as large and touched.
    const GUEST_MAPPING: u64 = 64 << 20;
    let maps = fs::read_to_string(format!("/proc/{pid}/smaps"))?;
    let mut size = 0;
    let mut pss_kib = 0;
    for line in maps.lines() {
        if let Some(value) = kib(line, "Size") {
            size = value << 10;
        } else if let Some(value) = kib(line, "Pss")
            && size < GUEST_MAPPING
        {
            pss_kib += value;
        }
    }
    Ok(pss_kib << 10)
}

/// Free huge pages of `page_kib` KiB in the host's pool.
pub(crate) fn free_huge_pages(page_kib: u64) -> u64 {
    let pool = format!("/sys/kernel/mm/hugepages/hugepages-{page_kib}kB/free_hugepages");
    fs::read_to_string(Path::new(&pool))
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0)
}

fn sum_kib(text: &str, names: &[&str]) -> u64 {
    text.lines()
        .filter_map(|line| names.iter().find_map(|name| kib(line, name)))
        .sum()
}

/// The number in `Name:   123 kB`.
fn kib(line: &str, name: &str) -> Option<u64> {
    let value = line.strip_prefix(name)?.strip_prefix(':')?;
    value.trim().strip_suffix("kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_ordinary_and_huge_pages() {
        let status = "Name:\tlmb-vmm\nVmSize:\t 999 kB\nVmRSS:\t    1024 kB\nRssAnon:\t 5 kB\n\
                      HugetlbPages:\t    2048 kB\n";
        assert_eq!(sum_kib(status, &["VmRSS", "HugetlbPages"]), 3072);
    }

    #[test]
    fn this_process_is_resident() {
        assert!(resident_bytes(std::process::id()).unwrap() > 4096);
        assert!(own_pss_bytes(std::process::id()).unwrap() > 4096);
        assert_eq!(memfd_bytes(std::process::id()).unwrap(), 0);
    }
}
