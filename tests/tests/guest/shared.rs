//! Standing guests: booted once and used by several trials, since a boot costs
//! seconds. One stands at a time; the trials on it come one after another.
//!
//! A trial must leave the guest with its boot memory alone. A failed trial's
//! guest is thrown away.

use std::sync::{Mutex, PoisonError};

use anyhow::{Result, ensure};
use lmb_tests::{GuestSpec, GuestVm, Kernel};
use lmb_vmm::protocol::{MemoryAction, OperationState};

/// Which guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Kernel 6.1, 256 MiB, LMBs of 128 MiB, room for 2 GiB more.
    Stock61,
    /// The same with kernel 6.12.
    Stock612,
    /// Kernel 6.1 that leaves added memory offline, so that its driver stops
    /// after about 1 GiB of it; room for 4 GiB.
    Stalling,
    /// Kernel 6.1 without the driver.
    Driverless,
    /// As the stock guests, but each LMB an ACPI device.
    Acpi61,
    /// The same with kernel 6.12.
    Acpi612,
}

/// Window of the stock guests, MiB.
pub(crate) const WINDOW_MIB: u64 = 2048;

impl Standing {
    fn spec(self) -> GuestSpec {
        let kernel = match self {
            Self::Stock612 | Self::Acpi612 => Kernel::V6_12,
            _ => Kernel::V6_1,
        };
        let spec = GuestSpec::new(kernel).lmb_size("128M").max_memory("2304M");
        match self {
            Self::Stock61 | Self::Stock612 => spec,
            Self::Acpi61 | Self::Acpi612 => spec.hotplug("acpi"),
            Self::Stalling => spec.max_memory("4352M").command_line("console=ttyS0 quiet"),
            Self::Driverless => spec.append("lmb.modules=off"),
        }
    }
}

static STANDING: Mutex<Option<(Standing, GuestVm)>> = Mutex::new(None);

/// Runs a trial on a standing guest.
pub(crate) fn with(which: Standing, trial: impl FnOnce(&mut GuestVm) -> Result<()>) -> Result<()> {
    let mut place = STANDING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut vm = match place.take() {
        Some((standing, vm)) if standing == which => vm,
        other => {
            drop(other);
            let spec = which.spec();
            if which == Standing::Driverless {
                spec.boot()?
            } else {
                spec.boot_with_driver()?
            }
        }
    };
    trial(&mut vm)?;
    restore(&vm)?;
    *place = Some((which, vm));
    Ok(())
}

/// Takes away what a trial left plugged or wanted.
fn restore(vm: &GuestVm) -> Result<()> {
    let memory = vm.memory()?;
    if memory.total_bytes != memory.boot_bytes || memory.target_bytes != memory.boot_bytes {
        let operation = vm.change(MemoryAction::Set, memory.boot_bytes)?;
        ensure!(operation.state == OperationState::Done, "{operation:#?}");
    }
    Ok(())
}

/// Ends the guest that still stands.
pub(crate) fn end() {
    STANDING
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
}
