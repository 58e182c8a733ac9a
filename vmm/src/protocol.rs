//! What travels over the control socket: the JSON bodies of requests and
//! replies. Clients (`lmb`, the tests) know the VMM by these types alone;
//! docs/api.yaml describes them for everyone else.
//!
//! Field names carry their units. All sizes of the whole VM (`total_bytes`,
//! `target_bytes`) include boot memory; sizes of a window do not. Times are
//! nanoseconds of the host's CLOCK_MONOTONIC, which every process of the host
//! shares, so that a client can subtract its own stamps from them.

use serde::{Deserialize, Serialize};

pub use lmb_memory::Hotplug;

/// The path prefix of every call; the number changes when a reply changes
/// incompatibly.
pub const API_PREFIX: &str = "/api/v1";

/// State of the VM as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VmState {
    /// vCPUs run.
    Running,
    /// The guest asked for a reset and the VM is being built anew.
    Resetting,
    /// The guest powered off, or a client did; the process is about to end.
    Stopped,
}

/// How the kernel is entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    /// The ELF image's PVH entry (32-bit, the decompressor is skipped).
    Elf,
    /// The bzImage's 64-bit boot protocol entry: the guest decompresses itself.
    Bzimage,
}

/// The kernel a VM runs, as `GET /api/v1/vm` reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelInfo {
    /// Path given at start.
    pub path: String,
    /// Version string from the image (`linux_banner`'s version), if found.
    pub version: Option<String>,
    /// Entry in use.
    pub entry: EntryKind,
    /// Whether the guest kernel can move itself (KASLR): true only when it
    /// decompresses itself and `nokaslr` is absent.
    pub kaslr: bool,
    /// Command line as passed to the guest.
    pub cmdline: String,
}

/// Stamps of the boot, nanoseconds since `process_start_ns` of the same
/// record except that field itself, which is on the monotonic clock.
/// A field is absent until (or unless) its event happens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootTimeline {
    /// When the process started (or, after a guest reset, when the reset was
    /// asked for), on CLOCK_MONOTONIC.
    pub process_start_ns: u64,
    /// Kernel file read and, for the ELF entry of a bzImage, unpacked.
    #[serde(default)]
    pub kernel_read_ns: Option<u64>,
    /// Guest memory mapped.
    pub memory_created_ns: Option<u64>,
    /// Kernel, initrd and tables in guest memory.
    pub kernel_loaded_ns: Option<u64>,
    /// First entry into the guest of the boot vCPU.
    pub first_entry_ns: Option<u64>,
    /// Mark that a kernel writes at its entry, if it is built to.
    pub kernel_entry_ns: Option<u64>,
    /// CPU time used up to then, by the whole process with its guest. What a
    /// host of one CPU did not spend so, it spent waiting.
    #[serde(default)]
    pub first_entry_cpu_ns: Option<u64>,
    /// The guest's init ran (guest agent's mark).
    pub init_ns: Option<u64>,
    /// CPU time used up to then.
    #[serde(default)]
    pub init_cpu_ns: Option<u64>,
    /// The guest agent loaded the hotplug driver (agent's mark).
    pub driver_loaded_ns: Option<u64>,
    /// The guest plugged all that was requested at its start, if anything was.
    #[serde(default)]
    pub plugged_ns: Option<u64>,
    /// CPU time used up to then.
    #[serde(default)]
    pub plugged_cpu_ns: Option<u64>,
    /// The guest agent reported all of that usable.
    #[serde(default)]
    pub usable_ns: Option<u64>,
    /// CPU time used up to then.
    #[serde(default)]
    pub usable_cpu_ns: Option<u64>,
    /// How many times the guest has been started by this process, from 1.
    pub boots: u64,
}

