//! CPUID for each vCPU: what KVM supports, made consistent with the guest's
//! topology. Leaves: Intel SDM vol. 2A CPUID; AMD APM vol. 3 appendix E.

use kvm_bindings::{CpuId, KVM_CPUID_FLAG_SIGNIFCANT_INDEX, kvm_cpuid_entry2};

/// CPUID.1:ECX bit 24.
const TSC_DEADLINE: u32 = 1 << 24;
/// CPUID.1:ECX bit 31: a hypervisor is present. Linux sizes its memory blocks
/// by RAM only when it is set.
const HYPERVISOR: u32 = 1 << 31;
/// CPUID.1:EDX bit 28: more than one logical processor in the package.
const HTT: u32 = 1 << 28;
/// CPUID.8000_0001:ECX bit 1: cores, not threads (AMD).
const CMP_LEGACY: u32 = 1 << 1;

/// CPUID of vCPU `id` among `cpus`: one package of `cpus` single-thread cores.
#[must_use]
pub fn for_vcpu(supported: &CpuId, id: u32, cpus: u32) -> CpuId {
    let mut cpuid = supported.clone();
    let core_bits = cpus.next_power_of_two().trailing_zeros();
    let amd = is_amd(supported);
    for entry in cpuid.as_mut_slice() {
        adjust(entry, id, cpus, core_bits, amd);
    }
    rebuild_extended_topology(&mut cpuid, id, cpus, core_bits);
    cpuid
}

/// Leaf 0: "AuthenticAMD" or "HygonGenuine".
fn is_amd(cpuid: &CpuId) -> bool {
    cpuid
        .as_slice()
        .iter()
        .find(|entry| entry.function == 0)
        .is_some_and(|entry| [*b"Auth", *b"Hygo"].contains(&entry.ebx.to_le_bytes()))
}

/// KVM lists only an empty subleaf 0 of these leaves, which says that there is
/// no topology in them; Linux then takes each vCPU for a package of its own.
fn rebuild_extended_topology(cpuid: &mut CpuId, id: u32, cpus: u32, core_bits: u32) {
    for function in [0xb, 0x1f] {
        let before = cpuid.as_slice().len();
        cpuid.retain(|entry| entry.function != function);
        if cpuid.as_slice().len() == before {
            continue;
        }
        for index in 0..=2 {
            let entry = extended_topology(function, index, id, cpus, core_bits);
            if cpuid.push(entry).is_err() {
                tracing::warn!("no room for CPUID leaf {function:#x}.{index}");
            }
        }
    }
}

fn adjust(entry: &mut kvm_cpuid_entry2, id: u32, cpus: u32, core_bits: u32, amd: bool) {
    match entry.function {
        1 => {
            entry.ecx |= TSC_DEADLINE | HYPERVISOR;
            // 31:24 initial APIC id, 23:16 logical processors, 15:8 CLFLUSH.
            entry.ebx = (id << 24) | (cpus.min(255) << 16) | (entry.ebx & 0xffff);
            if cpus > 1 {
                entry.edx |= HTT;
            } else {
                entry.edx &= !HTT;
            }
        }
        // Deterministic cache parameters, Intel: bits 31:26 cores per package,
        // 25:14 threads that share the cache. L3 is shared by all cores.
        4 if entry.eax & 0x1f != 0 => {
            let level = (entry.eax >> 5) & 7;
            let sharing = if level >= 3 { cpus - 1 } else { 0 };
            entry.eax = (entry.eax & 0x3fff) | (sharing << 14) | ((cpus - 1).min(63) << 26);
        }
        0x8000_0001 if amd && cpus > 1 => entry.ecx |= CMP_LEGACY,
        // AMD: 15:12 bits of core id, 7:0 cores - 1.
        0x8000_0008 if amd => {
            entry.ecx = (entry.ecx & !0xf0ff) | (core_bits << 12) | (cpus - 1);
        }
        // Cache topology, AMD: 25:14 sharing cores - 1.
        0x8000_001d if entry.eax & 0x1f != 0 => {
            let level = (entry.eax >> 5) & 7;
            let sharing = if level >= 3 { cpus - 1 } else { 0 };
            entry.eax = (entry.eax & !(0xfff << 14)) | (sharing << 14);
        }
        // Extended APIC id, core id (one thread each), node id.
        0x8000_001e => {
            entry.eax = id;
            entry.ebx = id & 0xff;
            entry.ecx = 0;
        }
        _ => {}
    }
}

/// Subleaf 0: one thread a core. Subleaf 1: `cpus` cores in the package.
/// Subleaf 2 ends the list.
fn extended_topology(
    function: u32,
    index: u32,
    id: u32,
    cpus: u32,
    core_bits: u32,
) -> kvm_cpuid_entry2 {
    const THREAD: u32 = 1;
    const CORE: u32 = 2;
    let (eax, ebx, ecx) = match index {
        0 => (0, 1, THREAD << 8),
        1 => (core_bits, cpus, 1 | CORE << 8),
        n => (0, 0, n),
    };
    kvm_cpuid_entry2 {
        function,
        index,
        flags: KVM_CPUID_FLAG_SIGNIFCANT_INDEX,
        eax,
        ebx,
        ecx,
        edx: id,
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(function: u32, index: u32) -> kvm_cpuid_entry2 {
        kvm_cpuid_entry2 {
            function,
            index,
            ..Default::default()
        }
    }

    #[test]
    fn every_vcpu_has_its_own_ids_in_one_package() {
        // As KVM lists them: an empty first subleaf of the topology alone.
        let amd = kvm_cpuid_entry2 {
            ebx: u32::from_le_bytes(*b"Auth"),
            ..entry(0, 0)
        };
        let supported = CpuId::from_entries(&[
            amd,
            entry(1, 0),
            entry(0xb, 0),
            entry(0x8000_0008, 0),
            entry(0x8000_001e, 0),
        ])
        .unwrap();
        for (cpus, core_bits) in [(1, 0), (2, 1), (3, 2), (4, 2), (254, 8)] {
            for id in 0..cpus {
                let cpuid = for_vcpu(&supported, id, cpus);
                let leaf = |function, index| {
                    *cpuid
                        .as_slice()
                        .iter()
                        .find(|e| e.function == function && e.index == index)
                        .unwrap()
                };
                assert_eq!(leaf(1, 0).ebx >> 24, id);
                assert_eq!(leaf(0xb, 0).edx, id);
                assert_eq!(leaf(0xb, 2).ecx, 2, "the list ends");
                assert_eq!(leaf(0xb, 1).eax, core_bits);
                assert_eq!(leaf(0xb, 1).ebx, cpus);
                assert_eq!(leaf(0x8000_0008, 0).ecx & 0xff, cpus - 1);
                assert_eq!(leaf(0x8000_001e, 0).eax, id);
                assert_ne!(leaf(1, 0).ecx & HYPERVISOR, 0);
                // The package id, what is left of the APIC id above the core
                // bits, is the same for all.
                assert_eq!(id >> core_bits, 0);
            }
        }
    }

    #[test]
    fn what_is_amds_alone_is_not_told_to_an_intel_guest() {
        let supported =
            CpuId::from_entries(&[entry(0, 0), entry(0x8000_0001, 0), entry(0x8000_0008, 0)])
                .unwrap();
        let cpuid = for_vcpu(&supported, 1, 4);
        assert!(cpuid.as_slice().iter().all(|entry| entry.ecx == 0));
        assert!(!cpuid.as_slice().iter().any(|entry| entry.function == 0xb));
    }
}
