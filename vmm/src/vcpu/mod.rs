//! vCPUs: one thread each, which alone owns its `VcpuFd`.
//!
//! States of a thread: waiting at the start gate → running → ended. It ends
//! when it is told to (`VcpuSet::stop`) or when KVM reports something that the
//! guest cannot go on from; it says which through [`Shared`] and never
//! acts on it: that is the event loop's part.

pub mod cpuid;
mod kvm_run;
pub mod regs;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::thread::JoinHandle;

use kvm_ioctls::{VcpuExit, VcpuFd};
use vmm_sys_util::signal::{Killable, register_signal_handler};

use crate::bus::Bus;
use crate::sandbox::{Sandbox, ThreadKind};
use crate::timeline::stamp;
use kvm_run::ImmediateExit;
use lmb_devices::{OwnerWake, Stamp};

/// Offset from SIGRTMIN of the signal that interrupts KVM_RUN.
const KICK_SIGNAL_OFFSET: i32 = 0;

/// Why a vCPU ended by itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VcpuFailure {
    /// Triple fault.
    #[error(
        "the guest triple-faulted on vCPU {0}: it has no way on (a kernel that does not fit \
         this CPU or a damaged one)"
    )]
    Shutdown(u32),
    /// KVM_EXIT_INTERNAL_ERROR.
    #[error(
        "KVM stopped vCPU {cpu} with an internal error (suberror {suberror}){hint}; rip was \
         {rip:#x}"
    )]
    Internal {
        /// Number of the vCPU.
        cpu: u32,
        /// KVM's number.
        suberror: u32,
        /// Instruction pointer.
        rip: u64,
        /// What it usually means.
        hint: &'static str,
    },
    /// KVM_EXIT_FAIL_ENTRY.
    #[error(
        "the processor refused to enter the guest on vCPU {cpu} (reason {reason:#x}): the host's \
         hardware virtualization is faulty or incomplete"
    )]
    FailEntry {
        /// Number of the vCPU.
        cpu: u32,
        /// The hardware's reason.
        reason: u64,
    },
    /// The guest touched memory without host memory behind it.
    #[error(
        "the guest touched memory that it does not have on vCPU {cpu} ({place}): unplugged \
         memory of the hotplug window is out of reach; rip was {rip:#x}"
    )]
    MemoryFault {
        /// Number of the vCPU.
        cpu: u32,
        /// Guest-physical address, where KVM tells it.
        place: String,
        /// Instruction pointer.
        rip: u64,
    },
    /// KVM_RUN failed.
    #[error("KVM_RUN failed on vCPU {cpu}: {error}")]
    Run {
        /// Number of the vCPU.
        cpu: u32,
        /// The system's reason.
        error: String,
    },
    /// The thread could not be confined.
    #[error("vCPU {cpu} did not start: {error}")]
    Sandbox {
        /// Number of the vCPU.
        cpu: u32,
        /// The reason.
        error: String,
    },
    /// An exit that this VMM never asks for.
    #[error("KVM stopped vCPU {cpu} for a reason this VMM does not know: {exit}")]
    Unexpected {
        /// Number of the vCPU.
        cpu: u32,
        /// The exit.
        exit: String,
    },
}

/// What all vCPU threads of one machine share with the event loop.
pub struct Shared {
    bus: Bus,
    stop: AtomicBool,
    first_entry: OnceLock<Stamp>,
    exits: AtomicU64,
    failure: Mutex<Option<VcpuFailure>>,
    wake: Arc<dyn OwnerWake>,
}

impl Shared {
    /// State for one machine.
    pub fn new(bus: Bus, wake: Arc<dyn OwnerWake>) -> Self {
        Self {
            bus,
            stop: AtomicBool::new(false),
            first_entry: OnceLock::new(),
            exits: AtomicU64::new(0),
            failure: Mutex::new(None),
            wake,
        }
    }

    /// When the boot vCPU first entered the guest.
    pub fn first_entry(&self) -> Option<Stamp> {
        self.first_entry.get().copied()
    }

    /// Exits to user space so far, over all vCPUs.
    pub fn exits(&self) -> u64 {
        self.exits.load(Ordering::Relaxed)
    }

