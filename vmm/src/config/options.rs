//! The VMM's options, as flags and as the fields of a configuration file.
//!
//! One struct serves both, so that they cannot drift apart: every field is
//! optional here, and a flag overrides the file's field of the same name
//! (`--lmb-size` is `lmb_size`).

use std::num::NonZero;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use lmb_memory::{Bytes, Hotplug, PageSize};
use serde::{Deserialize, Serialize};

use super::ConfigError;

/// Which entry of the kernel is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KernelEntry {
    /// The ELF entry: a bzImage is unpacked on the host, which is faster
    Auto,
    /// The ELF (PVH) entry; without KASLR
    Elf,
    /// The bzImage's 64-bit entry: the guest unpacks itself, with KASLR
    Bzimage,
}

/// How much is logged to standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Only what ends the VM
    Error,
    /// And what is wrong but survivable
    Warn,
    /// And what happens to the VM
    Info,
    /// And each step of it
    Debug,
    /// And each request of the guest
    Trace,
}

/// Whether the process gives up what it does not need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SandboxOption {
    /// Nothing can be opened, started or connected while the guest runs
    On,
    /// All rights of the user stay, for debugging
    Off,
}

/// Every option that describes a VM.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// Kernel: a bzImage (gzip, lz4, xz or zstd) or an ELF vmlinux with PVH
    #[arg(long, value_name = "FILE")]
    pub kernel: Option<PathBuf>,

    /// Initial RAM disk. Default: none
    #[arg(long, value_name = "FILE")]
    pub initrd: Option<PathBuf>,

    /// Kernel command line, at most 2047 bytes.
    /// Default: "console=ttyS0 quiet memhp_default_state=online_movable"
    #[arg(long, value_name = "TEXT")]
    pub cmdline: Option<String>,

    /// Number of vCPUs, 1 to 254. Default: 1
    #[arg(long, value_name = "N")]
    pub cpus: Option<u32>,

    /// Memory present at boot, rounded up to whole LMBs. Default: 1G
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<Bytes>,

    /// The most memory the guest can have, boot memory included: the hotplug
    /// window holds the difference. A multiple of the LMB size.
    /// Default: no window
    #[arg(long, value_name = "SIZE")]
    pub max_memory: Option<Bytes>,

    /// Memory requested from the start, boot memory included: the guest plugs
    /// what exceeds boot memory while it boots. Default: boot memory
    #[arg(long, value_name = "SIZE")]
    pub requested_memory: Option<Bytes>,

    /// Size of a Logical Memory Block, the unit in which memory is added and
    /// removed: a power of two from 2M to 4G. Default: 256M
    #[arg(long, value_name = "SIZE")]
    pub lmb_size: Option<Bytes>,

    /// The memory block size that the guest's Linux shall use: a power of two
    /// from 128M to 2G, or "follow" for the LMB size within that range.
    /// Default: follow
    #[arg(long, value_name = "SIZE|follow")]
    pub guest_block_size: Option<GuestBlockOption>,

    /// Size of a KVM memory slot of the window: a power of two, at least the
    /// LMB size. Default: 1G or the LMB size, larger for large windows
    #[arg(long, value_name = "SIZE")]
    pub slot_size: Option<Bytes>,

    /// How the guest takes the window's memory: virtio-mem (a pool, with the
    /// guest's driver) or acpi (a memory device for each LMB, at most 4096).
    /// Default: virtio-mem
    #[arg(long, value_name = "virtio-mem|acpi")]
    pub hotplug: Option<Hotplug>,

    /// Host pages behind guest memory: off (4 KiB), thp (transparent), 2M or
    /// 1G (from the host's pools). Default: thp
    #[arg(long, value_name = "off|thp|2M|1G")]
    pub hugepages: Option<PageSize>,

    /// Back guest memory by a shared memfd instead of private memory.
    /// Default: private
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub shared: Option<bool>,

    /// Populate memory when it is created or plugged, not when it is touched.
    /// Default: no
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub prefault: Option<bool>,

    /// Threads that populate memory, with --prefault. Default: the host's CPUs
    #[arg(long, value_name = "N")]
    pub prefault_threads: Option<NonZero<u32>>,

    /// The guest's serial port: stdio, off, or file:PATH for its output.
    /// Default: stdio
    #[arg(long, value_name = "stdio|off|file:PATH")]
    pub serial: Option<SerialOption>,

    /// Unix socket of the control API, made with mode 0600. A stale one is
    /// replaced. Default: none
    #[arg(long, value_name = "PATH")]
    pub api_socket: Option<PathBuf>,

    /// Entry of the kernel. Default: auto
    #[arg(long, value_enum)]
    pub kernel_entry: Option<KernelEntry>,

    /// Whether the process confines itself before the guest runs (seccomp,
    /// Landlock, no capabilities). Default: on
    #[arg(long, value_enum)]
    pub sandbox: Option<SandboxOption>,

    /// How much is logged to standard error. Default: warn
    #[arg(long, value_enum)]
    pub log_level: Option<LogLevel>,
}

