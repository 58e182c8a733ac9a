//! The virtual KVM host: a Debian kernel with `/dev/kvm` inside QEMU, which
//! emulates AMD's SVM in software. It needs no hardware virtualization and no
//! privileges.
//!
//! One [`HostRun`] is one boot: it starts, runs one command, and powers off.
//! All it needs is in its initramfs; nothing of it remains. Three serial ports
//! leave it: the kernel's console goes to a file that is shown when the host
//! fails, the command's output is streamed, and the third carries what the
//! host's own `/init` reports: `ready`, `failed TEXT`, `exit CODE`. The command
//! reads nothing, or what is [attached](attach). The run is bounded by wall
//! time; past it the processors' state is saved and QEMU is killed. The thread
//! in [`HostRun::run`] owns the QEMU process.

mod attach;
pub mod cli;
pub mod detect;
mod image;
mod monitor;
mod qemu;
mod run;

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

pub use attach::{Attached, HostEnd, attach};

use crate::initramfs::FileArgument;
use crate::packages::{Cache, KernelPackage};

/// Exit code of `lmb host run` when the time ran out, as timeout(1) has it.
pub const EXIT_TIMEOUT: u8 = 124;
/// Exit code of `lmb host run` when the host itself failed.
pub const EXIT_HOST_FAILED: u8 = 125;

/// Exit code of `lmb host run` when its output has no reader any more: 128 and
/// the number of SIGPIPE, as a shell has it.
pub const EXIT_NO_READER: u8 = 141;

/// What the host's clock counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Clock {
    /// Time as it passes: for tests
    #[default]
    Wall,
    /// Executed instructions, 1 ns each, whatever else this machine does: for
    /// measurements (one CPU only)
    Instructions,
}

/// How QEMU runs the host's CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Threads {
    /// All in one thread, in turns
    Single,
    /// Each in a thread of its own
    Multi,
}

/// The distance between two NUMA nodes, as ACPI's SLIT has it: 10 is a node's
/// own, 255 is out of reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Distance {
    /// One node.
    pub a: u32,
    /// The other.
    pub b: u32,
    /// The distance both ways, 11..=255.
    pub value: u8,
}

impl FromStr for Distance {
    type Err = HostError;

    fn from_str(text: &str) -> Result<Distance, HostError> {
        let parse = || {
            let (pair, value) = text.split_once('=')?;
            let (a, b) = pair.split_once('-')?;
            Some(Distance {
                a: a.trim().parse().ok()?,
                b: b.trim().parse().ok()?,
                value: value.trim().parse().ok()?,
            })
        };
        parse().ok_or_else(|| {
            HostError::Refused(format!("`{text}` is no distance; write it like 0-1=20"))
        })
    }
}

/// One boot of the virtual KVM host, and the command that runs in it.
#[derive(Clone, Debug)]
pub struct HostRun {
    /// The host's kernel. It needs kvm and kvm_amd as modules or built in.
    pub kernel: KernelPackage,
    /// The emulator: `qemu-system-x86_64`.
    pub qemu: PathBuf,
    /// CPUs, at least 1; exactly 1 by the instruction clock.
    pub cpus: u32,
    /// How QEMU runs them; `None` takes [`Threads::Single`] for one CPU and
    /// [`Threads::Multi`] for more.
    pub threads: Option<Threads>,
    /// What the host's clock counts.
    pub clock: Clock,
    /// All of the host's memory, in MiB, at least 512. Its file system is in
    /// it too.
    pub memory_mib: u64,
    /// Width of the host's physical addresses, 36..=52 bits.
    pub phys_bits: u8,
    /// Memory of each NUMA node in MiB, summing up to `memory_mib`; empty for
    /// a host without NUMA.
    pub nodes_mib: Vec<u64>,
    /// Distances between nodes; 20 where none is named.
    pub distances: Vec<Distance>,
    /// Huge pages of 2 MiB that are reserved at boot.
    pub hugepages_2m: u64,
    /// Huge pages of 1 GiB that are reserved at boot.
    pub hugepages_1g: u64,
    /// Wall time from the start of QEMU to its end.
    pub limit: Duration,
    /// Files put into the host.
    pub files: Vec<FileArgument>,
    /// Environment of the command beside `PATH`, `HOME` and `LMB_HOST_KIND`.
    pub environment: Vec<(String, OsString)>,
    /// The command and its arguments.
    pub command: Vec<OsString>,
}

/// Memory of the host when nothing else is asked for, in MiB.
pub const DEFAULT_MEMORY_MIB: u64 = 3072;
/// Width of the host's addresses when nothing else is asked for, in bits.
pub const DEFAULT_PHYS_BITS: u8 = 46;
/// Wall time of a run when nothing else is asked for.
pub const DEFAULT_LIMIT: Duration = Duration::from_secs(600);

