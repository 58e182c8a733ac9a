//! What a sweep says to people.

use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use lmb_memory::Hotplug;

use super::sample::{Clock, Config, Measured, Sample, Span, Step};
use super::store;
use super::work::{Job, Task, Work};
use crate::host;
use crate::report::environment::Environments;
use crate::report::group::group;
use crate::report::table::Table;
use crate::report::tables;
use crate::units::format_size;

/// What will be run.
pub(super) fn plan(work: &Work, all: usize, cases: usize) -> String {
    let left = work.jobs.len();
    let mut text = format!("{cases} configurations, {all} guests");
    if left < all {
        let _ = write!(text, ", {} of them measured already", all - left);
    }
    let _ = write!(text, "; sweep {}, revision {}", work.sweep, work.revision);
    text
}

/// What the virtual host's clock counts.
pub(super) const fn clock(clock: host::Clock) -> &'static str {
    match clock {
        host::Clock::Wall => "by the wall clock, which shows how busy this machine is too",
        host::Clock::Instructions => {
            "figures are instructions (1 ns = 1 instruction), not seconds; they do not depend on \
             how busy this machine is"
        }
    }
}

/// A job in a few words.
pub(super) fn job(job: &Job) -> String {
    let round = job.round.saturating_add(1);
    let round = if job.warm_up {
        format!("warm-up {round}")
    } else {
        format!("round {round}")
    };
    let task = match job.task {
        Task::Boot => format!("boot {}", booted(&job.config)),
        Task::Dlpar { amount_bytes, .. } => format!("add/remove {}", format_size(amount_bytes)),
    };
    format!("{round}: {task}, {}", config(&job.config))
}

/// A boot's memory, and the LMBs that could come later.
fn booted(config: &Config) -> String {
    let all = config
        .memory_bytes
        .saturating_add(config.plugged_at_boot_bytes);
    match config.empty_lmbs() {
        0 => format_size(all),
        lmbs => format!("{} and {lmbs} empty LMBs", format_size(all)),
    }
}

fn config(config: &Config) -> String {
    let mut text = format!(
        "{}, LMB {}, kernel {}",
        config.vmm,
        format_size(config.lmb_size_bytes),
        config.kernel
    );
    if config.hotplug != Hotplug::VirtioMem.name() {
        let _ = write!(text, ", {}", config.hotplug);
    }
    if config.guest_block_option_bytes > 0 {
        let block = format_size(config.guest_block_option_bytes);
        let _ = write!(text, ", guest block {block}");
    }
    if config.plugged_at_boot_bytes > 0 {
        text.push_str(", plugged at boot");
    }
    if config.cpus > 1 {
        let _ = write!(text, ", {} vCPUs", config.cpus);
    }
    if config.load != "none" {
        let _ = write!(text, ", load {}", config.load);
    }
    text
}

/// A sample in a line.
pub(super) fn sample(sample: &Sample) -> String {
    let clock = sample.host.clock;
    let span = |span: &Option<Span>| span.map_or("-".to_owned(), |s| amount(s.end_ns, clock));
    let mut text = config(&sample.config);
    let _ = match &sample.measured {
        Measured::Boot { phases, .. } => write!(
            text,
            ": boot {}: first entry {}, init {}, usable {}",
            booted(&sample.config),
            span(&phases.first_entry),
            span(&phases.init),
            span(&phases.usable)
        ),
        Measured::Dlpar {
            step,
            amount_bytes,
            done_bytes,
            complete,
            phases,
            ..
        } => {
            let name = match step {
                Step::FirstAdd => "first add",
                Step::FirstRemove => "first remove",
                Step::SecondAdd => "second add",
                Step::SecondRemove => "second remove",
            };
            let end = if *complete {
                String::new()
            } else {
                let left = amount_bytes.saturating_sub(*done_bytes);
                format!(", INCOMPLETE: {} left", format_size(left))
            };
            write!(
                text,
                ": {name} {}: device {}, usable {}{end}",
                format_size(*amount_bytes),
                span(&phases.device_done),
                span(&phases.usable)
            )
        }
    };
    if sample.warm_up {
        text.push_str(" (warm-up)");
    }
    text
}

/// A time: seconds are for the wall clock alone.
fn amount(ns: u64, clock: Clock) -> String {
    let thousandths = ns / 1000;
    let (whole, rest) = (thousandths / 1000, thousandths % 1000);
    match clock {
        Clock::Wall => format!("{whole}.{rest:03} ms"),
        Clock::Instructions => format!("{whole}.{rest:03} M instr"),
    }
}

/// The tables of a results file's last sweep.
pub(super) fn tables(out: &Path) -> Result<String> {
    let samples = store::read(out)?;
    let last = samples.last().map(|sample| sample.sweep.clone());
    let of_sweep = samples
        .iter()
        .filter(|one| Some(&one.sweep) == last.as_ref());
    let groups = group(of_sweep);
    let tables: Vec<String> = tables::all(&groups, &Environments::of(&groups))
        .iter()
        .map(Table::terminal)
        .collect();
    Ok(tables.join("\n"))
}

/// The version that a program names: the first word that is a digit, with a
/// `v` before it perhaps, and has a dot in it.
pub(super) fn version(program: &Path) -> Result<String> {
    let output = Command::new(program)
        .arg("--version")
        .output()
        .with_context(|| format!("cannot run {}", program.display()))?;
    find_version(&String::from_utf8_lossy(&output.stdout))
        .with_context(|| format!("{} --version names no version", program.display()))
}

fn find_version(text: &str) -> Option<String> {
    text.split_whitespace()
        .map(|word| word.strip_prefix('v').unwrap_or(word))
        .find(|word| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.'))
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_the_vmms() {
        for (text, version) in [
            ("lmb-vmm 0.1.0\n", Some("0.1.0")),
            (
                "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7)\nCopyright (c) 2003",
                Some("7.2.22"),
            ),
            ("Firecracker v1.12.1\n\n2026-11-30 exiting", Some("1.12.1")),
            ("cloud-hypervisor v54.0.0\n", Some("54.0.0")),
            ("no version here", None),
        ] {
            assert_eq!(find_version(text).as_deref(), version);
        }
    }

    #[test]
    fn instructions_are_never_shown_as_time() {
        assert_eq!(amount(1_627_456_999, Clock::Wall), "1627.456 ms");
        assert_eq!(
            amount(1_627_456_999, Clock::Instructions),
            "1627.456 M instr"
        );
    }
}