/// Reply of `GET /api/v1/vm`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmInfo {
    /// Version of lmb-vmm.
    pub version: String,
    /// Process id.
    pub pid: u32,
    /// State now.
    pub state: VmState,
    /// Number of vCPUs.
    pub cpus: u32,
    /// Kernel and how it was entered.
    pub kernel: KernelInfo,
    /// Stamps of the latest boot.
    pub boot: BootTimeline,
    /// How often vCPUs left the guest for this process, in this boot.
    #[serde(default)]
    pub vcpu_exits: u64,
    /// What the process has given up.
    #[serde(default)]
    pub sandbox: SandboxInfo,
}

/// The sandbox of a VM's process. All of it is off with `--sandbox off`, and
/// only Landlock can be missing otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxInfo {
    /// Whether there is one.
    pub enabled: bool,
    /// No program started from the process gains rights.
    pub no_new_privs: bool,
    /// The process has no capabilities.
    pub capabilities_dropped: bool,
    /// Each thread has a list of system calls.
    pub seccomp: bool,
    /// Version of Landlock that is in force; none on a kernel without it.
    pub landlock_abi: Option<u32>,
}

/// One hotplug window: a virtio-mem device, or an ACPI memory device for each
/// of its LMBs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowInfo {
    /// Number of the window, from 0.
    pub id: u32,
    /// Guest NUMA node.
    pub node: u32,
    /// First guest-physical address.
    pub start_address: u64,
    /// Length of the window.
    pub size_bytes: u64,
    /// The part the guest may use (the whole window).
    pub usable_bytes: u64,
    /// What the guest is asked to plug.
    pub requested_bytes: u64,
    /// What the guest has plugged.
    pub plugged_bytes: u64,
    /// LMBs in the window.
    pub total_lmbs: u64,
    /// LMBs requested.
    pub requested_lmbs: u64,
    /// LMBs plugged.
    pub plugged_lmbs: u64,
    /// Index of the window's first LMB in the VM (boot LMBs come first).
    pub first_lmb: u64,
    /// Whether the guest would act on a request: its virtio-mem driver is
    /// active (DRIVER_OK), or its ACPI event device has looked for events.
    pub driver_active: bool,
    /// KVM memory slots in use by the window.
    pub slots: u64,
    /// Requests the driver has made since its start, by their answers.
    pub requests: RequestCounts,
    /// What went to and fro by ACPI since the guest's start, if the window's
    /// LMBs are ACPI devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acpi: Option<AcpiCounts>,
    /// Why the window takes no further change until a reset, if it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Counts of guest requests by kind and answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestCounts {
    /// PLUG requests.
    pub plug: u64,
    /// UNPLUG requests.
    pub unplug: u64,
    /// UNPLUG_ALL requests.
    pub unplug_all: u64,
    /// STATE requests.
    pub state: u64,
    /// Chains that were no legal request at all.
    pub malformed: u64,
    /// Blocks (LMBs) plugged and unplugged by ACKed requests.
    pub blocks: u64,
    /// Answers ACK.
    pub ack: u64,
    /// Answers NACK.
    pub nack: u64,
    /// Answers BUSY.
    pub busy: u64,
    /// Answers ERROR.
    pub error: u64,
}

/// Counts of what VMM and guest said to each other by ACPI.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcpiCounts {
    /// LMBs that the guest was asked to add (device check).
    pub add_requests: u64,
    /// LMBs that the guest was asked to give back (eject request).
    pub eject_requests: u64,
    /// LMBs that the guest said it added (_OST success).
    pub added: u64,
    /// LMBs that the guest gave back (_EJ0).
    pub ejected: u64,
    /// Of these, LMBs that nobody had asked for.
    pub ejected_unasked: u64,
    /// Requests that the guest said it could not fulfil (_OST failure).
    pub refused: u64,
}

/// Consecutive LMBs, by their index in the VM: boot LMBs come first, then
/// those of each window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LmbSpan {
    /// Index of the first.
    pub first: u64,
    /// How many, at least 1.
    pub count: u64,
}

/// What became of an LMB in an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LmbOutcome {
    /// The guest has been asked and has not answered yet.
    Pending,
    /// The guest added it.
    Added,
    /// The guest gave it back and the host has its memory again.
    Removed,
    /// The guest said that it could not; it is as it was before.
    Refused,
    /// It was removed and added again, since all or nothing was asked for.
    Restored,
}

