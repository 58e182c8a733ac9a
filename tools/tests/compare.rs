//! `lmb report --compare` as a CI job calls it: its exit code, and the row it
//! names.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use lmb_tools::bench::sample::{
    BootPhases, Clock, Config, Guest, Host, Measured, SCHEMA, Sample, Span,
};

const GIB: u64 = 1 << 30;

/// A boot with LMBs of `lmb_mib` whose init ran after `init_ns`.
fn boot(lmb_mib: u64, init_ns: u64) -> Sample {
    let span = |end_ns| {
        Some(Span {
            end_ns,
            end_cpu_ns: Some(end_ns),
        })
    };
    Sample {
        schema: SCHEMA,
        sweep: "2026-11-30T10:00:00Z".to_owned(),
        revision: "0123456789ab".to_owned(),
        round: 0,
        warm_up: false,
        position: 0,
        host: Host {
            kind: "virtual KVM host".to_owned(),
            native: false,
            clock: Clock::Instructions,
            kernel: "6.1".to_owned(),
            cpus: 1,
            memory_bytes: GIB,
        },
        config: Config {
            vmm: "lmb-vmm".to_owned(),
            vmm_version: "0.1.0".to_owned(),
            hotplug: "virtio-mem".to_owned(),
            kernel: "6.1".to_owned(),
            kernel_entry: "elf".to_owned(),
            cmdline: "quiet".to_owned(),
            cpus: 1,
            memory_bytes: 8 * GIB,
            max_memory_bytes: 8 * GIB,
            plugged_at_boot_bytes: 0,
            lmb_size_bytes: lmb_mib << 20,
            guest_block_option_bytes: 0,
            slot_size_bytes: 0,
            hugepages: "thp".to_owned(),
            load: "none".to_owned(),
        },
        guest: Guest::default(),
        measured: Measured::Boot {
            phases: BootPhases {
                first_entry: span(init_ns / 10),
                init: span(init_ns),
                usable: span(init_ns),
            },
            vmm_memory_bytes: None,
            exits: None,
        },
    }
}

fn save(path: &Path, samples: &[Sample]) {
    let lines: String = samples
        .iter()
        .map(|sample| serde_json::to_string(sample).unwrap() + "\n")
        .collect();
    fs::write(path, lines).unwrap();
}

/// Compares two lists of samples with the limit 1%.
fn compare(base: &[Sample], new: &[Sample]) -> Output {
    let place = tempfile::tempdir().unwrap();
    save(&place.path().join("base.jsonl"), base);
    save(&place.path().join("new.jsonl"), new);
    Command::new(env!("CARGO_BIN_EXE_lmb"))
        .args(["report", "--compare", "base.jsonl", "new.jsonl"])
        .args(["--fail-above", "1%"])
        .current_dir(place.path())
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[test]
fn equal_results_and_small_changes_pass() {
    let base = [boot(128, 3_000_000_000), boot(512, 2_000_000_000)];
    let equal = compare(&base, &base);
    assert_eq!(equal.status.code(), Some(0), "{equal:?}");
    let near = [boot(128, 3_029_000_000), boot(512, 1_000_000_000)];
    let near = compare(&base, &near);
    assert_eq!(near.status.code(), Some(0), "{near:?}");
}

#[test]
fn the_row_that_got_slower_is_named_with_exit_code_6() {
    let base = [boot(128, 3_000_000_000), boot(512, 2_000_000_000)];
    let new = [boot(128, 3_000_000_000), boot(512, 2_021_000_000)];
    let slower = compare(&base, &new);
    assert_eq!(slower.status.code(), Some(6), "{slower:?}");
    let said = String::from_utf8(slower.stderr).unwrap();
    let named: Vec<&str> = said.lines().filter(|l| l.contains("slower")).collect();
    // One line for each moment of the row.
    assert!(!named.is_empty(), "{said}");
    for line in named {
        assert!(line.contains("boot") && line.contains("512 MiB"), "{said}");
    }
    assert!(!said.contains("128 MiB"), "{said}");
}

#[test]
fn results_without_a_row_in_common_are_an_error() {
    let none = compare(&[boot(128, 3_000_000_000)], &[boot(256, 3_000_000_000)]);
    assert_eq!(none.status.code(), Some(1), "{none:?}");
}
