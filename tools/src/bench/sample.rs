//! Raw samples: what a benchmark saves first and a report is drawn from.
//!
//! One JSON object a line. A line holds one guest boot or one add or remove,
//! with everything that its figures depend on, so that lines of different runs
//! can stand in one file. Readers take lines of their own [`SCHEMA`] only and
//! say how many they passed over.
//!
//! Times are nanoseconds. On the virtual KVM host with the instruction clock
//! one nanosecond is one instruction ([`Clock::Instructions`]); such figures
//! are never shown as seconds.

use serde::{Deserialize, Serialize};

/// Version of this record; it changes when a field changes its meaning.
pub const SCHEMA: u32 = 1;

/// What a sample's nanoseconds are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Clock {
    /// Real time.
    Wall,
    /// The virtual host's instruction clock: 1 ns = 1 instruction.
    Instructions,
}

/// Where a sample was taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// `native KVM` or `virtual KVM host (QEMU … TCG …)`, as people read it.
    pub kind: String,
    /// Whether it is the machine's own KVM.
    pub native: bool,
    /// Clock of all times of the sample.
    pub clock: Clock,
    /// The host's kernel version.
    pub kernel: String,
    /// Its CPUs.
    pub cpus: u32,
    /// Its memory.
    pub memory_bytes: u64,
}

/// What was run. Two samples with equal configurations are repeats.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Config {
    /// `lmb-vmm`, `qemu-pc`, `qemu-microvm`, `firecracker`, `cloud-hypervisor`.
    pub vmm: String,
    /// Its version.
    pub vmm_version: String,
    /// `virtio-mem` or `acpi`.
    pub hotplug: String,
    /// Guest kernel's version.
    pub kernel: String,
    /// `elf` or `bzimage`.
    pub kernel_entry: String,
    /// Guest's command line.
    pub cmdline: String,
    /// vCPUs.
    pub cpus: u32,
    /// Boot memory.
    pub memory_bytes: u64,
    /// The most the guest can have; equals `memory_bytes` without a window.
    pub max_memory_bytes: u64,
    /// Memory that the guest plugs during its boot (requested before it
    /// starts); 0 where all memory is RAM from the start.
    pub plugged_at_boot_bytes: u64,
    /// LMB size (the device's block for other VMMs).
    pub lmb_size_bytes: u64,
    /// Guest memory block asked for: 0 means that it follows the LMB.
    pub guest_block_option_bytes: u64,
    /// KVM slot size, 0 where the VMM chooses.
    pub slot_size_bytes: u64,
    /// Host pages; `default` where the VMM's own way is not chosen.
    pub hugepages: String,
    /// Load in the guest: `none`, `touched`, `dirtying`, `pinned`.
    pub load: String,
}

impl Config {
    /// LMBs that a boot leaves empty: those of the window beyond what the
    /// guest plugs during its boot.
    #[must_use]
    pub fn empty_lmbs(&self) -> u64 {
        self.max_memory_bytes
            .saturating_sub(self.memory_bytes)
            .saturating_sub(self.plugged_at_boot_bytes)
            .checked_div(self.lmb_size_bytes)
            .unwrap_or(0)
    }
}

/// What the guest itself said.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Guest {
    /// `/sys/devices/system/memory/block_size_bytes`.
    pub block_size_bytes: Option<u64>,
    /// Memory-block devices after boot.
    pub memory_blocks: Option<u64>,
    /// `sub-block` or `big-block`: the virtio-mem driver's mode by its own
    /// kernel messages; `acpi` where LMBs are ACPI devices.
    pub driver_mode: Option<String>,
    /// Those messages.
    #[serde(default)]
    pub lines: Vec<String>,
    /// With ACPI: what the kernel says of its parameter
    /// memory_hotplug.memmap_on_memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memmap_on_memory: Option<String>,
    /// With ACPI: by how much MemTotal grew for each memory block of the first
    /// add. Less than a block by a 64th where blocks hold their own
    /// description.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usable_per_block_bytes: Option<u64>,
}

/// A span between two stamps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// Time from the sample's start to the end of this phase.
    pub end_ns: u64,
    /// CPU time that the VMM process (guest included) used up to then, if
    /// known: on a host of one CPU the rest of `end_ns` was waiting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_cpu_ns: Option<u64>,
}

/// Stamps of a boot, from the VMM's process start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootPhases {
    /// The VMM's own part: up to the first entry into the guest.
    pub first_entry: Option<Span>,
    /// The guest's init runs.
    pub init: Option<Span>,
    /// All memory the guest should have is usable.
    pub usable: Option<Span>,
}

/// Stamps of an add or remove, from its acceptance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DlparPhases {
    /// Announced to the guest.
    pub announced: Option<Span>,
    /// The guest's first request.
    pub first_request: Option<Span>,
    /// Device done: the answer that reached the target.
    pub device_done: Option<Span>,
    /// Whether `device_done` is late: the VMM was asked after the guest was
    /// done.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub device_late: bool,
    /// Guest usable (or, for a removal, gone).
    pub usable: Option<Span>,
    /// Whether `usable` may be late (found by looking).
    #[serde(default)]
    pub usable_late: bool,
}

/// Which operation of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// First add after boot.
    FirstAdd,
    /// First remove.
    FirstRemove,
    /// Add again, of memory that the guest had before.
    SecondAdd,
    /// Remove again.
    SecondRemove,
}

/// What was measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum Measured {
    /// A boot.
    Boot {
        /// Stamps.
        phases: BootPhases,
        /// The VMM's memory beyond the guest's (Pss), after init.
        vmm_memory_bytes: Option<u64>,
        /// Exits to user space up to init, if the VMM tells.
        exits: Option<u64>,
    },
    /// An add or remove.
    Dlpar {
        /// Which.
        step: Step,
        /// How much was asked for.
        amount_bytes: u64,
        /// How much was done.
        done_bytes: u64,
        /// Whether the target was reached before the deadline.
        complete: bool,
        /// The deadline.
        timeout_ms: u64,
        /// Stamps.
        phases: DlparPhases,
        /// Guest requests, and of them NACK and BUSY, if the VMM tells; with
        /// ACPI the LMBs that the guest was asked about, and of them those
        /// that it refused (as NACK).
        requests: Option<u64>,
        /// Answers NACK.
        nack: Option<u64>,
        /// Answers BUSY.
        busy: Option<u64>,
        /// KVM slots of the window afterwards, if the VMM tells.
        slots: Option<u64>,
    },
}

/// One line of a results file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Start of the sweep that took it, as RFC 3339 in UTC; equal for all of
    /// one sweep.
    pub sweep: String,
    /// Revision of the tool's sources (`git rev-parse`), `-dirty` behind it if
    /// they were changed; `unknown` outside a checkout.
    pub revision: String,
    /// Round within the sweep, from 0.
    pub round: u32,
    /// A warm-up, which reports leave out.
    pub warm_up: bool,
    /// Position in its round, from 0.
    pub position: u32,
    /// Where.
    pub host: Host,
    /// What.
    pub config: Config,
    /// The guest's own words.
    pub guest: Guest,
    /// The figures.
    pub measured: Measured,
}
