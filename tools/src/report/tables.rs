//! The tables of a report, in the article's form and in detail.

use std::collections::BTreeSet;

use super::environment::Environments;
use super::figure::{article_lmb, article_size, count, grouped, mebibytes, percent};
use super::group::{Group, Kind, Moment, Timing};
use super::stats::{Summary, real};
use super::table::Table;
use crate::bench::sample::{Clock, Step};
use crate::plan::counts::Counts;
use crate::units::format_size;

const ABSENT: &str = "-";
/// Columns of detailed tables that stand in each row even if they are equal.
const KEPT: [&str; 9] = [
    "operation",
    "LMB",
    "LMBs",
    "guest block",
    "driver mode",
    "complete",
    "spread",
    "n",
    "reached",
];
/// What the instruction clock's boots are held to.
pub const BOOT_SPREAD_LIMIT: f64 = 0.001;

/// All tables of the rows, in order.
#[must_use]
pub fn all(groups: &[Group], environments: &Environments) -> Vec<Table> {
    let mut tables: Vec<Table> = lmb_counts(groups).into_iter().collect();
    tables.extend(boot(groups, environments));
    tables.extend(dlpar(groups, environments));
    tables
}

/// Tables of boots; none without boots.
#[must_use]
pub fn boot(groups: &[Group], environments: &Environments) -> Vec<Table> {
    let boots: Vec<&Group> = of(groups, |kind| matches!(kind, Kind::Boot));
    if boots.is_empty() {
        return Vec::new();
    }
    vec![
        boot_by_lmb(&boots, environments),
        boot_detail(&boots, environments),
    ]
}

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

fn of(groups: &[Group], wanted: fn(&Kind) -> bool) -> Vec<&Group> {
    let mut all: Vec<&Group> = groups.iter().filter(|group| wanted(&group.kind)).collect();
    all.sort_by_cached_key(|group| group.order());
    all
}

fn lmb_sizes<'a>(groups: impl IntoIterator<Item = &'a Group>) -> Vec<u64> {
    let sizes: BTreeSet<u64> = groups
        .into_iter()
        .map(|group| group.config.lmb_size_bytes)
        .collect();
    sizes.into_iter().collect()
}

/// LMBs for the memory sizes that were measured.
#[must_use]
pub fn lmb_counts(groups: &[Group]) -> Option<Table> {
    let sizes: BTreeSet<u64> = groups.iter().map(Group::bytes).collect();
    let sizes: Vec<u64> = sizes.into_iter().collect();
    let lmbs = lmb_sizes(groups);
    (!groups.is_empty()).then(|| counts(&Counts::new(&sizes, &lmbs), "LMBs needed"))
}

/// A table of LMB counts in the article's form.
#[must_use]
pub fn counts(counts: &Counts, title: &str) -> Table {
    let mut table = Table::new(title, &["memory"]);
    for lmb in &counts.lmb_sizes_bytes {
        table.column(&format!(">{}", article_lmb(*lmb)));
    }
    for row in &counts.rows {
        let mut cells = vec![article_size(row.partition_bytes)];
        for (lmbs, rounded) in row.lmbs.iter().zip(&row.rounded_bytes) {
            let mark = if *rounded == row.partition_bytes {
                ""
            } else {
                "*"
            };
            cells.push(format!("{}{mark}", grouped(*lmbs)));
        }
        table.rows.push(cells);
    }
    table
        .notes
        .push("1 TB = 1024 GB, 1 GB = 1024 MB.".to_owned());
    let rounded = |row: &crate::plan::counts::CountRow| {
        row.rounded_bytes
            .iter()
            .any(|bytes| *bytes != row.partition_bytes)
    };
    if counts.rows.iter().any(rounded) {
        table
            .notes
            .push("* no whole number of LMBs: rounded up, the memory grows by it.".to_owned());
    }
    table
}

/// Boot time with a row for each kernel and VMM and a column for each LMB
/// size, as the article has it.
fn boot_by_lmb(groups: &[&Group], environments: &Environments) -> Table {
    let mut table = Table::new(
        "Boot time by LMB size",
        &[
            "VMM",
            "kernel",
            "memory",
            "plugged at boot",
            ">vCPUs",
            "guest block",
            "slot",
            "until",
        ],
    );
    let title = |group: &Group| {
        let until = if group.times.contains_key(&Moment::Usable) {
            "all memory usable"
        } else {
            "guest's init"
        };
        vec![
            group.config.vmm.clone(),
            group.config.kernel.clone(),
            format_size(group.config.memory_bytes),
            size_or_absent(group.config.plugged_at_boot_bytes),
            group.config.cpus.to_string(),
            block_option(group),
            slot_option(group),
            until.to_owned(),
        ]
    };
    pivot(&mut table, groups, environments, title, Moment::Complete);
    environments.beside(&mut table, groups);
    table
}

