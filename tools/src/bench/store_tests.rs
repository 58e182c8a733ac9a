//! Tests of the results file.

use super::*;
use crate::bench::sample::{BootPhases, Clock, Host, Measured};
use crate::bench::testing::config;
use crate::bench::work::Task;

fn sample(sweep: &str, round: u32, warm_up: bool) -> Sample {
    Sample {
        schema: SCHEMA,
        sweep: sweep.to_owned(),
        revision: "unknown".to_owned(),
        round,
        warm_up,
        position: 0,
        host: Host {
            kind: "test".to_owned(),
            native: true,
            clock: Clock::Wall,
            kernel: "6.1".to_owned(),
            cpus: 1,
            memory_bytes: 1 << 30,
        },
        config: config(),
        guest: Guest::default(),
        measured: Measured::Boot {
            phases: BootPhases::default(),
            vmm_memory_bytes: None,
            exits: None,
        },
    }
}

fn job(round: u32, warm_up: bool) -> Job {
    Job {
        config: config(),
        guest: 0,
        task: Task::Boot,
        round,
        warm_up,
        position: 9,
    }
}

#[test]
fn samples_read_back_as_they_were_written() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("new/results.jsonl");
    assert_eq!(read(&path).unwrap(), []);
    let samples = [sample("a", 0, true), sample("a", 0, false)];
    Store::open(&path).unwrap().add(&samples).unwrap();
    Store::open(&path)
        .unwrap()
        .add(&[sample("b", 0, false)])
        .unwrap();
    let all = read(&path).unwrap();
    assert_eq!(all[..2], samples);
    assert_eq!(all[2].sweep, "b");
}

#[test]
fn a_line_cut_short_is_passed_over_and_taken_away() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("results.jsonl");
    Store::open(&path)
        .unwrap()
        .add(&[sample("a", 0, false)])
        .unwrap();
    let whole = fs::read(&path).unwrap();
    for cut in [1, whole.len() / 2, whole.len() - 1] {
        let mut torn = whole.clone();
        torn.extend_from_slice(&whole[..cut]);
        fs::write(&path, &torn).unwrap();
        assert_eq!(read(&path).unwrap().len(), 1);
        Store::open(&path)
            .unwrap()
            .add(&[sample("a", 1, false)])
            .unwrap();
        assert_eq!(read(&path).unwrap().len(), 2, "cut at {cut}");
    }
}

#[test]
fn other_schemas_are_passed_over_and_nonsense_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("results.jsonl");
    let line = serde_json::to_string(&sample("a", 0, false)).unwrap();
    fs::write(&path, format!("{{\"schema\": 99}}\n\n{line}\n")).unwrap();
    assert_eq!(read(&path).unwrap().len(), 1);
    for bad in ["not json", "{\"schema\": 1}"] {
        fs::write(&path, format!("{line}\n{bad}\n")).unwrap();
        let text = read(&path).unwrap_err().to_string();
        assert!(text.contains("line 2"), "{text}");
    }
}

#[test]
fn a_sweep_goes_on_with_what_its_own_samples_lack() {
    let mut asked = sample("b", 0, true);
    asked.guest.block_size_bytes = Some(128 << 20);
    let mut later = sample("b", 1, false);
    later.guest = asked.guest.clone();
    let samples = [sample("a", 5, false), asked, later];
    let done = Done::of_last_sweep(&samples);
    assert_eq!(done.sweep.as_deref(), Some("b"));
    assert!(done.has(&job(0, true)) && done.has(&job(1, false)));
    assert!(!done.has(&job(0, false)), "a warm-up is no round");
    assert!(!done.has(&job(5, false)), "that was another sweep");
    assert_eq!(done.facts.len(), 1);
    let mut other = job(1, false);
    other.config.cpus = 2;
    assert!(!done.has(&other));
    other = job(1, false);
    other.task = Task::Dlpar {
        amount_bytes: 1,
        timeout_ms: 1,
        steps: 4,
        load_bytes: 0,
    };
    assert!(!done.has(&other), "a boot is no add");
    assert_eq!(Done::of_last_sweep(&[]).sweep, None);
}
