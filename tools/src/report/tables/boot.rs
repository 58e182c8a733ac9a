//! Tables of boots.

use super::{
    Across, KEPT, LMB_SIZES, absent, block_option, median_cell, of, outlier_note, pivot,
    size_or_absent, slot_option, spread_cells,
};
use crate::bench::sample::Clock;
use crate::report::environment::Environments;
use crate::report::figure::{count, grouped, mebibytes, percent};
use crate::report::group::{Group, Kind, Moment};
use crate::report::table::Table;
use crate::units::format_size;

/// What the instruction clock's boots are held to.
pub const BOOT_SPREAD_LIMIT: f64 = 0.001;

/// Tables of boots; none without boots.
#[must_use]
pub fn boot(groups: &[Group], environments: &Environments) -> Vec<Table> {
    let boots: Vec<&Group> = of(groups, |kind| matches!(kind, Kind::Boot));
    if boots.is_empty() {
        return Vec::new();
    }
    let (full, empty): (Vec<&Group>, Vec<&Group>) =
        boots.iter().partition(|group| group.empty_lmbs() == 0);
    let mut tables = Vec::new();
    if !full.is_empty() {
        tables.push(boot_by_lmb(&full, environments));
    }
    if !empty.is_empty() {
        // Beside them the same without a window, and no other boots.
        let rows: Vec<Vec<String>> = empty.iter().map(|group| empty_title(group)).collect();
        let beside: Vec<&Group> = boots
            .iter()
            .copied()
            .filter(|group| rows.contains(&empty_title(group)))
            .collect();
        tables.push(boot_by_empty(&beside, environments));
    }
    tables.push(boot_detail(&boots, environments));
    tables
}

/// Boot time with a row for each kernel and VMM and a column for each LMB
/// size, as the article has it.
fn boot_by_lmb(groups: &[&Group], environments: &Environments) -> Table {
    let mut table = Table::new("Boot time by LMB size", &TITLE);
    let cells = (&LMB_SIZES, Moment::Complete);
    pivot(&mut table, groups, environments, title, cells);
    environments.beside(&mut table, groups);
    table
}

/// Boot time with a column for each number of LMBs that could be added later.
fn boot_by_empty(groups: &[&Group], environments: &Environments) -> Table {
    let mut head = TITLE.to_vec();
    head.push(">LMB");
    let mut table = Table::new("Boot time by LMBs left empty", &head);
    let cells = (&EMPTY_LMBS, Moment::Complete);
    pivot(&mut table, groups, environments, empty_title, cells);
    table.notes.push(
        "LMBs left empty: those of the hotplug window, which could be added later. With acpi each \
         is a device that the guest makes at its boot; with virtio-mem all are one device."
            .to_owned(),
    );
    environments.beside(&mut table, groups);
    table
}

fn empty_title(group: &Group) -> Vec<String> {
    let mut cells = title(group);
    cells.push(format_size(group.config.lmb_size_bytes));
    cells
}

const EMPTY_LMBS: Across = Across {
    value: Group::empty_lmbs,
    name: |lmbs| match lmbs {
        0 => "no window".to_owned(),
        lmbs => grouped(lmbs),
    },
};

/// Columns that name a row of a pivoted table.
const TITLE: [&str; 9] = [
    "VMM",
    "hotplug",
    "kernel",
    "memory",
    "plugged at boot",
    ">vCPUs",
    "guest block",
    "slot",
    "until",
];

fn title(group: &Group) -> Vec<String> {
    let until = if group.times.contains_key(&Moment::Usable) {
        "all memory usable"
    } else {
        "guest's init"
    };
    vec![
        group.config.vmm.clone(),
        group.config.hotplug.clone(),
        group.config.kernel.clone(),
        format_size(group.config.memory_bytes),
        size_or_absent(group.config.plugged_at_boot_bytes),
        group.config.cpus.to_string(),
        block_option(group),
        slot_option(group),
        until.to_owned(),
    ]
}

/// Boots in detail: each part, blocks, spread.
fn boot_detail(groups: &[&Group], environments: &Environments) -> Table {
    let mut table = Table::new(
        "Boots in detail",
        &[
            "VMM",
            "hotplug",
            "kernel",
            "memory",
            "plugged at boot",
            ">vCPUs",
            ">LMB",
            ">LMBs",
            ">empty LMBs",
            ">guest block",
            ">blocks",
            "driver mode",
            ">VMM part",
            ">kernel part",
            ">memory part",
            ">complete",
            ">executed",
            ">waited",
            ">min",
            ">max",
            ">spread",
            ">n",
            ">outliers",
            ">VMM memory",
            ">exits",
            "conf.",
        ],
    );
    for group in groups {
        table.rows.push(boot_row(group, environments));
    }
    table.notes.push(
        "VMM part: from the start of its process to the guest's first instruction. kernel part: \
         from there to the guest's init. memory part: from init until all memory is usable. \
         complete: the sum."
            .to_owned(),
    );
    table.notes.extend(boot_spread(groups));
    table.notes.extend(outlier_note(groups, Moment::Complete));
    table.fold(&KEPT);
    table.hoist_units();
    environments.beside(&mut table, groups);
    table
}

fn boot_row(group: &Group, environments: &Environments) -> Vec<String> {
    let config = &group.config;
    let complete = group.times.get(&Moment::Complete);
    let mut row = vec![
        config.vmm.clone(),
        config.hotplug.clone(),
        config.kernel.clone(),
        format_size(config.memory_bytes),
        size_or_absent(config.plugged_at_boot_bytes),
        config.cpus.to_string(),
        format_size(config.lmb_size_bytes),
        grouped(group.lmbs()),
        grouped(group.empty_lmbs()),
        format_size(group.guest_block_bytes()),
        group.guest.memory_blocks.map_or_else(absent, grouped),
        group.driver_mode(),
    ];
    for moment in [Moment::FirstEntry, Moment::KernelPart, Moment::MemoryPart] {
        row.push(median_cell(group, group.times.get(&moment)));
    }
    row.extend(spread_cells(group, complete));
    row.push(
        group
            .vmm_memory_bytes
            .as_ref()
            .map_or_else(absent, |m| mebibytes(m.median)),
    );
    row.push(
        group
            .exits
            .as_ref()
            .map_or_else(absent, |e| count(e.median)),
    );
    row.push(environments.letter(group));
    row
}

/// Whether the instruction clock held what it promises.
fn boot_spread(groups: &[&Group]) -> Option<String> {
    let spreads: Vec<(&Group, f64)> = groups
        .iter()
        .filter(|group| group.host.clock == Clock::Instructions)
        .filter_map(|group| {
            let timing = group.times.get(&Moment::Complete)?;
            (timing.total.n > 1).then_some((*group, timing.total.spread))
        })
        .collect();
    let (worst, spread) = spreads.iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let limit = percent(BOOT_SPREAD_LIMIT);
    Some(if *spread < BOOT_SPREAD_LIMIT {
        format!(
            "Spread of boot by the instruction clock: at most {}, under {limit} in every row.",
            percent(*spread)
        )
    } else {
        let over = spreads
            .iter()
            .filter(|(_, s)| *s >= BOOT_SPREAD_LIMIT)
            .count();
        format!(
            "Spread of boot by the instruction clock: {limit} or more in {over} of {} rows, at \
             most {} ({}, LMB {}).",
            spreads.len(),
            percent(*spread),
            worst.config.vmm,
            format_size(worst.config.lmb_size_bytes)
        )
    })
}
