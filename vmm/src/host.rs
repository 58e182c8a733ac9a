//! What of the host a layout depends on, read once.

use crate::config::HostLimits;
use crate::kvm;

/// KVM's slots where KVM cannot be asked (x86: KVM_USER_MEM_SLOTS).
const KVM_SLOTS: u64 = 32_764;
/// Address width where nobody tells it: the least any x86-64 processor has.
const LEAST_PHYS_BITS: u8 = 36;

/// Limits of this host. Without KVM, as in a dry run elsewhere, the processor's
/// own width and KVM's usual number of slots stand in.
#[must_use]
pub fn limits(kvm: Option<&kvm_ioctls::Kvm>) -> HostLimits {
    let supported = kvm.and_then(|kvm| {
        kvm.get_supported_cpuid(kvm_bindings::KVM_MAX_CPUID_ENTRIES)
            .ok()
    });
    HostLimits {
        phys_bits: supported
            .as_ref()
            .map_or_else(cpuinfo_phys_bits, kvm::physical_address_bits),
        max_map_count: std::fs::read_to_string("/proc/sys/vm/max_map_count")
            .ok()
            .and_then(|text| text.trim().parse().ok()),
        max_slots: kvm.map_or(KVM_SLOTS, |kvm| kvm.get_nr_memslots() as u64),
    }
}

fn cpuinfo_phys_bits() -> u8 {
    std::fs::read_to_string("/proc/cpuinfo")
        .ok()
        .and_then(|text| parse_phys_bits(&text))
        .unwrap_or(LEAST_PHYS_BITS)
}

/// The line reads "address sizes : 46 bits physical, 48 bits virtual".
fn parse_phys_bits(cpuinfo: &str) -> Option<u8> {
    let line = cpuinfo
        .lines()
        .find(|line| line.starts_with("address sizes"))?;
    let (_, sizes) = line.split_once(':')?;
    sizes.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_width_is_read_from_cpuinfo() {
        let text = "flags : fpu\naddress sizes\t: 39 bits physical, 48 bits virtual\n";
        assert_eq!(parse_phys_bits(text), Some(39));
        assert_eq!(parse_phys_bits("flags : fpu\n"), None);
    }

    #[test]
    fn a_host_has_limits() {
        let limits = limits(None);
        assert!((36..=57).contains(&limits.phys_bits));
        assert!(limits.max_map_count.is_some());
    }
}
