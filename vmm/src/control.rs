//! What clients may see of the machine and ask of it.

use lmb_devices::PowerRequest;

use crate::api::VmControl;
use crate::config::VmConfig;
use crate::machine::Machine;
use crate::protocol::{BootTimeline, EntryKind, KernelInfo, SandboxInfo, VmInfo, VmState};

/// What clients may ask of the machine; carried out by the loop afterwards.
pub struct Control {
    /// State of the VM.
    pub state: VmState,
    /// vCPUs.
    pub cpus: u32,
    /// Kernel and how it was entered.
    pub kernel: KernelInfo,
    /// What a client asked for, until the event loop takes it.
    pub asked: Option<PowerRequest>,
    /// Exits to user space in this boot.
    pub vcpu_exits: u64,
    /// What the process has given up.
    pub sandbox: SandboxInfo,
}

impl VmControl for Control {
    fn vm_info(&self, boot: &BootTimeline) -> VmInfo {
        VmInfo {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            state: self.state,
            cpus: self.cpus,
            kernel: self.kernel.clone(),
            boot: boot.clone(),
            vcpu_exits: self.vcpu_exits,
            sandbox: self.sandbox,
        }
    }

    fn power_off(&mut self) {
        self.asked = Some(PowerRequest::Off);
    }

    fn reset(&mut self) {
        self.asked.get_or_insert(PowerRequest::Reset);
    }
}

/// What a machine runs, for status.
#[must_use]
pub fn kernel_info(config: &VmConfig, machine: &Machine) -> KernelInfo {
    KernelInfo {
        path: config
            .kernel
            .as_deref()
            .map(|path| path.display().to_string())
            .unwrap_or_default(),
        version: machine.kernel_version.clone(),
        entry: machine.entry.kind,
        kaslr: machine.entry.kind == EntryKind::Bzimage && config.kaslr(),
        cmdline: config.cmdline.clone(),
    }
}
