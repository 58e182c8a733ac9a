//! What has to be there beside the project's own programs: Debian's kernels,
//! guest images made of them, QEMU and curl.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use lmb_tools::guest::{DEFAULT_MODULES, GuestImage};
use lmb_tools::host::detect;
use lmb_tools::initramfs::FileArgument;
use lmb_tools::packages::apt::Program;
use lmb_tools::packages::{
    self, Cache, DEFAULT_KERNEL_PACKAGE, KernelPackage, Progress, QEMU, ensure_programs,
    find_program,
};
use lmb_vmm::boot::image::{EntryChoice, KernelImage};
use tempfile::NamedTempFile;

/// Debian's kernels that guests are tested with: how the tests' variables call
/// them, and their packages.
pub(crate) const KERNELS: [(&str, &str); 2] = [
    ("6_1", DEFAULT_KERNEL_PACKAGE),
    ("6_12", "linux-image-6.12-cloud-amd64"),
];

const CURL: Program = Program {
    name: "curl",
    package: "curl",
};

/// A guest: its kernel and initramfs, and how the tests' variables call it.
#[derive(Clone, Debug)]
pub(crate) struct Guest {
    pub(crate) name: &'static str,
    pub(crate) kernel: KernelPackage,
    pub(crate) initrd: PathBuf,
}

/// `cargo xtask setup`.
pub(crate) fn setup() -> Result<bool> {
    let progress = Progress::new();
    let note = |text: &str| progress.step(text);
    programs(&note)?;
    let cache = Cache::open()?;
    for (_, package) in KERNELS {
        let kernel = KernelPackage::fetch(&cache, package, false, &note)?;
        progress.step(&format!("{package} is {}", kernel.version));
    }
    packages::busybox(&cache, &note)?;
    progress.clear();
    println!(
        "everything is there, in PATH and {}",
        cache.root().display()
    );
    Ok(true)
}

/// Makes sure that the programs of others are there.
///
/// # Errors
/// Without root, when some are missing: the error names one command for all
/// of them. With root, when they cannot be installed.
pub(crate) fn programs(note: &dyn Fn(&str)) -> Result<()> {
    ensure_programs(needed(detect::native_kvm().is_ok()), note)
}

/// The programs that the tests need, with or without a KVM of the machine's.
fn needed(native_kvm: bool) -> &'static [Program] {
    if native_kvm { &[CURL] } else { &[CURL, QEMU] }
}

/// Makes a guest image with the project's agent, and these programs in /bin.
pub(crate) fn guest(
    name: &'static str,
    kernel: KernelPackage,
    agent: &Path,
    files: &[FileArgument],
    cache: &Cache,
    note: &dyn Fn(&str),
) -> Result<Guest> {
    let image = GuestImage {
        agent: agent.to_owned(),
        kernel: kernel.clone(),
        modules: DEFAULT_MODULES.map(str::to_owned).to_vec(),
        files: files.to_vec(),
        gzip: false,
    };
    Ok(Guest {
        name,
        kernel,
        initrd: image.build(cache, None, note)?.initramfs,
    })
}

/// The first guest's kernel as an ELF image, in a temporary file.
pub(crate) fn vmlinux(guests: &[Guest]) -> Result<NamedTempFile> {
    let guest = guests.first().context("there is no guest")?;
    let image = KernelImage::open(&guest.kernel.vmlinuz, EntryChoice::Elf)?;
    let file = NamedTempFile::new()?;
    std::fs::write(file.path(), image.into_bytes()?)?;
    Ok(file)
}

/// A program and everything it is linked with, for a host that has nothing
/// else.
pub(crate) fn linked_program(name: &str) -> Result<Vec<FileArgument>> {
    let program = find_program(name).with_context(|| format!("there is no {name} in PATH"))?;
    let output = Command::new("ldd")
        .arg(&program)
        .output()
        .context("cannot run ldd")?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "ldd {}: {text}", program.display());
    let mut files = vec![put(&program, &format!("bin/{name}"))];
    files.extend(
        text.lines()
            .filter_map(library)
            .map(|path| put(Path::new(path), path.trim_start_matches('/'))),
    );
    Ok(files)
}

/// The file in a line of ldd: `name => /path (address)` or `/path (address)`.
fn library(line: &str) -> Option<&str> {
    let after = line.split_once("=>").map_or(line, |(_, path)| path);
    let path = after.split_whitespace().next()?;
    path.starts_with('/').then_some(path)
}

/// A file put at a place in the virtual host.
pub(crate) fn put(source: &Path, dest: &str) -> FileArgument {
    FileArgument {
        source: source.to_owned(),
        dest: Some(dest.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_programs_are_asked_for_at_once() {
        let names = |native| needed(native).iter().map(|p| p.name).collect::<Vec<_>>();
        assert_eq!(names(false), ["curl", "qemu-system-x86_64"]);
        assert_eq!(names(true), ["curl"]);
    }

    #[test]
    fn libraries_are_read_from_every_kind_of_line() {
        assert_eq!(library("\tlinux-vdso.so.1 (0x00007ffd)"), None);
        assert_eq!(
            library("\tlibz.so.1 => /lib/x86_64-linux-gnu/libz.so.1 (0x00007f)"),
            Some("/lib/x86_64-linux-gnu/libz.so.1")
        );
        assert_eq!(
            library("\t/lib64/ld-linux-x86-64.so.2 (0x00007f)"),
            Some("/lib64/ld-linux-x86-64.so.2")
        );
        assert_eq!(library("\tstatically linked"), None);
    }
}
