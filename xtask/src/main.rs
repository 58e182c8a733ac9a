//! The project's own commands, as `cargo xtask …`.
//!
//! `setup` installs what is missing, `test` runs every test with real guests
//! included, `fuzz` looks for inputs that no test has, `demo` shows one guest gain
//! and lose memory, `results` measures and draws docs/results. Where this machine's
//! KVM cannot run a stock guest, guests run in the virtual KVM host, and every
//! result names it.

mod artifacts;
mod cargo;
mod demo;
mod fuzz;
mod guests;
mod inputs;
mod results;
mod tally;
mod test;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The project's own commands
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Install or fetch what tests and demo need; without root, name the one
    /// command to run
    Setup,
    /// Run every test, real guests included
    Test(test::TestArgs),
    /// Run fuzz targets, to find something new
    Fuzz(fuzz::FuzzArgs),
    /// Boot a guest in LMBs, add 1 GiB, remove it, and show what happened
    Demo(demo::DemoArgs),
    /// Measure what is missing in docs/results, and draw everything there again
    Results(results::ResultsArgs),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Setup => inputs::setup(),
        Command::Test(args) => test::run(&args),
        Command::Fuzz(args) => fuzz::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Results(args) => results::run(&args),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
