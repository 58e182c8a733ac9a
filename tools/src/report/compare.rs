//! Two sets of results, row by row: did anything get slower?
//!
//! Rows match if configuration, host and operation are equal; the VMM's version
//! and the revision may differ, since they are what is compared, and so may the
//! host's memory, if all else of it is equal. A row is
//! slower if the median of one of its moments grew by more than the limit, or
//! if fewer of its operations reached their target. Rows of one side only are
//! listed, with what differs from the nearest row of the other side.

use lmb_memory::Hotplug;
use serde::Serialize;
use serde_json::Value;

use super::figure::{Unit, change, percent};
use super::group::{Group, Kind, Moment};
use super::plural;
use super::stats::real;
use super::table::Table;
use super::tables::step_name;
use crate::bench::sample::{Config, Host};
use crate::units::format_size;

/// Moments that are compared.
const MOMENTS: [Moment; 3] = [Moment::Init, Moment::DeviceDone, Moment::Usable];

/// One moment on both sides.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    /// Which row, in words.
    pub row: String,
    /// Which moment.
    pub moment: Moment,
    /// Unit of the medians.
    pub unit: Unit,
    /// Median of the base.
    pub base_ns: f64,
    /// Median of the new.
    pub new_ns: f64,
    /// new / base - 1.
    pub change: f64,
    /// The larger spread of the two.
    pub spread: f64,
    /// Whether it is past the limit.
    pub slower: bool,
}

/// A row whose operations reach their target less often.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failing {
    /// Which row.
    pub row: String,
    /// Reached and all, base.
    pub base: (usize, usize),
    /// Reached and all, new.
    pub new: (usize, usize),
}

/// A row of one side only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OneSided {
    /// Which row.
    pub row: String,
    /// Fields in which the nearest row of the other side differs.
    pub differs: Vec<String>,
}

/// The comparison.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Share by which a median may grow.
    pub limit: f64,
    /// Moments of the rows that match.
    pub changes: Vec<Change>,
    /// Rows that reach their target less often.
    pub failing: Vec<Failing>,
    /// Rows of the base alone.
    pub base_only: Vec<OneSided>,
    /// Rows of the new alone.
    pub new_only: Vec<OneSided>,
}

/// Compares.
#[must_use]
pub fn compare(base: &[Group], new: &[Group], limit: f64) -> Comparison {
    let mut comparison = Comparison {
        limit,
        changes: Vec::new(),
        failing: Vec::new(),
        base_only: one_sided(base, new),
        new_only: one_sided(new, base),
    };
    for old in base {
        if let Some(now) = new.iter().find(|now| same(old, now)) {
            comparison.row(old, now);
        }
    }
    comparison
}

impl Comparison {
    fn row(&mut self, old: &Group, now: &Group) {
        let row = name(old);
        for moment in MOMENTS {
            let (Some(base), Some(new)) = (old.times.get(&moment), now.times.get(&moment)) else {
                continue;
            };
            let (base_ns, new_ns) = (base.total.median, new.total.median);
            if base_ns <= 0.0 {
                continue;
            }
            let change = new_ns / base_ns - 1.0;
            self.changes.push(Change {
                row: row.clone(),
                moment,
                unit: old.unit,
                base_ns,
                new_ns,
                change,
                spread: base.total.spread.max(new.total.spread),
                slower: change > self.limit,
            });
        }
        if let (Some(base), Some(new)) = (&old.outcome, &now.outcome) {
            let share = |complete: usize, of: usize| to_real(complete) / to_real(of.max(1));
            if share(new.complete, new.of) < share(base.complete, base.of) {
                self.failing.push(Failing {
                    row,
                    base: (base.complete, base.of),
                    new: (new.complete, new.of),
                });
            }
        }
    }

    /// Whether anything got slower or fails more often.
    #[must_use]
    pub fn slower(&self) -> bool {
        !self.failing.is_empty() || self.changes.iter().any(|change| change.slower)
    }

    /// Whether no row matched, so that nothing was compared.
    #[must_use]
    pub fn nothing_compared(&self) -> bool {
        self.changes.is_empty() && self.failing.is_empty()
    }

