//! Whether this machine can run stock guests by itself.
//!
//! `/dev/kvm` alone does not tell: on machines without hardware
//! virtualization a page-table based KVM may offer it, in which stock kernels
//! fall into the instruction emulator and stop at the first instruction that
//! lacks there. So the processor's vmx or svm, or kvm_intel or kvm_amd, must
//! be there too.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::Path;

use thiserror::Error;

/// The variable that says, inside the virtual KVM host, what kind of host
/// this is. Results quote it.
pub const HOST_KIND_VARIABLE: &str = "LMB_HOST_KIND";

/// Why native KVM cannot be used. Each names what to do.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum Reason {
    /// There is no `/dev/kvm`.
    #[error(
        "/dev/kvm is missing: load kvm_intel or kvm_amd (`modprobe kvm_intel`), or turn on \
         virtualization in the firmware or for this virtual machine; without it use `lmb host run`"
    )]
    Missing,
    /// This user may not open `/dev/kvm`.
    #[error(
        "/dev/kvm is not permitted: add this user to the group kvm (`usermod -aG kvm USER`, then \
         log in anew) or run as root; without it use `lmb host run`"
    )]
    NotPermitted,
    /// `/dev/kvm` is there without hardware virtualization behind it.
    #[error(
        "/dev/kvm is there but no hardware virtualization (neither vmx nor svm in /proc/cpuinfo, \
         neither kvm_intel nor kvm_amd loaded), so stock kernels do not run on it: use `lmb host run`"
    )]
    NoHardwareVirtualization,
    /// `/dev/kvm` cannot be opened for another cause.
    #[error("/dev/kvm cannot be opened ({0}); use `lmb host run`")]
    Unusable(String),
}

/// Whether stock guests run on this machine's own KVM.
///
/// # Errors
/// The reason why not.
pub fn native_kvm() -> Result<(), Reason> {
    let opened = File::options()
        .read(true)
        .write(true)
        .open("/dev/kvm")
        .map(drop);
    let module = hardware_module().is_some();
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    judge(opened, module, &cpuinfo)
}

/// What kind of host this is, in words for results: the virtual KVM host's
/// own description inside of it, else the native KVM's module and kernel.
#[must_use]
pub fn host_kind() -> String {
    if let Ok(kind) = std::env::var(HOST_KIND_VARIABLE)
        && !kind.is_empty()
    {
        return kind;
    }
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let module = hardware_module().unwrap_or("kvm");
    format!("native KVM ({module}, kernel {})", release.trim())
}

fn hardware_module() -> Option<&'static str> {
    ["kvm_intel", "kvm_amd"]
        .into_iter()
        .find(|name| Path::new("/sys/module").join(name).is_dir())
}

fn judge(opened: io::Result<()>, module: bool, cpuinfo: &str) -> Result<(), Reason> {
    match opened {
        Err(error) if error.kind() == ErrorKind::NotFound => Err(Reason::Missing),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Err(Reason::NotPermitted),
        Err(error) => Err(Reason::Unusable(error.to_string())),
        Ok(()) if module || has_virtualization_flag(cpuinfo) => Ok(()),
        Ok(()) => Err(Reason::NoHardwareVirtualization),
    }
}

fn has_virtualization_flag(cpuinfo: &str) -> bool {
    cpuinfo
        .lines()
        .filter_map(|line| line.split_once(':'))
        .filter(|(key, _)| key.trim() == "flags")
        .any(|(_, flags)| {
            flags
                .split_whitespace()
                .any(|flag| flag == "vmx" || flag == "svm")
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SVM: &str = "processor\t: 0\nflags\t\t: fpu sse svm lm\n";
    const NONE: &str = "model name\t: vmx svm\nflags\t\t: fpu sse hypervisor svm_lock\n";

    fn fails(kind: ErrorKind) -> io::Result<()> {
        Err(kind.into())
    }

    #[test]
    fn each_cause_is_told_from_the_others() {
        assert_eq!(
            judge(fails(ErrorKind::NotFound), true, SVM),
            Err(Reason::Missing)
        );
        assert_eq!(
            judge(fails(ErrorKind::PermissionDenied), true, SVM),
            Err(Reason::NotPermitted)
        );
        assert!(matches!(
            judge(fails(ErrorKind::ResourceBusy), true, SVM),
            Err(Reason::Unusable(_))
        ));
        assert_eq!(
            judge(Ok(()), false, NONE),
            Err(Reason::NoHardwareVirtualization)
        );
        assert_eq!(
            judge(Ok(()), false, ""),
            Err(Reason::NoHardwareVirtualization)
        );
    }

    #[test]
    fn a_module_or_the_processors_flag_suffices() {
        assert_eq!(judge(Ok(()), true, NONE), Ok(()));
        assert_eq!(judge(Ok(()), false, SVM), Ok(()));
        assert_eq!(judge(Ok(()), false, "flags : fpu vmx\n"), Ok(()));
    }

    #[test]
    fn each_reason_says_what_to_do() {
        for reason in [
            Reason::Missing,
            Reason::NotPermitted,
            Reason::NoHardwareVirtualization,
            Reason::Unusable("busy".into()),
        ] {
            assert!(reason.to_string().contains("lmb host run"), "{reason}");
        }
    }
}
