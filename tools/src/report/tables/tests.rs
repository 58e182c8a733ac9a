//! Tables from generated samples, compared with what went in.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::bench::sample::Measured;
use crate::report::group::group;
use crate::report::table::Column;
use crate::report::testing::{Boot, Dlpar, GIB, MIB, native_host};

fn tables(samples: &[crate::bench::sample::Sample]) -> Vec<Table> {
    let groups = group(samples);
    all(&groups, &Environments::of(&groups))
}

fn find<'a>(tables: &'a [Table], title: &str) -> &'a Table {
    tables.iter().find(|table| table.title == title).unwrap()
}

fn cell<'a>(table: &'a Table, row: usize, column: &str) -> &'a str {
    let with_unit = format!("{column} [");
    let is = |c: &Column| c.name == column || c.name.starts_with(&with_unit);
    let index = table.columns.iter().position(is).unwrap();
    &table.rows[row][index]
}

#[test]
fn boot_has_a_row_for_each_kernel_and_a_column_for_each_size() {
    let mut samples = Vec::new();
    for lmb in [128 * MIB, 4 * GIB] {
        samples.extend(
            Boot {
                lmb,
                ..Boot::default()
            }
            .samples(3),
        );
        let newer = Boot {
            lmb,
            edit: |config| config.kernel = "6.12".to_owned(),
            ..Boot::default()
        };
        samples.extend(newer.samples(3));
    }
    let tables = tables(&samples);
    let table = find(&tables, "Boot time by LMB size");
    assert_eq!(table.rows.len(), 2);
    assert_eq!(cell(table, 0, "128 MB"), "1,699.2 M instr");
    assert_eq!(cell(table, 0, "4096 MB"), "1,411.2 M instr");
    assert_eq!(
        (cell(table, 0, "conf."), cell(table, 1, "conf.")),
        ("a", "b")
    );
    assert!(
        table
            .notes
            .iter()
            .any(|n| n.starts_with("conf. b: ") && n.contains("6.12"))
    );
    let counts = find(&tables, "LMBs needed");
    assert_eq!(counts.rows, [["64 GB", "512", "16"]]);
}

#[test]
fn empty_lmbs_are_across_and_kinds_of_hotplug_below_each_other() {
    let mut samples = Vec::new();
    for empty in [0, 256, 4096] {
        for edit in [
            (|_| ()) as fn(&mut crate::bench::sample::Config),
            |config| config.hotplug = "acpi".to_owned(),
        ] {
            let boot = Boot {
                empty,
                edit,
                ..Boot::default()
            };
            samples.extend(boot.samples(2));
        }
    }
    // A boot of another size has nothing to stand beside.
    let other = Boot {
        edit: |config| config.memory_bytes *= 2,
        ..Boot::default()
    };
    samples.extend(other.samples(2));
    let tables = tables(&samples);
    let table = find(&tables, "Boot time by LMBs left empty");
    let kinds = [cell(table, 0, "hotplug"), cell(table, 1, "hotplug")];
    assert_eq!((table.rows.len(), kinds), (2, ["acpi", "virtio-mem"]));
    for column in ["no window", "256", "4,096"] {
        assert!(cell(table, 0, column).contains("instr"), "{column}");
    }
    assert_eq!(find(&tables, "Boot time by LMB size").rows.len(), 3);
    assert_eq!(find(&tables, "Boots in detail").rows.len(), 7);
}

#[test]
fn adds_by_acpi_and_virtio_mem_are_rows_of_their_own() {
    let mut samples = Dlpar::default().samples(2);
    let mut acpi = Dlpar {
        edit: |config| config.hotplug = "acpi".to_owned(),
        ..Dlpar::default()
    }
    .samples(2);
    for sample in &mut acpi {
        sample.guest.usable_per_block_bytes = Some(252 * MIB);
    }
    samples.extend(acpi);
    let tables = tables(&samples);
    let detail = find(&tables, "Adds and removes in detail");
    assert_eq!(detail.rows.len(), 8);
    assert_eq!(
        (cell(detail, 0, "hotplug"), cell(detail, 0, "driver mode")),
        ("acpi", "acpi")
    );
    assert_eq!(cell(detail, 0, "usable per block"), "252 MiB");
    assert_eq!(cell(detail, 1, "driver mode"), "big-block");
    assert!(
        detail
            .notes
            .join("\n")
            .contains("LMBs that the guest was asked")
    );
}

#[test]
fn rows_of_every_table_are_as_wide_as_its_head() {
    let mut samples = Boot {
        plugged: 8 * GIB,
        ..Boot::default()
    }
    .samples(2);
    samples.extend(Dlpar::default().samples(2));
    for table in tables(&samples) {
        assert!(!table.rows.is_empty(), "{}", table.title);
        for row in &table.rows {
            assert_eq!(row.len(), table.columns.len(), "{}", table.title);
        }
        let mut names: Vec<&str> = table.columns.iter().map(|c| c.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), table.columns.len(), "{}", table.title);
    }
}