/// LMBs that fared alike in an operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LmbChange {
    /// Index of the first.
    pub first: u64,
    /// How many.
    pub count: u64,
    /// What became of them.
    pub outcome: LmbOutcome,
    /// Why, where the guest refused: the words of its _OST status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// How an LMB stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LmbState {
    /// Boot memory: always there.
    Boot,
    /// Not there.
    Unplugged,
    /// There, and the guest has been asked to add it.
    Adding,
    /// There.
    Plugged,
    /// There, and the guest has been asked to give it back.
    Removing,
    /// Given back by the guest; the host takes its memory back.
    Leaving,
}

/// The last request about an LMB that the guest could not fulfil.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LmbFailure {
    /// `add` or `remove`.
    pub action: MemoryAction,
    /// The guest's _OST status.
    pub ost_status: u8,
    /// The same in words.
    pub reason: String,
    /// When, on CLOCK_MONOTONIC.
    pub at_ns: u64,
}

/// Consecutive LMBs that stand alike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LmbRun {
    /// Index of the first.
    pub first: u64,
    /// How many.
    pub count: u64,
    /// How they stand.
    pub state: LmbState,
    /// Guest NUMA node.
    pub node: u32,
    /// Guest-physical ranges: one, but for a boot LMB of several pieces.
    pub ranges: Vec<AddressRange>,
    /// Whether the guest has them, as far as it has said so: by ACPI it tells
    /// of each LMB, by virtio-mem of none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest_has: Option<bool>,
    /// The last failure, for runs of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<LmbFailure>,
}

/// A guest-physical range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressRange {
    /// First address.
    pub start_address: u64,
    /// Length.
    pub size_bytes: u64,
}

/// Reply of `GET /api/v1/memory/lmbs`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LmbList {
    /// Size of an LMB.
    pub lmb_size_bytes: u64,
    /// All LMBs of the VM, ascending.
    pub lmbs: Vec<LmbRun>,
}

/// Reply of `GET /api/v1/memory`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryInfo {
    /// By what means memory is changed.
    #[serde(default)]
    pub hotplug: Hotplug,
    /// Size of an LMB.
    pub lmb_size_bytes: u64,
    /// Memory block size that the layout gives the guest's Linux.
    pub guest_block_size_bytes: u64,
    /// Size of a KVM memory slot of a window.
    pub slot_size_bytes: u64,
    /// Memory present from boot.
    pub boot_bytes: u64,
    /// The same in LMBs.
    pub boot_lmbs: u64,
    /// Boot memory and all windows: the most the guest can have.
    pub max_bytes: u64,
    /// Boot memory and what is plugged now.
    pub total_bytes: u64,
    /// Boot memory and what is requested.
    pub target_bytes: u64,
    /// Each window.
    pub windows: Vec<WindowInfo>,
    /// The operation that runs, else the last one, else null.
    pub operation: Option<Operation>,
}

/// What an operation does to the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryAction {
    /// Make the whole VM's memory this size (boot memory included).
    Set,
    /// Raise the target by this much.
    Add,
    /// Lower the target by this much.
    Remove,
}

/// Body of `POST /api/v1/memory/operations`. Exactly one of `size_bytes`,
/// `lmbs` and `indices` is given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryRequest {
    /// What to do.
    pub action: MemoryAction,
    /// The amount in bytes: a multiple of the LMB size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// The amount in LMBs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lmbs: Option<u64>,
    /// The LMBs themselves, for `add` and `remove` where each LMB is an ACPI
    /// device. None may be named twice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub indices: Option<Vec<LmbSpan>>,
    /// For `remove` with ACPI: if not all can be removed, those that were are
    /// added again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all_or_nothing: bool,
    /// Milliseconds from acceptance after which the operation ends as
    /// incomplete, 1 to 86,400,000. Default 60,000.
    #[serde(default = "default_timeout_ms")]
    pub timeout_ms: u64,
    /// Whether the reply waits for the operation's end (200) or comes at once
    /// with the operation running (202).
    #[serde(default)]
    pub wait: bool,
    /// Whether a waited-for operation also waits, within its deadline, for the
    /// guest's report that the memory is usable (or gone). Only of use with a
    /// guest agent.
    #[serde(default)]
    pub wait_usable: bool,
}

