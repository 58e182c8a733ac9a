//! What lmb-vmm says on machines where KVM cannot be used. These run on the
//! machine itself, not in the virtual host.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use lmb_tests::vmm_program;
use lmb_tools::host::detect::{Reason, native_kvm};
use lmb_tools::packages::{find_program, is_root};

use crate::cases::{Case, Needs};

pub(crate) const CASES: &[Case] = &[
    Case::new("native::no_hardware_virtualization_is_said", 0, no_hardware)
        .needing(Needs::Machine(hardware_is_there)),
    Case::new("native::missing_kvm_is_said", 0, missing_kvm).needing(Needs::Machine(no_unshare)),
    Case::new("native::forbidden_kvm_is_said", 0, forbidden_kvm)
        .needing(Needs::Machine(no_unshare)),
];

fn hardware_is_there() -> Option<&'static str> {
    match native_kvm() {
        Err(Reason::NoHardwareVirtualization) => None,
        _ => Some("this machine has no KVM without hardware virtualization"),
    }
}

fn no_unshare() -> Option<&'static str> {
    (!is_root() || find_program("unshare").is_none() || find_program("setpriv").is_none())
        .then_some("needs root, unshare and setpriv")
}

/// The one line of a VMM that refuses to start.
fn refusal(command: &mut Command) -> Result<String> {
    let output = command.output().context("cannot run lmb-vmm")?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.code() == Some(1), "{output:?}");
    ensure!(said.lines().count() == 1, "more than one message: {said}");
    Ok(said)
}

/// A kernel that is not looked at, since KVM comes first.
const KERNEL: [&str; 2] = ["--kernel", "/dev/null"];

fn no_hardware() -> Result<()> {
    let said = refusal(Command::new(vmm_program()?).args(KERNEL))?;
    assert!(said.contains("/dev/kvm"), "{said}");
    assert!(said.contains("no hardware virtualization"), "{said}");
    assert!(said.contains("lmb host run"), "{said}");
    Ok(())
}

fn missing_kvm() -> Result<()> {
    let script = r#"mount -t tmpfs none /dev && exec "$0" "$@""#;
    let said = refusal(
        Command::new("unshare")
            .args(["--mount", "sh", "-c", script])
            .arg(vmm_program()?)
            .args(KERNEL),
    )?;
    assert!(said.contains("/dev/kvm is missing"), "{said}");
    assert!(said.contains("lmb host run"), "{said}");
    Ok(())
}

fn forbidden_kvm() -> Result<()> {
    // The program is copied to where the other user can read it.
    let directory = tempfile::tempdir_in("/tmp")?;
    let program = directory.path().join("lmb-vmm");
    std::fs::copy(vmm_program()?, &program)?;
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755))?;
    let script = r#"mount -t tmpfs none /dev && mknod -m 600 /dev/kvm c 10 232 \
        && mknod -m 666 /dev/null c 1 3 \
        && exec setpriv --reuid 65534 --clear-groups "$0" "$@""#;
    let said = refusal(
        Command::new("unshare")
            .args(["--mount", "sh", "-c", script])
            .arg(&program)
            .args(KERNEL),
    )?;
    assert!(said.contains("/dev/kvm"), "{said}");
    assert!(said.contains("group"), "{said}");
    Ok(())
}
