//! What other VMMs cannot, told before anything runs.
//!
//! An option that a VMM does not have is refused rather than passed over, for
//! the figures would stand beside others that have it.

use super::sweep::Axes;
use super::vmms::{Vmm, VmmChoice};

const MIB: u64 = 1 << 20;
/// Cloud Hypervisor's one size of device blocks.
pub(super) const CLOUD_HYPERVISOR_BLOCK_BYTES: u64 = 2 * MIB;
/// Firecracker's smallest slot.
const LEAST_SLOT_BYTES: u64 = 128 * MIB;
/// Firecracker's most vCPUs.
const MOST_CPUS: u32 = 32;
/// The first Firecracker with memory hotplug: major and minor number.
const HOTPLUG_SINCE: (u64, u64) = (1, 14);

/// Why a VMM cannot be part of a sweep.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// It has no such option.
    #[error(
        "{vmm} has no {option}: leave that out, or measure {vmm} by a command of its own into \
         the same file (--append)"
    )]
    Option {
        /// The VMM.
        vmm: &'static str,
        /// The option.
        option: &'static str,
    },
    /// Too many vCPUs.
    #[error("firecracker has up to {MOST_CPUS} vCPUs, not {0}")]
    Cpus(u32),
    /// A version without memory hotplug.
    #[error(
        "Firecracker {0} has no memory hotplug, which came with 1.14: take a newer one, or \
         measure boots with --given boot"
    )]
    Hotplug(String),
    /// A slot size it does not take.
    #[error(
        "firecracker's KVM slots have 128M or more and hold whole blocks: --slot-size {slot} \
         bytes does not do for blocks of {lmb} bytes"
    )]
    Slot {
        /// The slot.
        slot: u64,
        /// The block.
        lmb: u64,
    },
    /// Memory that is not whole slots.
    #[error(
        "firecracker's memory to be plugged is whole slots: {window} bytes are not, of {slot} \
         bytes each; give another amount or --slot-size"
    )]
    Window {
        /// What can be plugged.
        window: u64,
        /// The slot.
        slot: u64,
    },
}

/// Refuses options that a VMM of the sweep does not have.
pub(super) fn check(axes: &Axes) -> Result<(), LimitError> {
    for vmm in &axes.vmms {
        let choice = vmm.choice;
        if !choice.is_remote() {
            continue;
        }
        let refuse = |option, given: bool| {
            let vmm = choice.name();
            if given {
                Err(LimitError::Option { vmm, option })
            } else {
                Ok(())
            }
        };
        let any = |sizes: &[u64]| sizes.iter().any(|size| *size != 0);
        refuse("--guest-block-size", any(&axes.guest_blocks))?;
        refuse("--hugepages", axes.hugepages.iter().any(|h| h != "thp"))?;
        let entries = &axes.kernel_entries;
        refuse("--kernel-entry", entries.iter().any(|e| e != "elf"))?;
        match choice {
            VmmChoice::CloudHypervisor => refuse("--slot-size", any(&axes.slot_sizes))?,
            _ => {
                if let Some(&cpus) = axes.cpus.iter().find(|cpus| **cpus > MOST_CPUS) {
                    return Err(LimitError::Cpus(cpus));
                }
            }
        }
    }
    Ok(())
}

/// The slots of Firecracker's memory device: `asked`, or the smallest there are
/// if that is 0; 0 without a window.
pub(super) fn firecracker_slot(
    vmm: &Vmm,
    asked: u64,
    lmb: u64,
    window: u64,
) -> Result<u64, LimitError> {
    if window == 0 {
        return Ok(0);
    }
    if version(&vmm.version).is_some_and(|version| version < HOTPLUG_SINCE) {
        return Err(LimitError::Hotplug(vmm.version.clone()));
    }
    let slot = if asked == 0 {
        lmb.max(LEAST_SLOT_BYTES)
    } else {
        asked
    };
    if slot < LEAST_SLOT_BYTES || !slot.is_multiple_of(lmb) {
        return Err(LimitError::Slot { slot, lmb });
    }
    if !window.is_multiple_of(slot) {
        return Err(LimitError::Window { window, slot });
    }
    Ok(slot)
}

fn version(text: &str) -> Option<(u64, u64)> {
    let mut numbers = text.split('.').map(|part| part.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn firecracker(version: &str) -> Vmm {
        Vmm {
            choice: VmmChoice::Firecracker,
            version: version.to_owned(),
        }
    }

    #[test]
    fn firecrackers_slots() {
        let slot =
            |asked, lmb, window| firecracker_slot(&firecracker("1.17.0"), asked, lmb, window);
        assert_eq!(slot(0, 2 * MIB, 8 * GIB), Ok(128 * MIB));
        assert_eq!(slot(0, GIB, 8 * GIB), Ok(GIB));
        assert_eq!(slot(2 * GIB, GIB, 8 * GIB), Ok(2 * GIB));
        assert_eq!(slot(GIB, GIB, 0), Ok(0));
        assert!(matches!(
            slot(64 * MIB, 2 * MIB, GIB),
            Err(LimitError::Slot { .. })
        ));
        assert!(matches!(
            slot(GIB, 2 * GIB, 8 * GIB),
            Err(LimitError::Slot { .. })
        ));
        assert!(matches!(
            slot(0, 2 * MIB, 130 * MIB),
            Err(LimitError::Window { .. })
        ));
    }

    #[test]
    fn hotplug_needs_a_firecracker_that_has_it() {
        let slot = |version: &str| firecracker_slot(&firecracker(version), 0, GIB, GIB);
        assert_eq!(
            slot("1.12.1"),
            Err(LimitError::Hotplug("1.12.1".to_owned()))
        );
        for version in ["1.14.0", "1.17.0-dev", "2.0.0", "unknown"] {
            assert_eq!(slot(version), Ok(GIB), "{version}");
        }
        assert_eq!(firecracker_slot(&firecracker("1.12.1"), 0, GIB, 0), Ok(0));
    }
}