    /// The first failure reported, once.
    pub fn take_failure(&self) -> Option<VcpuFailure> {
        self.failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    fn report(&self, failure: VcpuFailure) {
        self.failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get_or_insert(failure);
        self.wake.wake();
    }
}

/// The running vCPU threads of one machine.
pub struct VcpuSet {
    shared: Arc<Shared>,
    handles: Vec<VcpuHandle>,
}

/// One thread, and its vCPU. The thread holds the lock for as long as it runs;
/// this handle keeps the vCPU, and with it what `exit` points to, also when
/// the thread ended by itself.
struct VcpuHandle {
    exit: ImmediateExit,
    thread: JoinHandle<()>,
    _vcpu: Arc<Mutex<VcpuFd>>,
}

impl VcpuSet {
    /// Starts one thread for each vCPU, confined by `sandbox`; all enter the
    /// guest together.
    ///
    /// # Errors
    /// When a thread or the kick signal's handler cannot be had.
    pub fn start(
        vcpus: Vec<VcpuFd>,
        shared: Arc<Shared>,
        sandbox: &Sandbox,
    ) -> std::io::Result<Self> {
        extern "C" fn ignore(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {}
        register_signal_handler(kick_signal(), ignore)
            .map_err(|errno| std::io::Error::from_raw_os_error(errno.errno()))?;
        // Threads wait for the read side; without all of them none runs.
        let gate = Arc::new(RwLock::new(()));
        let closed = gate.write().unwrap_or_else(PoisonError::into_inner);
        let mut set = Self {
            shared,
            handles: Vec::with_capacity(vcpus.len()),
        };
        for (cpu, mut vcpu) in (0_u32..).zip(vcpus) {
            let exit = ImmediateExit::new(&mut vcpu);
            let shared = Arc::clone(&set.shared);
            let gate = Arc::clone(&gate);
            let vcpu = Arc::new(Mutex::new(vcpu));
            let own = Arc::clone(&vcpu);
            let sandbox = sandbox.clone();
            let spawned = std::thread::Builder::new()
                .name(format!("vcpu{cpu}"))
                .spawn(move || {
                    if let Err(error) = sandbox.confine(ThreadKind::Vcpu) {
                        let error = error.to_string();
                        return shared.report(VcpuFailure::Sandbox { cpu, error });
                    }
                    let mut vcpu = own.lock().unwrap_or_else(PoisonError::into_inner);
                    drop(gate.read().unwrap_or_else(PoisonError::into_inner));
                    run(cpu, &mut vcpu, &shared);
                });
            match spawned {
                Ok(thread) => set.handles.push(VcpuHandle {
                    exit,
                    thread,
                    _vcpu: vcpu,
                }),
                Err(error) => {
                    set.shared.stop.store(true, Ordering::SeqCst);
                    drop(closed);
                    set.stop();
                    return Err(error);
                }
            }
        }
        drop(closed);
        Ok(set)
    }

    /// State shared with the threads.
    pub fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Takes every vCPU out of the guest and waits for its thread.
    pub fn stop(self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for handle in &self.handles {
            handle.exit.request();
            if let Err(error) = handle.thread.kill(kick_signal()) {
                tracing::debug!("a vCPU thread had ended: {error}");
            }
        }
        for handle in self.handles {
            if handle.thread.join().is_err() {
                tracing::error!("a vCPU thread panicked");
            }
        }
    }
}

/// The signal that takes a vCPU out of the guest.
pub(crate) fn kick_signal() -> i32 {
    vmm_sys_util::signal::SIGRTMIN() + KICK_SIGNAL_OFFSET
}

fn run(cpu: u32, vcpu: &mut VcpuFd, shared: &Shared) {
    if cpu == 0 {
        let _ = shared.first_entry.set(stamp());
    }
    while !shared.stop.load(Ordering::SeqCst) {
        if let Err(failure) = step(cpu, vcpu, shared) {
            shared.report(failure);
            return;
        }
    }
}

/// One stay in the guest and the exit that ended it.
fn step(cpu: u32, vcpu: &mut VcpuFd, shared: &Shared) -> Result<(), VcpuFailure> {
    let exit = vcpu.run();
    shared.exits.fetch_add(1, Ordering::Relaxed);
    match exit {
        Ok(VcpuExit::IoOut(port, data)) => shared.bus.io_write(port, data),
        Ok(VcpuExit::IoIn(port, data)) => shared.bus.io_read(port, data),
        Ok(VcpuExit::MmioWrite(address, data)) => shared.bus.mmio_write(address, data),
        Ok(VcpuExit::MmioRead(address, data)) => shared.bus.mmio_read(address, data),
        Ok(VcpuExit::Intr | VcpuExit::Hlt) => {}
        Ok(VcpuExit::Shutdown) => return Err(VcpuFailure::Shutdown(cpu)),
        Ok(VcpuExit::FailEntry(reason, _)) => return Err(VcpuFailure::FailEntry { cpu, reason }),
        Ok(VcpuExit::MemoryFault { gpa, .. }) => {
            let place = format!("guest-physical address {gpa:#x}");
            return Err(memory_fault(cpu, vcpu, place));
        }
        Ok(VcpuExit::InternalError) => return Err(internal_error(cpu, vcpu)),
        Ok(other) => {
            return Err(VcpuFailure::Unexpected {
                cpu,
                exit: format!("{other:?}"),
            });
        }
        Err(error) => match error.errno() {
            libc::EINTR | libc::EAGAIN => {}
            libc::EFAULT => {
                let place = "this kernel's KVM does not tell the address".to_owned();
                return Err(memory_fault(cpu, vcpu, place));
            }
            _ => {
                return Err(VcpuFailure::Run {
                    cpu,
                    error: error.to_string(),
                });
            }
        },
    }
    Ok(())
}

fn memory_fault(cpu: u32, vcpu: &VcpuFd, place: String) -> VcpuFailure {
    VcpuFailure::MemoryFault {
        cpu,
        place,
        rip: rip(vcpu),
    }
}

fn internal_error(cpu: u32, vcpu: &mut VcpuFd) -> VcpuFailure {
    let suberror = kvm_run::internal_suberror(vcpu);
    let hint = if suberror == 1 {
        ": it met an instruction that it cannot emulate, which happens where KVM works without \
         hardware virtualization; run the guest inside the virtual KVM host (`lmb host run`)"
    } else {
        ""
    };
    VcpuFailure::Internal {
        cpu,
        suberror,
        rip: rip(vcpu),
        hint,
    }
}

fn rip(vcpu: &VcpuFd) -> u64 {
    vcpu.get_regs().map_or(0, |regs| regs.rip)
}
