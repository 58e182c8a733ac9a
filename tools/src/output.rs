//! What people read: tables of memory, of an operation's phases, of a VM.
//! Every function here is pure, from a protocol type to text.

pub mod lmbs;

use std::fmt::Write as _;

use comfy_table::{CellAlignment, Table, presets};
use lmb_vmm::protocol::{
    BootTimeline, EntryKind, MemoryAction, MemoryInfo, Operation, OperationState,
    OperationTimeline, RequestCounts, SandboxInfo, VmInfo, VmState,
};

use crate::units::{format_lmbs, format_ms, format_size};

const ABSENT: &str = "-";

/// `lmb mem show`.
#[must_use]
pub fn memory(info: &MemoryInfo) -> String {
    let lmb = info.lmb_size_bytes;
    let mut text = format!(
        "LMB size {}, guest memory block {}, KVM slot {}, hotplug by {}\n\n",
        format_size(lmb),
        format_size(info.guest_block_size_bytes),
        format_size(info.slot_size_bytes),
        info.hotplug.name(),
    );
    let mut table = columns(&[
        "memory",
        "plugged",
        "LMBs",
        "requested",
        "LMBs",
        "most",
        "LMBs",
        "driver",
        "slots",
    ]);
    align_right(&mut table, 1..=6);
    align_right(&mut table, 8..=8);
    let sizes = |name: String, plugged: u64, requested: u64, most: u64| {
        vec![
            name,
            format_size(plugged),
            format_lmbs(plugged, lmb),
            format_size(requested),
            format_lmbs(requested, lmb),
            format_size(most),
            format_lmbs(most, lmb),
        ]
    };
    let boot = info.boot_bytes;
    let mut row = sizes("boot".to_owned(), boot, boot, boot);
    row.extend([ABSENT.to_owned(), ABSENT.to_owned()]);
    table.add_row(row);
    for window in &info.windows {
        let mut row = sizes(
            format!("window {} (node {})", window.id, window.node),
            window.plugged_bytes,
            window.requested_bytes,
            window.usable_bytes,
        );
        row.push(driver(window.driver_active).to_owned());
        row.push(window.slots.to_string());
        table.add_row(row);
    }
    let mut row = sizes(
        "total".to_owned(),
        info.total_bytes,
        info.target_bytes,
        info.max_bytes,
    );
    row.extend([String::new(), String::new()]);
    table.add_row(row);
    push_table(&mut text, &table);
    for window in &info.windows {
        if let Some(counts) = &window.acpi {
            let _ = writeln!(text, "\nwindow {}: {}", window.id, lmbs::counts(counts));
        }
        if let Some(error) = &window.error {
            let _ = writeln!(text, "\nwindow {}: {}", window.id, printable(error));
        }
    }
    if let Some(last) = &info.operation {
        let _ = writeln!(text, "\n{}", operation_line(last));
    }
    text
}

/// One operation with its phases.
#[must_use]
pub fn operation(operation: &Operation) -> String {
    let mut text = operation_line(operation);
    text.push_str("\n\n");
    push_table(&mut text, &phases(&operation.timeline));
    text.push('\n');
    match &operation.acpi {
        _ if !operation.changes.is_empty() => text.push_str(&lmbs::changes(&operation.changes)),
        Some(counts) => _ = writeln!(text, "LMBs: {}", lmbs::counts(counts)),
        None => _ = writeln!(text, "{}", requests(&operation.requests)),
    }
    if operation.timeline.usable_late {
        text.push_str(
            "The guest's agent found the memory by looking: \"guest usable\" may be late.\n",
        );
    }
    text
}

/// `lmb mem operations`: one line each.
#[must_use]
pub fn operations(all: &[Operation]) -> String {
    if all.is_empty() {
        return "no operations yet\n".to_owned();
    }
    let mut table = columns(&[
        "id",
        "action",
        "state",
        "from",
        "LMBs",
        "target",
        "LMBs",
        "plugged",
        "LMBs",
        "device done [ms]",
        "guest usable [ms]",
    ]);
    align_right(&mut table, 0..=0);
    align_right(&mut table, 3..=10);
    for op in all {
        let lmb = op.lmb_size_bytes;
        let mut row = vec![
            op.id.to_string(),
            action(op.action).to_owned(),
            state(op.state).to_owned(),
        ];
        for bytes in [op.from_bytes, op.target_bytes, op.plugged_bytes] {
            row.push(format_size(bytes));
            row.push(format_lmbs(bytes, lmb));
        }
        row.push(stamp(op.timeline.last_answer_ns));
        row.push(stamp(op.timeline.usable_ns));
        table.add_row(row);
    }
    let mut text = String::new();
    push_table(&mut text, &table);
    text
}

/// A kernel's entry, for people.
#[must_use]
pub fn entry_name(entry: EntryKind) -> &'static str {
    match entry {
        EntryKind::Elf => "ELF (PVH)",
        EntryKind::Bzimage => "bzImage (64-bit)",
    }
}

/// `seccomp, Landlock ABI 4, no new privileges, no capabilities`.
fn sandbox(info: &SandboxInfo) -> String {
    if !info.enabled {
        return "off".to_owned();
    }
    let landlock = info.landlock_abi.map_or_else(
        || "no Landlock in this kernel".to_owned(),
        |abi| format!("Landlock ABI {abi}"),
    );
    let parts = [
        (info.seccomp, "seccomp"),
        (true, &landlock),
        (info.no_new_privs, "no new privileges"),
        (info.capabilities_dropped, "no capabilities"),
    ];
    let parts: Vec<_> = parts
        .iter()
        .filter(|part| part.0)
        .map(|part| part.1)
        .collect();
    parts.join(", ")
}

