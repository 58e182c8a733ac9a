//! Tests with real guests. Each is a trial of its own; the usual flags of
//! `cargo test` work (`--list`, a filter, `--exact`, `--ignored`).
//!
//! Where guests cannot run every trial that needs one is ignored, and the
//! reason is printed once. `LMB_TEST_SHARD=1/2` runs the first of two shares of the
//! trials, for two hosts at once.

mod acpi;
mod api;
mod boot;
mod cases;
mod cli;
mod geometry;
mod memory;
mod native;
mod refusals;
mod removal;
mod sandbox;
mod shared;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};
use lmb_tests::{report, why_no_guests};

use cases::{Case, Needs, Shard};

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Guests share the host's few processors, and their timing is looked at.
    arguments.test_threads = arguments.test_threads.or(Some(1));
    let shard = match Shard::from_environment() {
        Ok(shard) => shard,
        Err(error) => {
            eprintln!("{error:#}");
            return ExitCode::FAILURE;
        }
    };
    let no_guests = why_no_guests();
    if let Some(reason) = &no_guests
        && !arguments.list
    {
        eprintln!("trials with guests are ignored: {reason}");
    }
    let trials = shard
        .take(all())
        .into_iter()
        .map(|case| trial(&case, no_guests.is_some()))
        .collect();
    report::keep_panics();
    let conclusion = libtest_mimic::run(&arguments, trials);
    shared::end();
    conclusion.exit_code()
}

fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for part in [
        boot::CASES,
        memory::CASES,
        removal::CASES,
        refusals::CASES,
        api::CASES,
        cli::CASES,
        geometry::CASES,
        acpi::CASES,
        native::CASES,
        sandbox::CASES,
    ] {
        cases.extend_from_slice(part);
    }
    cases
}

fn trial(case: &Case, no_guests: bool) -> Trial {
    let Case { name, run, .. } = *case;
    let ignored = match case.needs {
        Needs::Guests => no_guests,
        Needs::Nothing => false,
        Needs::Machine(why_not) => why_not().is_some(),
    };
    Trial::test(name, move || report::run(run).map_err(Failed::from)).with_ignored_flag(ignored)
}