/// A row for each title, a column for each LMB size, and behind them the
/// letter of the environment. Rows that differ in what titles do not show
/// stand apart.
fn pivot(
    table: &mut Table,
    groups: &[&Group],
    environments: &Environments,
    title: impl Fn(&Group) -> Vec<String>,
    moment: Moment,
) {
    let lmbs = lmb_sizes(groups.iter().copied());
    for lmb in &lmbs {
        table.column(&format!(">{}", article_lmb(*lmb)));
    }
    table.column("conf.");
    let mut rows: Vec<(Vec<String>, Vec<Option<String>>)> = Vec::new();
    for group in groups {
        let mut head = title(group);
        head.push(environments.letter(group));
        let column = lmbs.iter().position(|l| *l == group.config.lmb_size_bytes);
        let cell = group.times.get(&moment).map_or_else(
            || "none complete".to_owned(),
            |timing| group.unit.show(timing.total.median),
        );
        let free = |row: &(Vec<String>, Vec<Option<String>>)| {
            row.0 == head && column.is_some_and(|c| row.1.get(c).is_some_and(Option::is_none))
        };
        let row = rows.iter().position(free).unwrap_or_else(|| {
            rows.push((head, vec![None; lmbs.len()]));
            rows.len().saturating_sub(1)
        });
        if let Some(slot) = column.and_then(|c| rows.get_mut(row)?.1.get_mut(c)) {
            *slot = Some(cell);
        }
    }
    for (mut head, cells) in rows {
        let letter = head.pop().unwrap_or_default();
        head.extend(
            cells
                .into_iter()
                .map(|c| c.unwrap_or_else(|| ABSENT.to_owned())),
        );
        head.push(letter);
        table.rows.push(head);
    }
    let sizes: Vec<String> = lmbs.iter().map(|lmb| article_lmb(*lmb)).collect();
    let mut keep = vec!["VMM", "kernel", "operation", "conf."];
    keep.extend(sizes.iter().map(String::as_str));
    table.fold(&keep);
}

