//! Tables of adds and removes.

use lmb_memory::Hotplug;

use super::{
    KEPT, LMB_SIZES, absent, block_option, median_cell, of, outlier_note, pivot, size_or_absent,
    slot_option, spread_cells, step_name,
};
use crate::plan::rules;
use crate::report::environment::Environments;
use crate::report::figure::{count, grouped};
use crate::report::group::{Group, Kind, Moment, Outcome};
use crate::report::stats::{Summary, real};
use crate::report::table::Table;
use crate::units::format_size;

/// Columns of the detailed table.
const DETAIL: [&str; 31] = [
    "VMM",
    "hotplug",
    "kernel",
    "operation",
    "amount",
    "load",
    ">LMB",
    ">LMBs",
    ">guest block",
    ">blocks",
    ">usable per block",
    "driver mode",
    ">requests",
    ">slots",
    ">first request",
    ">device done",
    ">guest usable",
    ">per LMB",
    ">complete",
    ">executed",
    ">waited",
    ">min",
    ">max",
    ">spread",
    ">n",
    ">outliers",
    ">reached",
    ">left",
    ">NACK",
    ">BUSY",
    "conf.",
];

/// Tables of adds and removes; none without them.
#[must_use]
pub fn dlpar(groups: &[Group], environments: &Environments) -> Vec<Table> {
    let dlpar: Vec<&Group> = of(groups, |kind| matches!(kind, Kind::Dlpar { .. }));
    if dlpar.is_empty() {
        return Vec::new();
    }
    vec![
        dlpar_by_lmb(&dlpar, environments),
        dlpar_detail(&dlpar, environments),
    ]
}

/// Add and remove with a column for each LMB size, as the article has it.
fn dlpar_by_lmb(groups: &[&Group], environments: &Environments) -> Table {
    let mut table = Table::new(
        "Adding and removing memory by LMB size",
        &[
            "VMM",
            "hotplug",
            "kernel",
            "operation",
            "amount",
            "load",
            "guest block",
            "slot",
            "until",
        ],
    );
    let title = |group: &Group| {
        let late =
            |late: fn(&Outcome) -> usize| group.outcome.as_ref().is_some_and(|o| late(o) > 0);
        let usable = group.times.contains_key(&Moment::Usable) && !late(|o| o.usable_late);
        let until = match (usable, late(|o| o.device_late)) {
            (true, false) => "done and usable",
            (true, true) => "usable",
            (false, _) => "device done",
        };
        vec![
            group.config.vmm.clone(),
            group.config.hotplug.clone(),
            group.config.kernel.clone(),
            step_name(group.kind).to_owned(),
            format_size(group.bytes()),
            group.config.load.clone(),
            block_option(group),
            slot_option(group),
            until.to_owned(),
        ]
    };
    let cells = (&LMB_SIZES, Moment::Complete);
    pivot(&mut table, groups, environments, title, cells);
    environments.beside(&mut table, groups);
    table
}

/// Adds and removes in detail.
fn dlpar_detail(groups: &[&Group], environments: &Environments) -> Table {
    let mut table = Table::new("Adds and removes in detail", &DETAIL);
    for group in groups {
        table.rows.push(dlpar_row(group, environments));
    }
    table.notes.push(
        "Times since the request was accepted. device done: the answer that reached the target. \
         guest usable: the guest has the memory online, or it is gone. complete: the later of the \
         two; per LMB: of that. reached: operations that reached their target before the deadline; \
         left: the most that one of the others did not do. Times are of those that reached it."
            .to_owned(),
    );
    if groups.iter().any(|g| g.hotplug() == Hotplug::Acpi) {
        table.notes.push(
            "acpi: requests are LMBs that the guest was asked to add or give back, NACK those of \
             them that it refused; first request and device done are its first and last answer. \
             usable per block: by how much MemTotal grew for each block of the first add, less \
             than a block where blocks hold their own description (memmap_on_memory)."
                .to_owned(),
        );
    }
    if groups.iter().any(|g| {
        g.outcome
            .as_ref()
            .is_some_and(|o| o.usable_late + o.device_late > 0)
    }) {
        table.notes.push(
            "~ found by looking and perhaps late; such figures are no part of \"complete\"."
                .to_owned(),
        );
    }
    table.notes.extend(outlier_note(groups, Moment::Complete));
    table.fold(&KEPT);
    table.hoist_units();
    environments.beside(&mut table, groups);
    table
}

fn dlpar_row(group: &Group, environments: &Environments) -> Vec<String> {
    let config = &group.config;
    let outcome = group.outcome.clone().unwrap_or_default();
    let summary = |s: &Option<Summary>| s.as_ref().map_or_else(absent, |s| count(s.median));
    let complete = group.times.get(&Moment::Complete);
    let mut usable = median_cell(group, group.times.get(&Moment::Usable));
    if outcome.usable_late > 0 {
        usable.insert(0, '~');
    }
    let mut done = median_cell(group, group.times.get(&Moment::DeviceDone));
    if outcome.device_late > 0 {
        done.insert(0, '~');
    }
    let blocks = rules::blocks(group.bytes(), group.guest_block_bytes());
    let mut row = vec![
        config.vmm.clone(),
        config.hotplug.clone(),
        config.kernel.clone(),
        step_name(group.kind).to_owned(),
        format_size(group.bytes()),
        config.load.clone(),
        format_size(config.lmb_size_bytes),
        grouped(group.lmbs()),
        format_size(group.guest_block_bytes()),
        grouped(blocks),
        group
            .guest
            .usable_per_block_bytes
            .map_or_else(absent, format_size),
        group.driver_mode(),
        summary(&outcome.requests),
        summary(&outcome.slots),
        median_cell(group, group.times.get(&Moment::FirstRequest)),
        done,
        usable,
        per_lmb(group).map_or_else(absent, |ns| group.unit.show(ns)),
    ];
    row.extend(spread_cells(group, complete));
    row.push(format!("{} of {}", outcome.complete, outcome.of));
    row.push(size_or_absent(outcome.left_bytes_max));
    row.push(summary(&outcome.nack));
    row.push(summary(&outcome.busy));
    row.push(environments.letter(group));
    row
}

/// Nanoseconds of the whole operation for each LMB.
#[must_use]
pub fn per_lmb(group: &Group) -> Option<f64> {
    let lmbs = group.lmbs();
    (lmbs > 0).then_some(group.median(Moment::Complete)? / real(lmbs))
}