    /// Rows that got slower or fail more often, a sentence each.
    #[must_use]
    pub fn verdicts(&self) -> Vec<String> {
        let slower = self.changes.iter().filter(|change| change.slower).map(|c| {
            format!(
                "slower: {}: {} {} (from {} to {}, limit {})",
                c.row,
                c.moment.name(),
                change(c.change),
                c.unit.show(c.base_ns),
                c.unit.show(c.new_ns),
                change(self.limit)
            )
        });
        let failing = self.failing.iter().map(|f| {
            format!(
                "fails more often: {}: {} of {} reached the target, {} of {} before",
                f.row, f.new.0, f.new.1, f.base.0, f.base.1
            )
        });
        slower.chain(failing).collect()
    }

    /// The comparison as a table.
    #[must_use]
    pub fn table(&self) -> Table {
        let mut table = Table::new(
            "Compared with the base",
            &[
                "row", "moment", ">base", ">new", ">change", ">spread", "verdict",
            ],
        );
        for c in &self.changes {
            let verdict = match (c.slower, c.change < -self.limit) {
                (true, _) => "SLOWER",
                (_, true) => "faster",
                _ => "same",
            };
            table.rows.push(vec![
                c.row.clone(),
                c.moment.name().to_owned(),
                c.unit.show(c.base_ns),
                c.unit.show(c.new_ns),
                change(c.change),
                percent(c.spread),
                verdict.to_owned(),
            ]);
        }
        let matched = self.changes.len();
        table.notes.push(format!(
            "Medians of {}; SLOWER is more than {}. spread: (max - min) / median, the larger side.",
            plural(u64::try_from(matched).unwrap_or(u64::MAX), "pair"),
            change(self.limit)
        ));
        if self.changes.iter().any(|c| c.spread > self.limit) {
            table.notes.push(
                "Where the spread is larger than the limit a difference of that size may be noise: \
                 take more repeats, or the instruction clock."
                    .to_owned(),
            );
        }
        table.notes.extend(self.verdicts());
        table.notes.extend(sentences("base", &self.base_only));
        table.notes.extend(sentences("new", &self.new_only));
        table
    }
}

fn to_real(count: usize) -> f64 {
    real(u64::try_from(count).unwrap_or(u64::MAX))
}

fn sentences<'a>(side: &'a str, rows: &'a [OneSided]) -> impl Iterator<Item = String> + 'a {
    rows.iter().map(move |row| {
        let differs = if row.differs.is_empty() {
            String::new()
        } else {
            format!(" (the nearest differs in {})", row.differs.join(", "))
        };
        format!("only in the {side}: {}{differs}", row.row)
    })
}

fn unversioned(config: &Config) -> Config {
    Config {
        vmm_version: String::new(),
        ..config.clone()
    }
}

/// A kernel's update changes the memory it reports by a few pages.
fn unsized_host(host: &Host) -> Host {
    Host {
        memory_bytes: 0,
        ..host.clone()
    }
}

fn same(a: &Group, b: &Group) -> bool {
    a.kind == b.kind
        && unsized_host(&a.host) == unsized_host(&b.host)
        && unversioned(&a.config) == unversioned(&b.config)
}

fn one_sided(rows: &[Group], others: &[Group]) -> Vec<OneSided> {
    rows.iter()
        .filter(|row| !others.iter().any(|other| same(row, other)))
        .map(|row| OneSided {
            row: name(row),
            differs: others
                .iter()
                .filter(|other| step_name(other.kind) == step_name(row.kind))
                .map(|other| differences(row, other))
                .min_by_key(Vec::len)
                .unwrap_or_default(),
        })
        .collect()
}

/// Names of the fields in which two rows differ, with both values.
fn differences(a: &Group, b: &Group) -> Vec<String> {
    let mut all = Vec::new();
    let pairs = [
        (
            "config.",
            json(&unversioned(&a.config)),
            json(&unversioned(&b.config)),
        ),
        (
            "host.",
            json(&unsized_host(&a.host)),
            json(&unsized_host(&b.host)),
        ),
        ("", json(&a.kind), json(&b.kind)),
    ];
    for (prefix, a, b) in pairs {
        let (Value::Object(a), Value::Object(b)) = (a, b) else {
            continue;
        };
        for (key, value) in &a {
            let other = b.get(key).unwrap_or(&Value::Null);
            if other != value {
                all.push(format!("{prefix}{key}: {value} and {other}"));
            }
        }
    }
    all
}

fn json(value: &impl Serialize) -> Value {
    serde_json::to_value(value).unwrap_or_default()
}

