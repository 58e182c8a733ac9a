//! Figures that the host's kernel has: the clock, a process's CPU time and
//! its memory.

use std::fs;

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Mappings of this size and more are taken for guest memory.
const GUEST_MAPPING_BYTES: u64 = 64 << 20;

/// Nanoseconds of CLOCK_MONOTONIC now, the clock of lmb-vmm's own stamps.
#[must_use]
pub(super) fn monotonic_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::Monotonic))
}

/// Nanoseconds of the clock that people read.
#[must_use]
pub(super) fn realtime_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::Realtime))
}

fn nanoseconds(time: Timespec) -> u64 {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}

/// CPU time that a process and the guest in it have used, in nanoseconds: the
/// first number of each thread's schedstat. Threads that have ended are not
/// in it.
#[must_use]
pub(super) fn cpu_ns(pid: u32) -> Option<u64> {
    let mut sum: u64 = 0;
    for thread in fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
        // A thread that ends meanwhile is left out.
        if let Ok(text) = fs::read_to_string(thread.path().join("schedstat")) {
            let used = text.split_whitespace().next()?.parse::<u64>().ok()?;
            sum = sum.saturating_add(used);
        }
    }
    Some(sum)
}

/// What a VMM costs its host beside the guest's memory: its proportional
/// share (Pss) of all its mappings but those of 64 MiB and more. Guest memory
/// is mapped in pieces of at least that size, except for the tail of RAM that
/// sets the guest's memory block, which counts as the VMM's; nothing else that
/// a VMM maps is as large and touched.
#[must_use]
pub(super) fn vmm_memory_bytes(pid: u32) -> Option<u64> {
    own_pss(&fs::read_to_string(format!("/proc/{pid}/smaps")).ok()?)
}

fn own_pss(smaps: &str) -> Option<u64> {
    let mut size_bytes = 0;
    let mut own: Option<u64> = None;
    for line in smaps.lines() {
        if let Some(value) = kib(line, "Size:") {
            size_bytes = value;
        } else if let Some(value) = kib(line, "Pss:") {
            let before = own.unwrap_or(0);
            let counted = if size_bytes < GUEST_MAPPING_BYTES {
                value
            } else {
                0
            };
            own = Some(before.saturating_add(counted));
        }
    }
    own
}

/// The bytes in `Name:   123 kB`.
fn kib(line: &str, name: &str) -> Option<u64> {
    let value = line.strip_prefix(name)?.trim().strip_suffix("kB")?.trim();
    value.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_mappings_are_the_guests() {
        let smaps = "\
7f00-7f01 rw-p 00000000 00:00 0
Size:            1048576 kB
Rss:              200000 kB
Pss:              200000 kB
Pss_Dirty:        200000 kB
7f02-7f03 rw-p 00000000 00:00 0 [heap]
Size:                132 kB
Pss:                  12 kB
SwapPss:               9 kB
7f04-7f05 r-xp 00000000 08:01 5 /bin/vmm
Size:               3000 kB
Pss:                 100 kB
";
        assert_eq!(own_pss(smaps), Some(112 << 10));
        assert_eq!(own_pss(""), None);
    }

    #[test]
    fn this_process_has_figures() {
        let me = std::process::id();
        let before = monotonic_ns();
        assert!(cpu_ns(me).unwrap() > 0);
        assert!(vmm_memory_bytes(me).unwrap() > 4096);
        assert!(monotonic_ns() >= before);
        assert!(realtime_ns() > 1_500_000_000_000_000_000);
        assert_eq!(cpu_ns(u32::MAX), None);
    }
}
