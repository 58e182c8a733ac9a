//! What the process can still do while a guest runs.
//!
//! States: open → [`Sandbox::enter`] (once, by the main thread, before any
//! other exists) → each thread started later narrows itself further as it
//! starts, with [`Sandbox::confine`]. There is no way back. With
//! `--sandbox off` nothing is ever narrowed.
//!
//! Everything that has a name is opened before: `/dev/kvm`, the control socket,
//! kernel, initrd and serial output ([`crate::files`]), the views of /proc and
//! /sys ([`lmb_memory::open_host_views`]). Afterwards no thread can open a
//! file, and the one name that can be touched is the control socket's, which is
//! removed at the end. Four layers, each of which holds without the others:
//!
//! 1. no_new_privs: no program started from here gains rights.
//! 2. No capabilities.
//! 3. Landlock, where the kernel has it: no access to the file system, to TCP,
//!    or to other processes' abstract sockets and signals.
//! 4. seccomp: a list of system calls for each kind of thread ([`filters`]).

mod filters;
mod landlock;
mod privileges;
mod trap;

use std::io;
use std::path::Path;
use std::sync::Arc;

use seccompiler::{BpfProgram, apply_filter};

use crate::protocol::SandboxInfo;

/// A kind of thread, by what it may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadKind {
    /// The event loop; it builds the machine and starts all other threads.
    Main,
    /// A vCPU.
    Vcpu,
    /// The effect worker of a window.
    Effects,
    /// Populates memory.
    Prefault,
}

impl ThreadKind {
    fn name(self) -> &'static str {
        match self {
            Self::Main => "main",
            Self::Vcpu => "vCPU",
            Self::Effects => "effects",
            Self::Prefault => "prefault",
        }
    }
}

/// The process or a thread could not be narrowed, and must not go on.
#[derive(Debug, thiserror::Error)]
#[error(
    "the sandbox cannot {what}: {reason}; this host forbids or lacks it, and --sandbox off runs \
     without any of it"
)]
pub struct SandboxError {
    what: &'static str,
    reason: String,
}

impl SandboxError {
    fn new(what: &'static str, reason: impl ToString) -> Self {
        Self {
            what,
            reason: reason.to_string(),
        }
    }
}

impl From<SandboxError> for io::Error {
    fn from(error: SandboxError) -> Self {
        Self::other(error)
    }
}

/// The filters of the threads to come; none if the sandbox is off.
#[derive(Clone, Debug, Default)]
pub struct Sandbox(Option<Arc<Filters>>);

#[derive(Debug)]
struct Filters {
    vcpu: BpfProgram,
    effects: BpfProgram,
    prefault: BpfProgram,
}

impl Sandbox {
    /// No sandbox.
    #[must_use]
    pub fn off() -> Self {
        Self::default()
    }

    /// Narrows the calling thread, and with it all threads it will start.
    /// `socket` is the control socket, whose name can be removed afterwards.
    ///
    /// # Errors
    /// When a layer cannot be had; only Landlock may be missing. The process is
    /// then narrowed in part.
    pub fn enter(socket: Option<&Path>) -> Result<(Self, SandboxInfo), SandboxError> {
        let filters = Filters {
            vcpu: filters::compile(ThreadKind::Vcpu)?,
            effects: filters::compile(ThreadKind::Effects)?,
            prefault: filters::compile(ThreadKind::Prefault)?,
        };
        let (main, refusals) = (
            filters::compile(ThreadKind::Main)?,
            filters::compile_refusals()?,
        );
        trap::watch()?;
        privileges::drop_all()?;
        let landlock_abi = landlock::restrict(socket)?;
        // The first filter must leave a way to install the second.
        apply(&refusals)?;
        apply(&main)?;
        let info = SandboxInfo {
            enabled: true,
            no_new_privs: true,
            capabilities_dropped: true,
            seccomp: true,
            landlock_abi,
        };
        Ok((Self(Some(Arc::new(filters))), info))
    }

    /// Narrows the calling thread to its kind, for good. Nothing for the main
    /// thread, which [`Sandbox::enter`] has narrowed.
    ///
    /// # Errors
    /// When the kernel refuses the filter; the thread must end then.
    pub fn confine(&self, kind: ThreadKind) -> Result<(), SandboxError> {
        let Some(filters) = &self.0 else {
            return Ok(());
        };
        trap::name_thread(kind.name());
        match kind {
            ThreadKind::Main => Ok(()),
            ThreadKind::Vcpu => apply(&filters.vcpu),
            ThreadKind::Effects => apply(&filters.effects),
            ThreadKind::Prefault => apply(&filters.prefault),
        }
    }
}

fn apply(program: &BpfProgram) -> Result<(), SandboxError> {
    apply_filter(program).map_err(|error| SandboxError::new("install a seccomp filter", error))
}
