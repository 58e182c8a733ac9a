//! `cargo xtask test`: format, lints, unit tests, fuzz targets, then guests. Every step runs
//! even when an earlier one failed; the last line counts them all.

use std::time::Instant;

use anyhow::Result;
use clap::{Args, ValueEnum};
use lmb_tools::packages::find_program;

use crate::artifacts::Programs;
use crate::cargo::{cargo, succeeds, watched};
use crate::fuzz;
use crate::guests;
use crate::tally::Tally;

/// Options of `cargo xtask test`.
#[derive(Debug, Args)]
pub(crate) struct TestArgs {
    /// Only tests whose names contain this, without format and lints
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Only this kind of tests
    #[arg(long, value_enum)]
    only: Option<Kind>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// Tests that run in cargo alone, with format and lints
    Unit,
    /// A short run of each fuzz target
    Fuzz,
    /// Tests of the guest program: real guests, command line, layouts
    Guest,
}

/// Runs the tests: whether all passed.
///
/// # Errors
/// When a step cannot be run at all.
pub(crate) fn run(args: &TestArgs) -> Result<bool> {
    let start = Instant::now();
    let filter = args.filter.as_deref();
    let mut tally = Tally::default();
    let wanted = |kind| args.only.is_none_or(|only| only == kind);
    if wanted(Kind::Unit) {
        if filter.is_none() {
            lints(&mut tally)?;
        }
        unit_tests(&mut tally, filter)?;
    }
    if wanted(Kind::Fuzz) {
        fuzz::short(&mut tally, filter)?;
    }
    if wanted(Kind::Guest) {
        match Programs::build_with_tests() {
            Ok(programs) => tally.add(guests::run(&programs, filter)?),
            Err(error) => {
                eprintln!("{error:#}");
                tally.step("release build", false);
            }
        }
    }
    for failure in &tally.failures {
        println!("failed: {failure}");
    }
    println!("took {} s", start.elapsed().as_secs());
    println!("{tally}");
    Ok(tally.failed == 0)
}

fn lints(tally: &mut Tally) -> Result<()> {
    println!("== format and lints");
    let ok = succeeds(&mut cargo(&["fmt", "--all", "--check"]))?;
    tally.step("cargo fmt --all --check", ok);
    let fuzz = ["fmt", "--manifest-path", "fuzz/Cargo.toml", "--check"];
    tally.step("cargo fmt of fuzz/", succeeds(&mut cargo(&fuzz))?);
    let ok = succeeds(&mut cargo(&[
        "clippy",
        "--quiet",
        "--workspace",
        "--all-targets",
        "--",
        "--deny",
        "warnings",
    ]))?;
    tally.step("cargo clippy", ok);
    Ok(())
}

fn unit_tests(tally: &mut Tally, filter: Option<&str>) -> Result<()> {
    println!("== unit tests");
    let mut command = if find_program("cargo-nextest").is_some() {
        // The tests with guests have a runner of their own.
        let mut command = cargo(&[
            "nextest",
            "run",
            "--workspace",
            "--no-fail-fast",
            "--no-tests=pass",
            "--filterset",
            "not binary_id(lmb-tests::guest)",
        ]);
        command.args(filter);
        command
    } else {
        // A pattern cannot leave out one name: no other test program's may
        // start as that of the tests with guests does.
        let mut command = cargo(&["test", "--workspace", "--no-fail-fast", "--lib", "--bins"]);
        command.args(["--test", "[!g]*"]);
        command.args(filter);
        command
    };
    let mut counts = Tally::default();
    let ok = watched(&mut command, |line| counts.line(line))?;
    if !ok && counts.failed == 0 {
        counts.step("unit tests", false);
    }
    tally.add(counts);
    Ok(())
}
