//! The machines of a sweep: what varies beside memory, what a machine comes to
//! with some memory, and what it cannot be.

use lmb_memory::{Bytes, GuestBlock, Hotplug};

use super::limits;
use super::sample::Config;
use super::sweep::{Case, Kernel, Shape, SweepError};
use super::vmms::{Vmm, VmmChoice};
use crate::plan::vm::{VmPlan, VmRequest, plan};
use crate::units::format_size;

/// Tells the guest's agent to write its marks to the console.
const MARKS_ON_CONSOLE: &str = "lmb.marks=console";

/// What varies beside memory.
pub(super) struct Machine<'a> {
    pub(super) vmm: &'a Vmm,
    pub(super) hotplug: Hotplug,
    pub(super) cpus: u32,
    pub(super) guest_block: u64,
    pub(super) slot_size: u64,
    pub(super) entry: &'a str,
    pub(super) hugepages: &'a str,
}

impl Machine<'_> {
    /// Why this machine cannot be made so, if it cannot.
    pub(super) fn cannot(&self, config: &Config) -> Option<String> {
        let window = config.max_memory_bytes > config.memory_bytes;
        match (self.vmm.choice, self.hotplug) {
            (VmmChoice::QemuMicrovm, _) if window => Some(
                "qemu-microvm has no memory devices; it boots with all memory as RAM only"
                    .to_owned(),
            ),
            (choice, Hotplug::Acpi) if choice != VmmChoice::LmbVmm => Some(format!(
                "{} is measured with virtio-mem alone, not with acpi",
                choice.name()
            )),
            (_, Hotplug::Acpi) => self.refused(config).map(|reason| {
                let lmb = format_size(config.lmb_size_bytes);
                format!("acpi with an LMB of {lmb}: {reason}")
            }),
            _ => None,
        }
    }

    /// lmb-vmm's own reason against a layout, as far as it can be told without
    /// the host.
    fn refused(&self, config: &Config) -> Option<String> {
        let request = VmRequest {
            memory_bytes: config.memory_bytes,
            max_memory_bytes: Some(config.max_memory_bytes),
            guest_block: match self.guest_block {
                0 => GuestBlock::Follow,
                size => GuestBlock::Fixed(Bytes::new(size)),
            },
            slot_size_bytes: (self.slot_size > 0).then_some(self.slot_size),
            hotplug: self.hotplug,
        };
        match plan(&request, config.lmb_size_bytes) {
            VmPlan::Row(_) => None,
            VmPlan::Refused { refused, .. } => Some(refused),
        }
    }

    /// The case of this machine with that memory.
    pub(super) fn case(
        &self,
        shape: &Shape,
        lmb: u64,
        guest: usize,
        kernel: &Kernel,
        cmdline: &str,
    ) -> Result<Case, SweepError> {
        let choice = self.vmm.choice;
        let lmb = match choice {
            // The list of sizes is not for it: all of them are this one.
            VmmChoice::CloudHypervisor => limits::CLOUD_HYPERVISOR_BLOCK_BYTES,
            _ => lmb,
        };
        let whole = |bytes: u64| {
            bytes
                .checked_next_multiple_of(lmb)
                .ok_or(SweepError::TooLarge)
        };
        let own = choice == VmmChoice::LmbVmm;
        let memory_bytes = whole(shape.boot)?;
        let empty = shape.empty_lmbs.checked_mul(lmb);
        let window = empty
            .and_then(|empty| empty.checked_add(whole(shape.window).ok()?))
            .ok_or(SweepError::TooLarge)?;
        let slot_size_bytes = match choice {
            VmmChoice::LmbVmm => self.slot_size,
            VmmChoice::Firecracker => {
                limits::firecracker_slot(self.vmm, self.slot_size, lmb, window)?
            }
            _ => 0,
        };
        let config = Config {
            vmm: choice.name().to_owned(),
            vmm_version: self.vmm.version.clone(),
            hotplug: self.hotplug.name().to_owned(),
            kernel: kernel.version.clone(),
            // QEMU starts a bzImage by its own boot protocol.
            kernel_entry: match choice.is_qemu() {
                true => "bzimage",
                false => self.entry,
            }
            .to_owned(),
            cmdline: match choice.is_remote() {
                true => format!("{cmdline} {MARKS_ON_CONSOLE}"),
                false => cmdline.to_owned(),
            },
            cpus: self.cpus,
            memory_bytes,
            max_memory_bytes: memory_bytes
                .checked_add(window)
                .ok_or(SweepError::TooLarge)?,
            plugged_at_boot_bytes: whole(shape.plugged_at_boot)?,
            lmb_size_bytes: lmb,
            // The others have no such option.
            guest_block_option_bytes: if own { self.guest_block } else { 0 },
            slot_size_bytes,
            hugepages: match choice {
                // It asks for none, and the host's own setting holds.
                VmmChoice::Firecracker => "default",
                _ => self.hugepages,
            }
            .to_owned(),
            load: shape.load.name().to_owned(),
        };
        Ok(Case {
            config,
            guest,
            task: shape.task,
        })
    }
}
