//! The same VM inside the virtual KVM host, where this machine's KVM cannot
//! run it. Its console is shown; nothing can be typed, and its control socket
//! is inside.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::bail;

use super::{RunArgs, vmm};
use crate::host::{DEFAULT_MEMORY_MIB, EXIT_HOST_FAILED, EXIT_TIMEOUT, HostError, HostRun};
use crate::initramfs::FileArgument;
use crate::packages::{self, Cache, DEFAULT_KERNEL_PACKAGE, KernelPackage, Progress};

/// What of the host's memory is not the guest's, in MiB.
const HOST_OWN_MIB: u64 = 2048;

/// Boots the host and the VM in it: the VMM's exit code.
///
/// # Errors
/// When something for the host is missing.
pub(super) fn run(args: &RunArgs, program: &Path, boot: super::Boot) -> anyhow::Result<u8> {
    if args.vmm.config.is_some() {
        bail!(
            "a definition file names files of this machine, which the virtual KVM host does not \
             see; give the VM by flags, or put the files in with `lmb host run --file`"
        );
    }
    let progress = Progress::new();
    let note = |text: &str| progress.step(text);
    let cache = Cache::open()?;
    let kernel = KernelPackage::fetch(&cache, DEFAULT_KERNEL_PACKAGE, false, &note)?;
    let qemu = packages::qemu(&note)?;
    let mut files = vec![put(program.to_owned(), format!("bin/{}", vmm::PROGRAM))];
    let mut command: Vec<OsString> = vec![vmm::PROGRAM.into()];
    for (flag, file, inside) in [
        ("--kernel", boot.kernel, "guest/kernel"),
        ("--initrd", boot.initrd, "guest/initrd"),
    ] {
        if let Some(file) = file {
            files.push(put(file, inside.to_owned()));
            command.extend([OsString::from(flag), format!("/{inside}").into()]);
        }
    }
    command.extend(["--api-socket".into(), "/vm.sock".into()]);
    command.extend(args.vmm.arguments());
    let mut host = HostRun::new(kernel, qemu, command);
    host.limit = args.host_limit;
    let guest_mib = args.vmm.boot_bytes().unwrap_or_default() >> 20;
    host.memory_mib = guest_mib
        .saturating_add(HOST_OWN_MIB)
        .max(DEFAULT_MEMORY_MIB);
    host.files = files;
    progress.show("booting the virtual KVM host");
    Ok(stream(&host, &cache, &progress))
}

fn stream(host: &HostRun, cache: &Cache, progress: &Progress) -> u8 {
    let mut stdout = std::io::stdout().lock();
    let outcome = host.run(cache, &mut |bytes| {
        progress.clear();
        stdout.write_all(bytes).and_then(|()| stdout.flush())
    });
    progress.clear();
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("lmb: {error}");
            match error {
                HostError::TimedOut { .. } => EXIT_TIMEOUT,
                _ => EXIT_HOST_FAILED,
            }
        }
    }
}

fn put(source: PathBuf, dest: String) -> FileArgument {
    FileArgument {
        source,
        dest: Some(dest),
    }
}
