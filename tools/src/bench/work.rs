//! What is to be run: a sweep taken apart into single jobs, and the messages
//! by which they are reported. Both travel as JSON between the `lmb` that the
//! user started and the one inside the virtual KVM host.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::sample::{Clock, Config, Guest, Measured, Sample};

/// One guest's life: booted, measured, ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// What is run.
    pub config: Config,
    /// Which of [`Work::guests`] it boots.
    pub guest: usize,
    /// What is measured.
    pub task: Task,
    /// Round, from 0; warm-up rounds count by themselves.
    pub round: u32,
    /// Whether it belongs to a warm-up round.
    pub warm_up: bool,
    /// Position in its round, from 0.
    pub position: u32,
}

/// What is measured in a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "task", rename_all = "snake_case")]
pub enum Task {
    /// The boot.
    Boot,
    /// Adding and removing memory, up to twice.
    Dlpar {
        /// How much.
        amount_bytes: u64,
        /// Deadline of each step.
        timeout_ms: u64,
        /// Memory that the load holds; 0 without a load.
        load_bytes: u64,
        /// How many of add, remove, add, remove are done without a load.
        steps: usize,
    },
}

/// Kernel and initramfs of a guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestFiles {
    /// Kernel image.
    pub kernel: PathBuf,
    /// Initramfs.
    pub initrd: PathBuf,
    /// The kernel unpacked, for VMMs that take no other.
    pub vmlinux: Option<PathBuf>,
}

/// The programs a sweep starts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Programs {
    /// lmb-vmm.
    pub lmb_vmm: Option<PathBuf>,
    /// qemu-system-x86_64.
    pub qemu: Option<PathBuf>,
    /// Where QEMU's firmware lies, if not where QEMU looks for it.
    pub qemu_firmware: Option<PathBuf>,
    /// firecracker.
    pub firecracker: Option<PathBuf>,
    /// cloud-hypervisor.
    pub cloud_hypervisor: Option<PathBuf>,
}

/// A list of jobs with all that they share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// [`Sample::sweep`].
    pub sweep: String,
    /// [`Sample::revision`].
    pub revision: String,
    /// Whether this machine's own KVM runs it.
    pub native: bool,
    /// What the host's clock counts.
    pub clock: Clock,
    /// The programs.
    pub programs: Programs,
    /// The guests.
    pub guests: Vec<GuestFiles>,
    /// The jobs, in their order.
    pub jobs: Vec<Job>,
    /// What guests of a configuration said in an earlier part of the sweep.
    pub facts: Vec<(Config, Guest)>,
    /// How long a boot may take by the host's clock.
    pub boot_timeout_ms: u64,
}

/// What the runner reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "snake_case")]
pub enum Message {
    /// A job (by its number in [`Work::jobs`]) begins.
    Begins {
        /// The job.
        job: usize,
    },
    /// A job's samples.
    Samples {
        /// The job.
        job: usize,
        /// One for a boot, one for each step of the other kind.
        samples: Vec<Sample>,
    },
    /// A job gave no sample.
    Failed {
        /// The job.
        job: usize,
        /// Why.
        error: String,
    },
}

/// What is being measured in a job, apart from its configuration: two samples
/// that agree in this too are repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A boot.
    Boot,
    /// An add or remove of this many bytes.
    Dlpar(u64),
}

impl Job {
    /// What is measured.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self.task {
            Task::Boot => Kind::Boot,
            Task::Dlpar { amount_bytes, .. } => Kind::Dlpar(amount_bytes),
        }
    }
}

impl Kind {
    /// What a sample measured.
    #[must_use]
    pub fn of(sample: &Sample) -> Self {
        match sample.measured {
            Measured::Boot { .. } => Self::Boot,
            Measured::Dlpar { amount_bytes, .. } => Self::Dlpar(amount_bytes),
        }
    }
}
