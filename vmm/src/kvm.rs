//! Opening KVM and saying plainly why it cannot be used.
//!
//! A stock kernel needs hardware virtualization behind /dev/kvm. Some machines
//! have the device without it; there KVM interprets every privileged
//! instruction and stops at one it lacks, so the VMM refuses before it builds
//! a guest.

use std::path::Path;

use kvm_ioctls::{Cap, Kvm};

/// The device node of KVM.
const DEVICE: &str = "/dev/kvm";

/// What to do on a host without KVM, in one sentence.
const ELSEWHERE: &str = "run the guest inside the virtual KVM host: `lmb host run`, \
    or `lmb run`, which chooses it by itself";

/// Why KVM cannot be used here.
#[derive(Debug, thiserror::Error)]
pub enum KvmError {
    /// No device node.
    #[error(
        "/dev/kvm is missing: KVM is not in this kernel or its module (kvm_intel, kvm_amd) \
         is not loaded; load it, or {ELSEWHERE}"
    )]
    Missing,
    /// The device node is there, the user may not open it.
    #[error(
        "/dev/kvm may not be opened by this user: {0}; join the group that owns it \
         (usually `kvm`) or run as root"
    )]
    NotPermitted(std::io::Error),
    /// The device node cannot be opened for another reason.
    #[error("/dev/kvm cannot be opened: {0}; {ELSEWHERE}")]
    Open(std::io::Error),
    /// The processor offers no hardware virtualization.
    #[error(
        "/dev/kvm exists but this processor offers no hardware virtualization (neither vmx nor \
         svm in /proc/cpuinfo), so that a stock kernel cannot run; {ELSEWHERE}"
    )]
    NoHardware,
    /// An extension that the VMM is built on is absent.
    #[error("this kernel's KVM lacks {0}; use Linux 5.10 or newer")]
    Lacks(&'static str),
    /// The API version differs from the only one there ever was.
    #[error("this kernel's KVM has API version {0}, not 12")]
    Version(i32),
}

/// Opens KVM after the checks above.
///
/// # Errors
/// The first reason that stands in the way.
pub fn open() -> Result<Kvm, KvmError> {
    if !Path::new(DEVICE).exists() {
        return Err(KvmError::Missing);
    }
    let kvm = Kvm::new().map_err(|errno| {
        let error = std::io::Error::from(errno);
        match error.kind() {
            std::io::ErrorKind::PermissionDenied => KvmError::NotPermitted(error),
            std::io::ErrorKind::NotFound => KvmError::Missing,
            _ => KvmError::Open(error),
        }
    })?;
    if !hardware_virtualization() {
        return Err(KvmError::NoHardware);
    }
    let version = kvm.get_api_version();
    if version != 12 {
        return Err(KvmError::Version(version));
    }
    for (cap, name) in [
        (Cap::Irqchip, "an in-kernel interrupt controller"),
        (Cap::Ioeventfd, "ioeventfd"),
        (Cap::Irqfd, "irqfd"),
        (Cap::UserMemory, "user memory regions"),
        (Cap::ImmediateExit, "immediate exit"),
        (Cap::SetTssAddr, "a movable task state segment"),
        (Cap::ExtCpuid, "CPUID control"),
        (Cap::TscDeadlineTimer, "the TSC deadline timer"),
    ] {
        if !kvm.check_extension(cap) {
            return Err(KvmError::Lacks(name));
        }
    }
    Ok(kvm)
}

/// Whether the processor shows VMX or SVM. A KVM module that loaded is the
/// better proof, but it may be built in; the flags are there in both cases.
fn hardware_virtualization() -> bool {
    if ["kvm_intel", "kvm_amd"]
        .iter()
        .any(|module| Path::new("/sys/module").join(module).exists())
    {
        return true;
    }
    std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| cpuinfo_has_virtualization(&text))
}

fn cpuinfo_has_virtualization(cpuinfo: &str) -> bool {
    cpuinfo
        .lines()
        .filter(|line| line.starts_with("flags"))
        .flat_map(str::split_whitespace)
        .any(|flag| flag == "vmx" || flag == "svm")
}

/// The guest-physical address width that the host's CPUs give a guest, bits.
/// Leaf 0x8000_0008, EAX bits 7:0; 36 where the leaf is absent, as the manuals
/// say.
#[must_use]
pub fn physical_address_bits(cpuid: &kvm_bindings::CpuId) -> u8 {
    cpuid
        .as_slice()
        .iter()
        .find(|entry| entry.function == 0x8000_0008)
        .map_or(36, |entry| (entry.eax & 0xff) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_flags_count() {
        assert!(cpuinfo_has_virtualization("flags\t\t: fpu svm sse\n"));
        assert!(cpuinfo_has_virtualization("processor : 0\nflags : vmx\n"));
        assert!(!cpuinfo_has_virtualization("flags : fpu avx512\n"));
        assert!(!cpuinfo_has_virtualization("vmx flags : ept vmx\n"));
    }
}
