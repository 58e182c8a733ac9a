//! The sandbox around real guests. Every other trial runs in it too.

use std::fs;

use anyhow::{Context, Result, ensure};
use lmb_tests::{GuestSpec, GuestVm, Kernel, MIB, wait};
use lmb_vmm::protocol::{MemoryAction, SandboxInfo};

use crate::cases::Case;
use crate::shared::{self, Standing};

pub(crate) const CASES: &[Case] = &[
    Case::on(
        Standing::Stock61,
        "sandbox::every_thread_is_confined",
        2,
        every_thread_is_confined,
    ),
    Case::new(
        "sandbox::holds_through_resets_with_every_kind_of_memory",
        40,
        holds_through_resets_with_every_kind_of_memory,
    ),
    Case::new("sandbox::off_is_said", 10, off_is_said),
];

/// Names of the process' threads, and what /proc says of each.
fn threads(vm: &GuestVm) -> Result<Vec<(String, String)>> {
    let mut threads = Vec::new();
    for entry in fs::read_dir(format!("/proc/{}/task", vm.pid()))? {
        let directory = entry?.path();
        let name = fs::read_to_string(directory.join("comm"))?;
        let status = fs::read_to_string(directory.join("status"))?;
        threads.push((name.trim().to_owned(), status));
    }
    ensure!(!threads.is_empty());
    Ok(threads)
}

fn field<'a>(status: &'a str, name: &str) -> Result<&'a str> {
    let line = status.lines().find(|line| line.starts_with(name));
    let value = line.and_then(|line| line.split_ascii_whitespace().nth(1));
    value.with_context(|| format!("no {name} in {status}"))
}

fn check_threads(vm: &GuestVm) -> Result<()> {
    let threads = threads(vm)?;
    for (name, status) in &threads {
        assert_eq!(field(status, "NoNewPrivs:")?, "1", "{name}");
        assert_eq!(field(status, "Seccomp:")?, "2", "{name}");
        assert_eq!(field(status, "CapEff:")?, "0000000000000000", "{name}");
        assert_eq!(field(status, "CapPrm:")?, "0000000000000000", "{name}");
        // The main thread's two, and each thread's own.
        let own = u32::from(name.starts_with("vcpu") || name.starts_with("effects"));
        let filters: u32 = field(status, "Seccomp_filters:")?.parse()?;
        assert_eq!(filters, 2 + own, "{name}");
    }
    for kind in ["vcpu0", "effects0"] {
        assert!(threads.iter().any(|(name, _)| name == kind), "{threads:?}");
    }
    Ok(())
}

fn info(vm: &GuestVm) -> Result<SandboxInfo> {
    Ok(vm.client().vm()?.sandbox)
}

fn every_thread_is_confined() -> Result<()> {
    shared::with(Standing::Stock61, |vm| {
        check_threads(vm)?;
        let info = info(vm)?;
        assert!(info.enabled && info.seccomp && info.no_new_privs && info.capabilities_dropped);
        // Debian's kernels have Landlock; on others the status says none.
        let landlock = fs::read_to_string("/sys/kernel/security/lsm");
        if landlock.is_ok_and(|modules| modules.contains("landlock")) {
            assert!(info.landlock_abi.is_some(), "{info:?}");
        }
        let shown = vm.lmb(&["vm", "show"])?.stdout;
        assert!(shown.contains("seccomp"), "{shown}");
        Ok(())
    })
}

fn holds_through_resets_with_every_kind_of_memory() -> Result<()> {
    for flags in [
        [("shared", "true"), ("prefault", "true"), ("cpus", "2")],
        [
            ("hotplug", "acpi"),
            ("prefault", "true"),
            ("hugepages", "off"),
        ],
    ] {
        let mut spec = GuestSpec::new(Kernel::V6_1)
            .lmb_size("128M")
            .max_memory("768M");
        for (name, value) in flags {
            spec = spec.flag(name, value);
        }
        let vm = spec.boot_with_driver()?;
        for reset in [true, false] {
            vm.change_ok(MemoryAction::Add, 256 * MIB)?;
            vm.change_ok(MemoryAction::Remove, 256 * MIB)?;
            check_threads(&vm)?;
            if reset {
                let boots = vm.client().vm()?.boot.boots;
                vm.client().reset()?;
                wait::until("the next boot's init", wait::BOOT, || {
                    let boot = vm.client().vm()?.boot;
                    Ok(boot.init_ns.filter(|_| boot.boots > boots))
                })?;
                vm.await_driver()?;
            }
        }
        assert_eq!(vm.stderr(), "");
    }
    Ok(())
}

fn off_is_said() -> Result<()> {
    let vm = GuestSpec::new(Kernel::V6_1).flag("sandbox", "off").boot()?;
    assert_eq!(info(&vm)?, SandboxInfo::default());
    let said = vm.stderr();
    assert!(said.contains("the sandbox is off"), "{said}");
    for (name, status) in threads(&vm)? {
        assert_eq!(field(&status, "Seccomp:")?, "0", "{name}");
    }
    let shown = vm.lmb(&["vm", "show"])?.stdout;
    assert!(
        shown
            .lines()
            .any(|line| line.split_whitespace().eq(["sandbox", "off"])),
        "{shown}"
    );
    Ok(())
}