/// `lmb vm show`.
#[must_use]
pub fn vm(info: &VmInfo) -> String {
    let kernel = &info.kernel;
    let mut text = String::new();
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    let entry = entry_name(kernel.entry);
    let kaslr = if kernel.kaslr { "on" } else { "off" };
    for (name, value) in [
        ("state", vm_state(info.state).to_owned()),
        ("lmb-vmm", format!("{}, pid {}", info.version, info.pid)),
        ("vCPUs", info.cpus.to_string()),
        ("kernel", kernel.path.clone()),
        (
            "version",
            kernel.version.clone().unwrap_or_else(|| ABSENT.to_owned()),
        ),
        ("entry", format!("{entry}, KASLR {kaslr}")),
        ("command line", kernel.cmdline.clone()),
        ("boots", info.boot.boots.to_string()),
        ("sandbox", sandbox(&info.sandbox)),
    ] {
        table.add_row([name.to_owned(), printable(&value)]);
    }
    push_table(&mut text, &table);
    text.push('\n');
    push_table(&mut text, &boot_phases(&info.boot));
    text
}

/// `operation 3 (add): done, 1 GiB (4 LMBs) to 2 GiB (8 LMBs)`.
#[must_use]
pub fn operation_line(op: &Operation) -> String {
    let sized = |bytes: u64| {
        format!(
            "{} ({} LMBs)",
            format_size(bytes),
            format_lmbs(bytes, op.lmb_size_bytes)
        )
    };
    let mut line = format!(
        "operation {} ({}): {}, {} to {}",
        op.id,
        action(op.action),
        state(op.state),
        sized(op.from_bytes),
        sized(op.target_bytes),
    );
    if op.state != OperationState::Done {
        let _ = write!(line, ", {} plugged", sized(op.plugged_bytes));
    }
    if let Some(message) = &op.message {
        let _ = write!(line, "\n{}", printable(message));
    }
    line
}

/// The word for an action.
#[must_use]
pub fn action(action: MemoryAction) -> &'static str {
    match action {
        MemoryAction::Set => "set",
        MemoryAction::Add => "add",
        MemoryAction::Remove => "remove",
    }
}

fn state(state: OperationState) -> &'static str {
    match state {
        OperationState::Running => "running",
        OperationState::Done => "done",
        OperationState::Incomplete => "incomplete",
        OperationState::Superseded => "superseded",
        OperationState::Cancelled => "cancelled",
        OperationState::Aborted => "aborted",
    }
}

fn vm_state(state: VmState) -> &'static str {
    match state {
        VmState::Running => "running",
        VmState::Resetting => "resetting",
        VmState::Stopped => "stopped",
    }
}

fn driver(active: bool) -> &'static str {
    if active { "active" } else { "not active" }
}

fn requests(counts: &RequestCounts) -> String {
    let all = [
        counts.plug,
        counts.unplug,
        counts.unplug_all,
        counts.state,
        counts.malformed,
    ];
    let total = all.iter().fold(0u64, |sum, n| sum.saturating_add(*n));
    format!(
        "guest requests {total}, LMBs {}; answers: ACK {}, NACK {}, BUSY {}, ERROR {}",
        counts.blocks, counts.ack, counts.nack, counts.busy, counts.error
    )
}

fn phases(timeline: &OperationTimeline) -> Table {
    phase_table(
        "since accepted [ms]",
        &[
            ("announced to the guest", timeline.announced_ns),
            ("first request", timeline.first_request_ns),
            ("device done", timeline.last_answer_ns),
            ("guest usable", timeline.usable_ns),
            ("replied", timeline.replied_ns),
        ],
    )
}

fn boot_phases(boot: &BootTimeline) -> Table {
    phase_table(
        "since start [ms]",
        &[
            ("kernel read", boot.kernel_read_ns),
            ("memory created", boot.memory_created_ns),
            ("kernel loaded", boot.kernel_loaded_ns),
            ("first vCPU entry", boot.first_entry_ns),
            ("kernel entry mark", boot.kernel_entry_ns),
            ("guest's init", boot.init_ns),
            ("memory driver loaded", boot.driver_loaded_ns),
        ],
    )
}

/// Phases in the order in which they happened, those that did not at the end.
fn phase_table(since: &str, phases: &[(&str, Option<u64>)]) -> Table {
    let mut table = columns(&["phase", since, "step [ms]"]);
    align_right(&mut table, 1..=2);
    let mut sorted = phases.to_vec();
    sorted.sort_by_key(|(_, at)| at.unwrap_or(u64::MAX));
    let mut before = 0;
    for (name, at) in sorted {
        let step = at.map(|at| at.saturating_sub(before));
        table.add_row([name.to_owned(), stamp(at), stamp(step)]);
        before = at.unwrap_or(before);
    }
    table
}

fn stamp(ns: Option<u64>) -> String {
    ns.map_or_else(|| ABSENT.to_owned(), format_ms)
}

fn columns(names: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(names);
    table
}

fn align_right(table: &mut Table, columns: std::ops::RangeInclusive<usize>) {
    for index in columns {
        if let Some(column) = table.column_mut(index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

fn push_table(text: &mut String, table: &Table) {
    for line in table.lines() {
        let line = line.strip_prefix(' ').unwrap_or(&line);
        text.push_str(line.trim_end());
        text.push('\n');
    }
}

/// Text of a guest or a VMM without control characters, which could steer the
/// terminal it is printed on.
#[must_use]
pub fn printable(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}

#[cfg(test)]
#[path = "output_tests.rs"]
mod tests;