/// A row in words.
fn name(group: &Group) -> String {
    let config = &group.config;
    let mut parts = vec![
        step_name(group.kind).to_owned(),
        config.vmm.clone(),
        config.kernel.clone(),
        format!("LMB {}", format_size(config.lmb_size_bytes)),
        format!("guest block {}", format_size(group.guest_block_bytes())),
        format_size(group.bytes()),
        plural(u64::from(config.cpus), "vCPU"),
    ];
    if group.hotplug() != Hotplug::VirtioMem {
        parts.push(config.hotplug.clone());
    }
    if group.empty_lmbs() > 0 {
        parts.push(plural(group.empty_lmbs(), "empty LMB"));
    }
    if config.plugged_at_boot_bytes > 0 {
        parts.push(format!(
            "{} of it plugged",
            format_size(config.plugged_at_boot_bytes)
        ));
    }
    if matches!(group.kind, Kind::Dlpar { .. }) && config.load != "none" {
        parts.push(format!("load {}", config.load));
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::sample::{Measured, Sample, Step};
    use crate::report::group::group;
    use crate::report::testing::{Boot, Costs, Dlpar, GIB, MIB};
    use proptest::prelude::*;

    fn boots(lmb: u64, constant: u64) -> Vec<Sample> {
        let costs = Costs {
            constant,
            ..Costs::BOOT
        };
        Boot {
            lmb,
            costs,
            ..Boot::default()
        }
        .samples(3)
    }

    #[test]
    fn the_row_that_got_slower_is_named() {
        let mut base = boots(256 * MIB, 1_200_000_000);
        base.extend(boots(GIB, 1_200_000_000));
        let mut new = boots(256 * MIB, 1_200_000_000);
        new.extend(boots(GIB, 1_300_000_000));
        let comparison = compare(&group(&base), &group(&new), 0.01);
        assert!(comparison.slower());
        let verdicts = comparison.verdicts();
        assert_eq!(verdicts.len(), 2, "{verdicts:?}");
        assert!(
            verdicts[0].starts_with("slower: boot, lmb-vmm, 6.1.0-18-cloud-amd64, LMB 1 GiB"),
            "{verdicts:?}"
        );
        assert!(
            verdicts[0].contains("init +6.99 %") && verdicts[0].contains("limit +1.00 %"),
            "{verdicts:?}"
        );
        let table = comparison.table();
        assert_eq!(
            table.rows.iter().filter(|row| row[6] == "SLOWER").count(),
            2
        );
    }

    #[test]
    fn revision_and_version_may_differ_and_nothing_else() {
        let base = boots(GIB, 1_200_000_000);
        let mut new = base.clone();
        for sample in &mut new {
            sample.revision = "new".to_owned();
            sample.config.vmm_version = "0.2.0".to_owned();
            sample.host.memory_bytes -= 4096;
        }
        let comparison = compare(&group(&base), &group(&new), 0.01);
        assert!(!comparison.slower() && !comparison.nothing_compared());
        for sample in &mut new {
            sample.host.kernel = "6.2".to_owned();
        }
        let comparison = compare(&group(&base), &group(&new), 0.01);
        assert!(comparison.nothing_compared());
        let notes = comparison.table().notes.join("\n");
        assert!(notes.contains("only in the base: boot"), "{notes}");
        assert!(
            notes.contains("host.kernel: \"6.1.0-18-cloud-amd64\" and \"6.2\")"),
            "{notes}"
        );
    }

    #[test]
    fn an_operation_that_fails_more_often_is_a_regression() {
        let base: Vec<Sample> = (0..2)
            .map(|n| Dlpar::default().sample(Step::FirstRemove, n))
            .collect();
        let mut new = base.clone();
        if let Measured::Dlpar {
            complete, phases, ..
        } = &mut new[0].measured
        {
            *complete = false;
            phases.device_done = None;
        }
        let comparison = compare(&group(&base), &group(&new), 0.5);
        assert!(comparison.slower());
        assert!(comparison.verdicts()[0].ends_with("1 of 2 reached the target, 2 of 2 before"));
    }

    proptest! {
        #[test]
        fn a_row_is_slower_exactly_past_the_limit(by in -500i64..500, limit in 0.0f64..0.05) {
            let base = group(&boots(GIB, 1_000_000_000));
            let constant = 1_000_000_000u64.saturating_add_signed(by * 100_000);
            let new = group(&boots(GIB, constant));
            let comparison = compare(&base, &new, limit);
            let grew = comparison.changes.iter().any(|c| c.new_ns > c.base_ns * (1.0 + limit));
            prop_assert_eq!(comparison.slower(), grew);
            // Both ways cannot be slower.
            if grew {
                prop_assert!(!compare(&new, &base, limit).slower());
            }
        }
    }
}
