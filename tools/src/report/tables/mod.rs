//! The tables of a report, in the article's form and in detail: [`boot`] of
//! boots, [`dlpar`] of adds and removes, and here what they share.

mod boot;
mod dlpar;

use std::collections::BTreeSet;

use super::environment::Environments;
use super::figure::{article_lmb, article_size, grouped, percent};
use super::group::{Group, Kind, Moment, Timing};
use super::stats::Summary;
use super::table::Table;
use crate::bench::sample::Step;
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
pub use boot::{BOOT_SPREAD_LIMIT, boot};
pub use dlpar::{dlpar, per_lmb};

/// All tables of the rows, in order.
#[must_use]
pub fn all(groups: &[Group], environments: &Environments) -> Vec<Table> {
    let mut tables: Vec<Table> = lmb_counts(groups).into_iter().collect();
    tables.extend(boot(groups, environments));
    tables.extend(dlpar(groups, environments));
    tables
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

/// What a pivoted table has columns of.
struct Across {
    value: fn(&Group) -> u64,
    name: fn(u64) -> String,
}

/// LMB sizes, as the article has them.
const LMB_SIZES: Across = Across {
    value: |group| group.config.lmb_size_bytes,
    name: article_lmb,
};

/// A row for each title, a column for each value `across`, and behind them the
/// letter of the environment. Rows that differ in what titles do not show
/// stand apart.
fn pivot(
    table: &mut Table,
    groups: &[&Group],
    environments: &Environments,
    title: impl Fn(&Group) -> Vec<String>,
    (across, moment): (&Across, Moment),
) {
    let values: BTreeSet<u64> = groups.iter().map(|group| (across.value)(group)).collect();
    let values: Vec<u64> = values.into_iter().collect();
    for value in &values {
        table.column(&format!(">{}", (across.name)(*value)));
    }
    table.column("conf.");
    let mut rows: Vec<(Vec<String>, Vec<Option<String>>)> = Vec::new();
    for group in groups {
        let mut head = title(group);
        head.push(environments.letter(group));
        let column = values.iter().position(|v| *v == (across.value)(group));
        let cell = group.times.get(&moment).map_or_else(
            || "none complete".to_owned(),
            |timing| group.unit.show(timing.total.median),
        );
        let free = |row: &(Vec<String>, Vec<Option<String>>)| {
            row.0 == head && column.is_some_and(|c| row.1.get(c).is_some_and(Option::is_none))
        };
        let row = rows.iter().position(free).unwrap_or_else(|| {
            rows.push((head, vec![None; values.len()]));
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
    let names: Vec<String> = values.iter().map(|value| (across.name)(*value)).collect();
    let mut keep = vec!["VMM", "kernel", "operation", "conf."];
    keep.extend(names.iter().map(String::as_str));
    table.fold(&keep);
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

/// How the guest block was chosen: `follows LMB`, the VMM's own way, or its
/// fixed size.
#[must_use]
pub fn block_option(group: &Group) -> String {
    match group.config.guest_block_option_bytes {
        0 if group.config.vmm == "lmb-vmm" => "follows LMB".to_owned(),
        0 => "VMM's own".to_owned(),
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
mod tests;
