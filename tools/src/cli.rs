//! The command line of `lmb`: its definition, from which completions and
//! manual pages are made too, and the one place where a command's outcome
//! becomes output and exit code.

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

use crate::bench::cli::BenchArgs;
use crate::exit::{self, Exit};
use crate::guest::cli::GuestArgs;
use crate::host::cli::HostArgs;
use crate::mem::{self, MemCommand};
use crate::plan::cli::PlanArgs;
use crate::report::cli::ReportArgs;
use crate::run::{self, RunArgs};
use crate::runtime::SocketArgs;
use crate::vm::{self, VmCommand};

/// Boot guests whose memory is made of LMBs, add and remove it, measure it
///
/// A guest's memory consists of Logical Memory Blocks (LMBs). `lmb run` boots a stock Linux guest
/// with the LMB size of your choice, `lmb mem` adds and removes memory while it runs and shows
/// where the time went. Sizes are written 256M, 1G, 4GiB or 0x10000000 (powers of 1024), or as
/// LMB counts with -q.
#[derive(Debug, Parser)]
#[command(name = "lmb", version, propagate_version = true, after_long_help = HELP)]
#[command(arg_required_else_help = true, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

const HELP: &str = "\
Examples:
  lmb run --lmb-size 256M --memory 1G --max-memory 9G
  lmb mem add 1G              (in another terminal)
  lmb mem show
  lmb mem remove -q 4
  lmb vm power-off";

#[derive(Debug, Subcommand)]
enum Command {
    /// Boot a guest with its console on this terminal, and stay until it ends
    ///
    /// Kernel and initramfs are those of `lmb guest` unless given; the first run fetches them.
    /// Where this machine's KVM cannot run a stock kernel, the guest runs in the virtual KVM host.
    #[command(after_long_help = run::HELP)]
    Run(Box<RunArgs>),

    /// Show, set, add and remove memory of a running VM
    ///
    /// Every change is an operation with an id, a deadline and a timeline. A later one replaces
    /// the wanted size, and the earlier ends as superseded. Interrupting a waiting `lmb` leaves
    /// its operation running: `lmb mem cancel` ends that.
    #[command(after_long_help = exit::HELP)]
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Mem {
        #[command(subcommand)]
        command: MemCommand,
    },

    /// Show, power off or reset a running VM
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Vm {
        #[command(subcommand)]
        command: VmCommand,
    },

    /// Print a running VM's metrics in Prometheus' text form
    #[command(after_long_help = "\
Examples:
  lmb metrics | grep plugged")]
    Metrics(SocketArgs),

    /// Fetch kernels and build initramfs images for guests
    Guest(GuestArgs),

    /// Measure what the LMB size costs: boot, adding and removing memory
    Bench(Box<BenchArgs>),

    /// Run commands in the virtual KVM host, on machines without KVM of their own
    Host(HostArgs),

    /// Say what LMB sizes come to: counts, blocks, slots, requests, memory for memory's description
    #[command(after_long_help = crate::plan::cli::HELP)]
    Plan(PlanArgs),

    /// Draw tables, plots and cost models from results of benchmarks, and compare two of them
    #[command(after_long_help = crate::report::cli::HELP)]
    Report(ReportArgs),

    /// Print completions for a shell
    #[command(after_long_help = "\
Examples:
  lmb completions bash > /etc/bash_completion.d/lmb
  lmb completions zsh > \"${fpath[1]}/_lmb\"
  lmb completions fish > ~/.config/fish/completions/lmb.fish")]
    Completions {
        /// The shell
        #[arg(value_enum)]
        shell: Shell,
    },

    /// Write manual pages, one for each command
    #[command(after_long_help = "\
Examples:
  lmb man --out /usr/local/share/man/man1")]
    Man {
        /// Directory for the pages; it is made if it is not there
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
    },
}

/// Parses the command line and does what it says. Wrong lines end the process
/// with [`Exit::Usage`]; errors are printed here, once.
#[must_use]
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    match dispatch(cli.command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("lmb: {error:#}");
            Exit::of_error(&error).into()
        }
    }
}

fn dispatch(command: Command) -> anyhow::Result<ExitCode> {
    let (text, exit) = match command {
        Command::Run(args) => return Ok(ExitCode::from(run::run(&args)?)),
        Command::Guest(args) => return crate::guest::cli::run(args),
        Command::Bench(args) => return crate::bench::run(&args),
        Command::Host(args) => return crate::host::cli::run(args),
        Command::Mem { command } => mem::run(&command)?,
        Command::Vm { command } => vm::run(&command)?,
        Command::Metrics(socket) => vm::metrics(&socket)?,
        Command::Plan(args) => (crate::plan::cli::run(&args)?, Exit::Done),
        Command::Report(args) => return crate::report::cli::run(&args),
        Command::Completions { shell } => (completions(shell)?, Exit::Done),
        Command::Man { out } => {
            man(&out)?;
            (String::new(), Exit::Done)
        }
    };
    print(&text)?;
    Ok(exit.into())
}

/// Writes to standard output. A reader that has seen enough is no error.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
    {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(e).context("cannot write the output"),
        _ => Ok(()),
    }
}

fn completions(shell: Shell) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "lmb", &mut bytes);
    String::from_utf8(bytes).context("the completions are no text")
}

fn man(out: &Path) -> anyhow::Result<()> {
    let cannot = || format!("cannot write manual pages to {}", out.display());
    std::fs::create_dir_all(out).with_context(cannot)?;
    clap_mangen::generate_to(Cli::command(), out).with_context(cannot)
}

#[cfg(test)]
#[path = "cli_tests.rs"]
mod tests;