impl Options {
    /// Reads a configuration file.
    ///
    /// # Errors
    /// When it cannot be read or is not JSON of these fields.
    pub fn from_file(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.into(),
            source,
        })?;
        serde_json::from_str(&text).map_err(|source| ConfigError::Parse {
            path: path.into(),
            source,
        })
    }

    /// Each field from `self`, else from `base`.
    #[must_use]
    pub fn over(self, base: Self) -> Self {
        Self {
            kernel: self.kernel.or(base.kernel),
            initrd: self.initrd.or(base.initrd),
            cmdline: self.cmdline.or(base.cmdline),
            cpus: self.cpus.or(base.cpus),
            memory: self.memory.or(base.memory),
            max_memory: self.max_memory.or(base.max_memory),
            requested_memory: self.requested_memory.or(base.requested_memory),
            lmb_size: self.lmb_size.or(base.lmb_size),
            guest_block_size: self.guest_block_size.or(base.guest_block_size),
            slot_size: self.slot_size.or(base.slot_size),
            hotplug: self.hotplug.or(base.hotplug),
            hugepages: self.hugepages.or(base.hugepages),
            shared: self.shared.or(base.shared),
            prefault: self.prefault.or(base.prefault),
            prefault_threads: self.prefault_threads.or(base.prefault_threads),
            serial: self.serial.or(base.serial),
            api_socket: self.api_socket.or(base.api_socket),
            kernel_entry: self.kernel_entry.or(base.kernel_entry),
            sandbox: self.sandbox.or(base.sandbox),
            log_level: self.log_level.or(base.log_level),
        }
    }
}

/// `--guest-block-size`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum GuestBlockOption {
    /// The LMB size, held to what Linux can have.
    Follow,
    /// This size.
    Size(Bytes),
}

impl std::str::FromStr for GuestBlockOption {
    type Err = <Bytes as std::str::FromStr>::Err;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "follow" => Ok(Self::Follow),
            size => size.parse().map(Self::Size),
        }
    }
}

impl TryFrom<String> for GuestBlockOption {
    type Error = <Bytes as std::str::FromStr>::Err;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<GuestBlockOption> for String {
    fn from(option: GuestBlockOption) -> Self {
        match option {
            GuestBlockOption::Follow => "follow".to_owned(),
            GuestBlockOption::Size(size) => size.get().to_string(),
        }
    }
}

/// `--serial`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum SerialOption {
    /// Standard input and output.
    #[default]
    Stdio,
    /// Output is dropped, there is no input.
    Off,
    /// Output is appended to a file, there is no input.
    File(PathBuf),
}

/// What `--serial` takes.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is no serial target: use stdio, off or file:PATH")]
pub struct SerialOptionError(String);

impl std::str::FromStr for SerialOption {
    type Err = SerialOptionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match (text, text.strip_prefix("file:")) {
            ("stdio", _) => Ok(Self::Stdio),
            ("off", _) => Ok(Self::Off),
            (_, Some(path)) if !path.is_empty() => Ok(Self::File(path.into())),
            _ => Err(SerialOptionError(text.to_owned())),
        }
    }
}

impl TryFrom<String> for SerialOption {
    type Error = SerialOptionError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<SerialOption> for String {
    fn from(option: SerialOption) -> Self {
        match option {
            SerialOption::Stdio => "stdio".to_owned(),
            SerialOption::Off => "off".to_owned(),
            SerialOption::File(path) => format!("file:{}", path.display()),
        }
    }
}