/// Boots in detail: each part, blocks, spread.
fn boot_detail(groups: &[&Group], environments: &Environments) -> Table {
    let mut table = Table::new(
        "Boots in detail",
        &[
            "VMM",
            "kernel",
            "memory",
            "plugged at boot",
            ">vCPUs",
            ">LMB",
            ">LMBs",
            ">guest block",
            ">blocks",
            "driver mode",
            ">VMM",
            ">kernel",
            ">memory",
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
        let config = &group.config;
        let complete = group.times.get(&Moment::Complete);
        let mut row = vec![
            config.vmm.clone(),
            config.kernel.clone(),
            format_size(config.memory_bytes),
            size_or_absent(config.plugged_at_boot_bytes),
            config.cpus.to_string(),
            format_size(config.lmb_size_bytes),
            grouped(group.lmbs()),
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
        table.rows.push(row);
    }
    table.notes.push(
        "VMM: from the start of its process to the guest's first instruction. kernel: from there \
         to the guest's init. memory: from init until all memory is usable. complete: the sum."
            .to_owned(),
    );
    table.notes.extend(boot_spread(groups));
    table.notes.extend(outlier_note(groups, Moment::Complete));
    table.fold(&KEPT);
    table.hoist_units();
    environments.beside(&mut table, groups);
    table
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

/// Add and remove with a column for each LMB size, as the article has it.
fn dlpar_by_lmb(groups: &[&Group], environments: &Environments) -> Table {
    let mut table = Table::new(
        "Adding and removing memory by LMB size",
        &[
            "VMM",
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
        let late = group.outcome.as_ref().is_some_and(|o| o.usable_late > 0);
        let until = match group.times.contains_key(&Moment::Usable) && !late {
            true => "done and usable",
            false => "device done",
        };
        vec![
            group.config.vmm.clone(),
            group.config.kernel.clone(),
            step_name(group.kind).to_owned(),
            format_size(group.bytes()),
            group.config.load.clone(),
            block_option(group),
            slot_option(group),
            until.to_owned(),
        ]
    };
    pivot(&mut table, groups, environments, title, Moment::Complete);
    environments.beside(&mut table, groups);
    table
}

/// Adds and removes in detail.
fn dlpar_detail(groups: &[&Group], environments: &Environments) -> Table {
    let mut table = Table::new(
        "Adds and removes in detail",
        &[
            "VMM",
            "kernel",
            "operation",
            "amount",
            "load",
            ">LMB",
            ">LMBs",
            ">guest block",
            ">blocks",
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
        ],
    );
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
    if groups
        .iter()
        .any(|g| g.outcome.as_ref().is_some_and(|o| o.usable_late > 0))
    {
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
    let blocks = crate::plan::rules::blocks(group.bytes(), group.guest_block_bytes());
    let mut row = vec![
        config.vmm.clone(),
        config.kernel.clone(),
        step_name(group.kind).to_owned(),
        format_size(group.bytes()),
        config.load.clone(),
        format_size(config.lmb_size_bytes),
        grouped(group.lmbs()),
        format_size(group.guest_block_bytes()),
        grouped(blocks),
        group.driver_mode(),
        summary(&outcome.requests),
        summary(&outcome.slots),
        median_cell(group, group.times.get(&Moment::FirstRequest)),
        median_cell(group, group.times.get(&Moment::DeviceDone)),
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

/// complete, executed, waited, min, max, spread, n, outliers.
fn spread_cells(group: &Group, timing: Option<&Timing>) -> Vec<String> {
    let show = |summary: Option<&Summary>, pick: fn(&Summary) -> f64| {
        summary.map_or_else(absent, |s| group.unit.show(pick(s)))
    };
    let total = timing.map(|t| &t.total);
    vec![
        show(total, |s| s.median),
        show(timing.and_then(|t| t.executed.as_ref()), |s| s.median),
        show(timing.and_then(|t| t.waited.as_ref()), |s| s.median),
        show(total, |s| s.min),
        show(total, |s| s.max),
        total.map_or_else(absent, |s| percent(s.spread)),
        total.map_or(0, |s| s.n).to_string(),
        total.map_or(0, |s| s.outliers.len()).to_string(),
    ]
}

/// Each outlier by its value: they stay in all figures.
fn outlier_note(groups: &[&Group], moment: Moment) -> Option<String> {
    let mut told = Vec::new();
    for group in groups {
        let Some(timing) = group.times.get(&moment) else {
            continue;
        };
        for outlier in &timing.total.outliers {
            told.push(format!(
                "{} (median {}; {}, LMB {})",
                group.unit.show(*outlier),
                group.unit.show(timing.total.median),
                step_name(group.kind),
                format_size(group.config.lmb_size_bytes)
            ));
        }
    }
    (!told.is_empty()).then(|| {
        format!(
            "Outliers (more than {} robust standard deviations from the median; they stay in): {}.",
            super::stats::OUTLIER_Z,
            told.join(", ")
        )
    })
}

fn median_cell(group: &Group, timing: Option<&Timing>) -> String {
    timing.map_or_else(absent, |t| group.unit.show(t.total.median))
}

fn absent() -> String {
    ABSENT.to_owned()
}

fn size_or_absent(bytes: u64) -> String {
    if bytes == 0 {
        absent()
    } else {
        format_size(bytes)
    }
}

/// How the guest block was chosen: `follows LMB`, or its fixed size.
#[must_use]
pub fn block_option(group: &Group) -> String {
    match group.config.guest_block_option_bytes {
        0 if group.config.vmm == "lmb-vmm" => "follows LMB".to_owned(),
        0 => format_size(group.guest_block_bytes()),
        fixed => format_size(fixed),
    }
}

/// How the slot size was chosen.
fn slot_option(group: &Group) -> String {
    match group.config.slot_size_bytes {
        0 => "default".to_owned(),
        size => format_size(size),
    }
}

/// `boot`, `first add`, …
#[must_use]
pub fn step_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Boot => "boot",
        Kind::Dlpar { step, .. } => match step {
            Step::FirstAdd => "first add",
            Step::FirstRemove => "first remove",
            Step::SecondAdd => "second add",
            Step::SecondRemove => "second remove",
        },
    }
}

#[cfg(test)]
#[path = "tables_tests.rs"]
mod tests;
