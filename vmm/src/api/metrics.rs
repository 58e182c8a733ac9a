//! Metrics in Prometheus' text form, version 0.0.4. Computed from the same
//! replies that clients see, so that they cannot disagree.

use std::fmt::{Display, Write};

use crate::coordinator::OperationCounts;
use crate::protocol::{MemoryInfo, OperationState, VmInfo, WindowInfo};

/// The media type of the text form.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The text being written.
struct Page(String);

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {kind}"));
    }

    fn single(&mut self, name: &str, kind: &str, help: &str, value: u64) {
        self.family(name, kind, help);
        self.line(format_args!("{name} {value}"));
    }

    fn line(&mut self, line: impl Display) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.0, "{line}");
    }
}

/// A label value: backslash, quote and line feed are escaped.
fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

/// The whole page.
pub(super) fn render(vm: &VmInfo, memory: &MemoryInfo, operations: &OperationCounts) -> String {
    let mut page = Page(String::with_capacity(4096));
    page.family("lmb_vm_info", "gauge", "The VMM; its value is always 1.");
    let version = escaped(&vm.version);
    page.line(format_args!("lmb_vm_info{{version=\"{version}\"}} 1"));
    page.single("lmb_vm_cpus", "gauge", "vCPUs.", u64::from(vm.cpus));
    page.single(
        "lmb_vm_boots_total",
        "counter",
        "Times the guest was started.",
        vm.boot.boots,
    );
    sizes(&mut page, memory);
    windows(&mut page, &memory.windows);
    requests(&mut page, &memory.windows);
    acpi(&mut page, &memory.windows);
    ended(&mut page, operations);
    let running = memory
        .operation
        .as_ref()
        .is_some_and(|operation| operation.state == OperationState::Running);
    page.single(
        "lmb_operation_running",
        "gauge",
        "Whether a memory operation runs.",
        u64::from(running),
    );
    page.0
}

fn sizes(page: &mut Page, memory: &MemoryInfo) {
    let sizes = [
        ("lmb_size_bytes", "Size of an LMB.", memory.lmb_size_bytes),
        (
            "lmb_memory_boot_bytes",
            "Memory present from boot.",
            memory.boot_bytes,
        ),
        (
            "lmb_memory_total_bytes",
            "Boot memory and what is plugged.",
            memory.total_bytes,
        ),
        (
            "lmb_memory_target_bytes",
            "Boot memory and what is requested.",
            memory.target_bytes,
        ),
        (
            "lmb_memory_max_bytes",
            "Boot memory and all windows.",
            memory.max_bytes,
        ),
    ];
    for (name, help, value) in sizes {
        page.single(name, "gauge", help, value);
    }
}

fn windows(page: &mut Page, windows: &[WindowInfo]) {
    type Value = fn(&WindowInfo) -> u64;
    let gauges: [(&str, &str, Value); 5] = [
        ("lmb_window_size_bytes", "Length of the window.", |window| {
            window.size_bytes
        }),
        (
            "lmb_window_requested_bytes",
            "Requested of the guest.",
            |window| window.requested_bytes,
        ),
        (
            "lmb_window_plugged_bytes",
            "Plugged by the guest.",
            |window| window.plugged_bytes,
        ),
        (
            "lmb_window_driver_active",
            "Whether a guest driver is active.",
            |window| u64::from(window.driver_active),
        ),
        ("lmb_window_slots", "KVM memory slots in use.", |window| {
            window.slots
        }),
    ];
    for (name, help, value) in gauges {
        page.family(name, "gauge", help);
        for window in windows {
            page.line(format_args!(
                "{name}{{window=\"{}\"}} {}",
                window.id,
                value(window)
            ));
        }
    }
}

fn requests(page: &mut Page, windows: &[WindowInfo]) {
    let name = "lmb_guest_requests_total";
    page.family(
        name,
        "counter",
        "Guest requests since the driver's start, by kind.",
    );
    for window in windows {
        let counts = &window.requests;
        for (kind, count) in [
            ("plug", counts.plug),
            ("unplug", counts.unplug),
            ("unplug_all", counts.unplug_all),
            ("state", counts.state),
            ("malformed", counts.malformed),
        ] {
            let id = window.id;
            page.line(format_args!(
                "{name}{{window=\"{id}\",kind=\"{kind}\"}} {count}"
            ));
        }
    }
    let name = "lmb_guest_answers_total";
    page.family(
        name,
        "counter",
        "Answers to guest requests since the driver's start.",
    );
    for window in windows {
        let counts = &window.requests;
        for (answer, count) in [
            ("ack", counts.ack),
            ("nack", counts.nack),
            ("busy", counts.busy),
            ("error", counts.error),
        ] {
            let id = window.id;
            page.line(format_args!(
                "{name}{{window=\"{id}\",answer=\"{answer}\"}} {count}"
            ));
        }
    }
    let name = "lmb_guest_blocks_total";
    page.family(
        name,
        "counter",
        "LMBs plugged and unplugged since the driver's start.",
    );
    for window in windows {
        let blocks = window.requests.blocks;
        page.line(format_args!("{name}{{window=\"{}\"}} {blocks}", window.id));
    }
}

fn acpi(page: &mut Page, windows: &[WindowInfo]) {
    if windows.iter().all(|window| window.acpi.is_none()) {
        return;
    }
    let name = "lmb_acpi_lmbs_total";
    page.family(
        name,
        "counter",
        "LMBs by what VMM and guest said of them by ACPI since the guest's start.",
    );
    for window in windows {
        let Some(counts) = &window.acpi else { continue };
        for (kind, count) in [
            ("add_requested", counts.add_requests),
            ("added", counts.added),
            ("eject_requested", counts.eject_requests),
            ("ejected", counts.ejected),
            ("ejected_unasked", counts.ejected_unasked),
            ("refused", counts.refused),
        ] {
            let id = window.id;
            page.line(format_args!(
                "{name}{{window=\"{id}\",kind=\"{kind}\"}} {count}"
            ));
        }
    }
}

fn ended(page: &mut Page, operations: &OperationCounts) {
    let name = "lmb_operations_total";
    page.family(name, "counter", "Memory operations ended, by how.");
    for (state, count) in [
        ("done", operations.done),
        ("incomplete", operations.incomplete),
        ("superseded", operations.superseded),
        ("cancelled", operations.cancelled),
        ("aborted", operations.aborted),
    ] {
        page.line(format_args!("{name}{{state=\"{state}\"}} {count}"));
    }
}