impl HostRun {
    /// A host with the defaults: one CPU, 3 GiB, wall clock, ten minutes.
    #[must_use]
    pub fn new(kernel: KernelPackage, qemu: PathBuf, command: Vec<OsString>) -> HostRun {
        HostRun {
            kernel,
            qemu,
            cpus: 1,
            threads: None,
            clock: Clock::Wall,
            memory_mib: DEFAULT_MEMORY_MIB,
            phys_bits: DEFAULT_PHYS_BITS,
            nodes_mib: Vec::new(),
            distances: Vec::new(),
            hugepages_2m: 0,
            hugepages_1g: 0,
            limit: DEFAULT_LIMIT,
            files: Vec::new(),
            environment: Vec::new(),
            command,
        }
    }

    /// Boots the host, runs the command, and returns its exit code (128 and
    /// the signal's number when a signal ended it). `output` gets what the
    /// command writes to its standard output and error, as it comes; when it
    /// fails, the host is stopped. `cache` takes the state of a host that
    /// failed.
    ///
    /// # Errors
    /// When an option is refused, the host does not get as far as running the
    /// command, the time runs out, or `output` fails.
    pub fn run(
        &self,
        cache: &Cache,
        output: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<u8, HostError> {
        run::run(self, cache, None, output)
    }

    /// As [`HostRun::run`], with the command's standard input from the other
    /// end of `end`, which can also stop the run. QEMU is then in a process
    /// group of its own, so that a signal from the terminal is the caller's to
    /// handle.
    ///
    /// # Errors
    /// As [`HostRun::run`], and when it was stopped.
    pub fn run_attached(
        &self,
        cache: &Cache,
        end: HostEnd,
        output: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<u8, HostError> {
        run::run(self, cache, Some(end), output)
    }

    /// As [`HostRun::run`], with the output in lines, without their ends. A
    /// last line without end is passed too.
    ///
    /// # Errors
    /// As [`HostRun::run`].
    pub fn run_lines(&self, cache: &Cache, line: &mut dyn FnMut(&str)) -> Result<u8, HostError> {
        let mut pending = Vec::new();
        let code = self.run(cache, &mut |bytes| {
            pending.extend_from_slice(bytes);
            while let Some(end) = pending.iter().position(|byte| *byte == b'\n') {
                line(&String::from_utf8_lossy(&pending[..end]));
                pending.drain(..=end);
            }
            Ok(())
        });
        if !pending.is_empty() {
            line(&String::from_utf8_lossy(&pending));
        }
        code
    }

    /// How QEMU runs the CPUs.
    fn threads(&self) -> Threads {
        match self.threads {
            Some(threads) => threads,
            None if self.cpus > 1 => Threads::Multi,
            None => Threads::Single,
        }
    }
}

/// Why a run in the virtual KVM host gave no exit code.
#[derive(Debug, Error)]
pub enum HostError {
    /// An option, or a combination of them, that cannot work.
    #[error("{0}")]
    Refused(String),
    /// Something needed for the start is missing or failed.
    #[error("cannot start the virtual KVM host: {0:#}")]
    Start(anyhow::Error),
    /// QEMU ended without the command's exit code.
    #[error("the virtual KVM host failed: {reason}{}", .log.in_words())]
    Failed {
        /// What is known of the cause.
        reason: String,
        /// What the host's console and QEMU said.
        log: FailureLog,
    },
    /// The command's output could not be passed on.
    #[error("cannot write the command's output, so the virtual KVM host was stopped: {0}")]
    Output(io::Error),
    /// [`Attached::stop`] was called.
    #[error("the virtual KVM host was stopped")]
    Stopped,
    /// The wall-time limit passed.
    #[error(
        "the virtual KVM host did not end within {limit_s} s and was stopped {stage}; raise \
         --limit-s if the work takes that long{}", .log.in_words()
    )]
    TimedOut {
        /// The limit, in seconds.
        limit_s: u64,
        /// How far it had come.
        stage: &'static str,
        /// Where the processors' state and the console log are.
        log: FailureLog,
    },
}

/// What is kept of a host that failed.
#[derive(Debug, Default)]
pub struct FailureLog {
    /// The directory with `console.log`, `qemu.log` and, after a timeout,
    /// `state.txt` with the processors' registers. `None` when it could not
    /// be written.
    pub directory: Option<PathBuf>,
    /// The last lines of the console and of QEMU's own messages.
    pub tail: String,
}

impl FailureLog {
    fn in_words(&self) -> String {
        let mut text = String::new();
        if let Some(directory) = &self.directory {
            text.push_str("\nIts console and state are kept in ");
            text.push_str(&directory.display().to_string());
        }
        if !self.tail.is_empty() {
            text.push_str("\nThe last it said:\n");
            text.push_str(&self.tail);
        }
        text
    }
}