impl MemoryRequest {
    /// A request without an amount, with the default deadline, whose reply
    /// comes at once; to be completed.
    #[must_use]
    pub const fn new(action: MemoryAction) -> Self {
        Self {
            action,
            size_bytes: None,
            lmbs: None,
            indices: None,
            all_or_nothing: false,
            timeout_ms: DEFAULT_TIMEOUT_MS,
            wait: false,
            wait_usable: false,
        }
    }
}

/// Deadline of an operation when the client names none, milliseconds.
pub const DEFAULT_TIMEOUT_MS: u64 = 60_000;

const fn default_timeout_ms() -> u64 {
    DEFAULT_TIMEOUT_MS
}

/// How an operation stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperationState {
    /// The guest has not reached the target yet.
    Running,
    /// plugged == requested.
    Done,
    /// The deadline passed first. The guest may go on; the target stands.
    Incomplete,
    /// A later operation replaced the target.
    Superseded,
    /// A client cancelled it: the target was set to what is plugged.
    Cancelled,
    /// The VM was reset or stopped meanwhile.
    Aborted,
}

/// One operation on the VM's memory: `GET /api/v1/operations/{id}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// Number, from 1, never reused in one process.
    pub id: u64,
    /// What was asked.
    pub action: MemoryAction,
    /// State.
    pub state: OperationState,
    /// Total memory plugged when it was accepted (boot memory included).
    pub from_bytes: u64,
    /// Total memory wanted.
    pub target_bytes: u64,
    /// Total memory plugged now, or when it ended.
    pub plugged_bytes: u64,
    /// Size of an LMB, for reading the sizes as counts.
    pub lmb_size_bytes: u64,
    /// Its deadline, milliseconds after acceptance.
    pub timeout_ms: u64,
    /// Stamps.
    pub timeline: OperationTimeline,
    /// Requests of the guest while it ran.
    pub requests: RequestCounts,
    /// What went to and fro by ACPI while it ran, where each LMB is an ACPI
    /// device; `requests` shows only the LMBs that changed then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acpi: Option<AcpiCounts>,
    /// What became of each LMB, ascending, where each is an ACPI device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<LmbChange>,
    /// One sentence for people when the state is not `done`, and while it runs
    /// if it waits for something.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Stamps of an operation. `accepted_ns` is on CLOCK_MONOTONIC, every other
/// field is nanoseconds after it. A field is absent unless its event happened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationTimeline {
    /// The request was read whole from the socket.
    pub accepted_ns: u64,
    /// Config interrupt sent to the guest.
    pub announced_ns: Option<u64>,
    /// First request of the guest seen.
    pub first_request_ns: Option<u64>,
    /// Answer to the request that reached the target ("device done").
    pub last_answer_ns: Option<u64>,
    /// CPU time that the whole process, its guest included, used from
    /// acceptance to then.
    #[serde(default)]
    pub last_answer_cpu_ns: Option<u64>,
    /// The guest agent reported the wanted size online ("guest usable").
    pub usable_ns: Option<u64>,
    /// True when the agent found it by looking rather than by an event, so
    /// that `usable_ns` may be late.
    #[serde(default)]
    pub usable_late: bool,
    /// CPU time used from acceptance to `usable_ns`.
    #[serde(default)]
    pub usable_cpu_ns: Option<u64>,
    /// The reply to the waiting client was written.
    pub replied_ns: Option<u64>,
}

/// Body of every 4xx and 5xx reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorReply {
    /// What was wrong, the value, and what to do next.
    pub error: String,
    /// A stable word for programs, e.g. `driver_not_active`, `bad_size`.
    pub code: String,
}
