//! How much memory the virtual KVM host needs for a sweep.
//!
//! A guest's memory is not touched as a whole. What is: the guest's kernel and
//! init; 64 bytes for each 4 KiB page of its RAM and of what it plugs; what a
//! removal zeroes before it is given back (the driver allocates a guest block
//! or device block at a time, and Debian's kernels zero what is allocated);
//! what a load holds. Beside that the host pays for the VMM, for page tables
//! and KVM's own books, and for its file system twice: as the archive and
//! unpacked.

use lmb_memory::Hotplug;

use super::sample::Config;
use super::sweep::guest_block_bytes;
use super::work::{Job, Task};

const MIB: u64 = 1 << 20;
/// The host's kernel and init.
const HOST_OWN_BYTES: u64 = 320 * MIB;
/// The guest's kernel, its initramfs twice, and what it caches.
const GUEST_OWN_BYTES: u64 = 320 * MIB;
/// What a guest keeps of an ACPI device, plugged or not.
const ACPI_DEVICE_BYTES: u64 = 16 << 10;
/// A further vCPU's per-CPU memory and stacks.
const VCPU_BYTES: u64 = 16 * MIB;
const LEAST_MIB: u64 = 1024;

/// Memory for a host that runs these jobs, one at a time, in MiB; `None` past
/// 64 bits.
#[must_use]
pub fn host_mib(jobs: &[Job], files_bytes: u64) -> Option<u64> {
    let guest = jobs
        .iter()
        .map(job_bytes)
        .try_fold(0, |most: u64, bytes| Some(most.max(bytes?)))?;
    let files = files_bytes.checked_mul(2)?;
    let sum = HOST_OWN_BYTES.checked_add(files)?.checked_add(guest)?;
    let with_margin = sum.checked_add(sum / 8)?.checked_add(128 * MIB)?;
    let mib = with_margin.div_ceil(MIB).checked_next_multiple_of(128)?;
    Some(mib.max(LEAST_MIB))
}

fn job_bytes(job: &Job) -> Option<u64> {
    let config = &job.config;
    // What stays empty takes nothing.
    let plugged = match job.task {
        Task::Boot => config.plugged_at_boot_bytes,
        Task::Dlpar { amount_bytes, .. } => amount_bytes,
    };
    let total = config.memory_bytes.checked_add(plugged)?;
    let memmap = total.div_ceil(64);
    let (zeroed, load) = match job.task {
        Task::Boot => (0, 0),
        // A load is copied when it is moved out.
        Task::Dlpar { load_bytes, .. } => (removal_bytes(config), load_bytes.checked_mul(2)?),
    };
    let touched = GUEST_OWN_BYTES
        .checked_add(memmap)?
        .checked_add(zeroed)?
        .checked_add(load)?
        .checked_add(devices_bytes(config))?
        .checked_add(u64::from(config.cpus).checked_mul(VCPU_BYTES)?)?;
    let vmm = if config.vmm == "lmb-vmm" { 32 } else { 192 } * MIB;
    // KVM keeps some bytes for each page of a slot, and each touched page is
    // in two page tables.
    let books = total.div_ceil(512).checked_add(touched.div_ceil(256))?;
    touched.checked_add(vmm)?.checked_add(books)
}

fn is_acpi(config: &Config) -> bool {
    config.hotplug == Hotplug::Acpi.name()
}

/// What ACPI devices take.
fn devices_bytes(config: &Config) -> u64 {
    let window = config.max_memory_bytes.saturating_sub(config.memory_bytes);
    match window.checked_div(config.lmb_size_bytes) {
        Some(lmbs) if is_acpi(config) => lmbs.saturating_mul(ACPI_DEVICE_BYTES),
        _ => 0,
    }
}

/// Two of the units in which a guest takes its memory out: one that is being
/// zeroed and one that is being given back. ACPI LMBs are not allocated to be
/// removed.
fn removal_bytes(config: &Config) -> u64 {
    if is_acpi(config) {
        return 0;
    }
    let unit = config.lmb_size_bytes.max(guest_block_bytes(config));
    let window = config.max_memory_bytes.saturating_sub(config.memory_bytes);
    unit.saturating_mul(2).min(window)
}

#[cfg(test)]
mod tests {
    use std::slice;

    use super::*;
    use crate::bench::testing::config;

    const GIB: u64 = 1 << 30;

    fn job(task: Task, change: impl FnOnce(&mut Config)) -> Job {
        let mut config = config();
        change(&mut config);
        Job {
            config,
            guest: 0,
            task,
            round: 0,
            warm_up: false,
            position: 0,
        }
    }

    #[test]
    fn lmbs_that_stay_empty_take_next_to_nothing() {
        let plain = job(Task::Boot, |_| ());
        let empty = job(Task::Boot, |c| c.max_memory_bytes += 1 << 44);
        assert_eq!(host_mib(&[empty], 0), host_mib(slice::from_ref(&plain), 0));
        let devices = job(Task::Boot, |c| {
            c.max_memory_bytes += 4096 * c.lmb_size_bytes;
            c.hotplug = "acpi".to_owned();
        });
        let more = host_mib(&[devices], 0).unwrap() - host_mib(&[plain], 0).unwrap();
        assert!(more <= 128, "{more}");
    }

    fn dlpar(load_bytes: u64) -> Task {
        Task::Dlpar {
            amount_bytes: 32 * GIB,
            timeout_ms: 1,
            steps: 4,
            load_bytes,
        }
    }

    #[test]
    fn a_guest_of_64_gib_fits_into_a_small_host() {
        let large = job(Task::Boot, |c| {
            (c.memory_bytes, c.max_memory_bytes) = (64 * GIB, 64 * GIB);
        });
        let mib = host_mib(&[large], 60 * MIB).unwrap();
        // 1 GiB of it is the guest's memmap.
        assert!((1800..3000).contains(&mib), "{mib}");
    }

    #[test]
    fn the_dearest_job_decides() {
        let wide = |lmb: u64| {
            move |c: &mut Config| {
                c.max_memory_bytes = 33 * GIB;
                c.lmb_size_bytes = lmb;
            }
        };
        let small = job(dlpar(0), wide(256 * MIB));
        let large = job(dlpar(0), wide(4 * GIB));
        let loaded = job(dlpar(8 * GIB), wide(256 * MIB));
        let one = |job: &Job| host_mib(slice::from_ref(job), 0).unwrap();
        assert!(one(&large) >= one(&small) + 7 * 1024);
        let mut acpi = large.clone();
        acpi.config.hotplug = "acpi".to_owned();
        assert!(one(&acpi) <= one(&small), "nothing is zeroed");
        assert!(one(&loaded) >= one(&small) + 16 * 1024);
        let all = [small.clone(), large.clone()];
        assert_eq!(host_mib(&all, 0), Some(one(&large)));
    }

    #[test]
    fn sizes_past_all_bounds_are_none_and_small_ones_have_a_floor() {
        let endless = job(Task::Boot, |c| c.memory_bytes = u64::MAX);
        assert!(host_mib(&[endless], u64::MAX / 2).is_none());
        assert_eq!(host_mib(&[], 0), Some(LEAST_MIB));
    }
}
