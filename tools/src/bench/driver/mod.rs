//! The VMMs that can be measured, each behind the same two traits.
//!
//! A [`Driver`] starts a VM for a configuration; a [`Vm`] is one from its
//! start to its end: booting → running → stopped (or dropped, which kills
//! it). Every stamp is taken on the host's monotonic clock where its event
//! arrives, and given as time since the moment before the VMM's process was
//! started; for adds and removes since the request was sent or, where the VMM
//! says so itself, accepted.

mod api;
mod cloud_hypervisor;
mod console;
mod firecracker;
mod lmb;
mod marks;
mod process;
mod qemu;
mod qmp;
mod remote;
#[cfg(test)]
mod testing;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use self::process::Running;
use super::sample::{BootPhases, Config, DlparPhases};
use super::work::{GuestFiles, Programs};

/// How a VMM is started.
pub(super) trait Driver {
    /// Starts a VM with this configuration in the empty directory `place`.
    fn start(&self, config: &Config, files: &GuestFiles, place: &Path) -> Result<Box<dyn Vm>>;
}

/// A change of a guest's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Change {
    /// Whether memory is added, else removed.
    pub(super) add: bool,
    /// How much.
    pub(super) amount_bytes: u64,
    /// Deadline.
    pub(super) timeout: Duration,
}

/// How a change went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Changed {
    pub(super) phases: DlparPhases,
    pub(super) done_bytes: u64,
    pub(super) complete: bool,
    pub(super) requests: Option<u64>,
    pub(super) nack: Option<u64>,
    pub(super) busy: Option<u64>,
    pub(super) slots: Option<u64>,
}

/// How a boot went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Booted {
    pub(super) phases: BootPhases,
    pub(super) exits: Option<u64>,
}

/// A VM that was started.
pub(super) trait Vm {
    /// Waits until the guest's init has run and, where it plugs memory at its
    /// boot, until that is usable.
    fn await_boot(&mut self, limit: Duration) -> Result<Booted>;
    /// Waits until the guest's memory driver takes requests.
    fn await_driver(&mut self, limit: Duration) -> Result<()>;
    /// Changes the guest's memory and waits until it is usable (or gone), or
    /// for the deadline.
    fn change(&mut self, change: Change) -> Result<Changed>;
    /// Its process and its guest's console.
    fn running(&self) -> &Running;
    /// The same, to be used.
    fn running_mut(&mut self) -> &mut Running;

    /// The VMM's process id.
    fn pid(&self) -> u32 {
        self.running().process.id()
    }
    /// Makes the guest's shell ready for [`Vm::run`].
    fn open_shell(&mut self) -> Result<()> {
        self.running_mut().console.make_plain()
    }
    /// Runs a command in the guest's shell: what it printed.
    fn run(&mut self, command: &str) -> Result<String> {
        self.running_mut().console.run(command)
    }
    /// Starts a program in the guest's shell and waits until it prints `sign`.
    fn start(&mut self, command: &str, sign: &str, limit: Duration) -> Result<()> {
        self.running_mut().console.start(command, sign, limit)
    }
    /// Ends it. Dropping does the same without a word.
    fn stop(&mut self) -> Result<()> {
        self.running_mut().process.stop()
    }
    /// What the VMM said on its standard error, for errors.
    fn complaints(&self) -> String {
        self.running().process.complaints()
    }
}

/// The driver for `vmm`, one of [`super::vmms::VmmChoice`]'s names.
pub(super) fn by_name(vmm: &str, programs: &Programs) -> Result<Box<dyn Driver>> {
    let need = |program: &Option<std::path::PathBuf>| {
        program
            .clone()
            .with_context(|| format!("no program for {vmm} was given"))
    };
    Ok(match vmm {
        "lmb-vmm" => Box::new(lmb::Lmb {
            program: need(&programs.lmb_vmm)?,
        }),
        "qemu-pc" | "qemu-microvm" => Box::new(qemu::Qemu {
            program: need(&programs.qemu)?,
            firmware: programs.qemu_firmware.clone(),
            machine: if vmm == "qemu-pc" {
                qemu::Machine::Pc
            } else {
                qemu::Machine::Microvm
            },
        }),
        "firecracker" => Box::new(firecracker::Firecracker {
            program: need(&programs.firecracker)?,
        }),
        "cloud-hypervisor" => Box::new(cloud_hypervisor::CloudHypervisor {
            program: need(&programs.cloud_hypervisor)?,
        }),
        other => bail!("there is no driver for the VMM `{other}`"),
    })
}

/// A span whose end is known and whose CPU time is not, or both.
pub(super) fn span(end_ns: u64, end_cpu_ns: Option<u64>) -> super::sample::Span {
    super::sample::Span { end_ns, end_cpu_ns }
}