#[test]
fn the_spread_of_boot_is_held_against_its_limit() {
    let steady = tables(&Boot::default().samples(4));
    let notes = find(&steady, "Boots in detail").notes.join("\n");
    assert!(
        notes.contains("at most 0.0040 %, under 0.10 % in every row"),
        "{notes}"
    );
    let mut samples = Boot::default().samples(4);
    if let Measured::Boot { phases, .. } = &mut samples[3].measured {
        phases.usable.as_mut().unwrap().end_ns += 100_000_000;
    }
    let noisy = tables(&samples);
    let notes = find(&noisy, "Boots in detail").notes.join("\n");
    assert!(notes.contains("0.10 % or more in 1 of 1 rows"), "{notes}");
    assert!(notes.contains("Outliers"), "{notes}");
}

#[test]
fn add_and_remove_show_what_was_reached_and_left() {
    let mut samples = Dlpar::default().samples(2);
    if let Measured::Dlpar {
        complete,
        done_bytes,
        phases,
        ..
    } = &mut samples[1].measured
    {
        *complete = false;
        *done_bytes = 30 * GIB;
        phases.device_done = None;
    }
    let tables = tables(&samples);
    let detail = find(&tables, "Adds and removes in detail");
    let remove = detail
        .rows
        .iter()
        .position(|row| row[0] == "first remove")
        .unwrap();
    assert_eq!(cell(detail, remove, "reached"), "1 of 2");
    assert_eq!(cell(detail, remove, "left"), "2 GiB");
    assert_eq!(cell(detail, remove, "driver mode"), "big-block");
    assert_eq!(cell(detail, remove, "guest block"), "256 MiB");
    assert_eq!(cell(detail, remove, "n"), "1");
}

#[test]
fn a_late_usable_is_marked_and_left_out_of_complete() {
    let mut samples = vec![Dlpar::default().sample(Step::FirstAdd, 0)];
    if let Measured::Dlpar { phases, .. } = &mut samples[0].measured {
        phases.usable_late = true;
    }
    let tables = tables(&samples);
    let detail = find(&tables, "Adds and removes in detail");
    assert!(cell(detail, 0, "guest usable").starts_with('~'));
    assert_eq!(cell(detail, 0, "complete"), cell(detail, 0, "device done"));
    assert_eq!(
        cell(
            find(&tables, "Adding and removing memory by LMB size"),
            0,
            "until"
        ),
        "device done"
    );
}

#[test]
fn a_late_device_is_marked_and_complete_is_the_guests() {
    let mut samples = vec![Dlpar::default().sample(Step::FirstAdd, 0)];
    if let Measured::Dlpar { phases, .. } = &mut samples[0].measured {
        phases.device_late = true;
        phases.device_done = phases.usable.map(|mut late| {
            late.end_ns += 5_000_000;
            late
        });
    }
    let tables = tables(&samples);
    let detail = find(&tables, "Adds and removes in detail");
    assert!(cell(detail, 0, "device done").starts_with('~'));
    assert_eq!(cell(detail, 0, "complete"), cell(detail, 0, "guest usable"));
    let by_size = find(&tables, "Adding and removing memory by LMB size");
    assert_eq!(cell(by_size, 0, "until"), "usable");
}

#[test]
fn seconds_are_of_native_kvm_alone() {
    let native = Boot {
        host: native_host(),
        ..Boot::default()
    };
    let text: String = tables(&native.samples(2))
        .iter()
        .map(Table::terminal)
        .collect();
    assert!(text.contains(" s ") && !text.contains("M instr"), "{text}");
    let text: String = tables(&Boot::default().samples(2))
        .iter()
        .flat_map(|table| {
            let heads = table.columns.iter().map(|c| c.name.replace(['[', ']'], ""));
            heads.chain(table.rows.concat()).collect::<Vec<_>>()
        })
        .collect::<Vec<_>>()
        .join("\n");
    assert!(
        !text
            .lines()
            .any(|cell| cell.ends_with(" s") || cell.ends_with(" ms")),
        "{text}"
    );
}

#[test]
fn configurations_that_differ_out_of_sight_do_not_hide_each_other() {
    let mut samples = Dlpar::default().samples(1);
    samples.extend(
        Dlpar {
            slot: 4 * GIB,
            ..Dlpar::default()
        }
        .samples(1),
    );
    let tables = tables(&samples);
    let table = find(&tables, "Adding and removing memory by LMB size");
    assert_eq!(table.rows.len(), 8);
}
