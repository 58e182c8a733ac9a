//! `lmb host`: running a command inside the virtual KVM host, and saying
//! whether this machine needs it.

use std::ffi::OsString;
use std::io::{self, ErrorKind, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};

use super::{
    Clock, DEFAULT_PHYS_BITS, Distance, EXIT_HOST_FAILED, EXIT_NO_READER, EXIT_TIMEOUT, HostEnd,
    HostError, HostRun, Threads, attach, detect,
};
use crate::cli::print;
use crate::guest::cli::KernelArgs;
use crate::initramfs::FileArgument;
use crate::packages::{self, Cache, Progress};
use crate::units::parse_size;

/// Run commands in the virtual KVM host, on machines without KVM of their own
#[derive(Args, Debug)]
pub struct HostArgs {
    #[command(subcommand)]
    command: HostCommand,
}

#[derive(Debug, Subcommand)]
enum HostCommand {
    /// Boot the virtual KVM host, run a command in it as root, and power off
    #[command(after_long_help = RUN_HELP)]
    Run(Box<RunArgs>),
    /// Say whether stock guests run on this machine's own KVM (exit code 0),
    /// or why not (1)
    Check,
}

const RUN_HELP: &str = "\
The command's output is streamed to standard output, its standard error with it.
Exit codes: the command's own; 124 when the time limit passed; 125 when the host
itself failed; 141 when nobody reads the output any more. Inside, LMB_HOST_KIND
says what kind of host it is.

With --input the command reads this program's standard input, every byte
unchanged, and its end of file when that ends. It is no terminal inside. Where it
is one here, it keeps its line editing: what is typed goes in line by line,
Ctrl-D ends the input, Ctrl-C the host. Without --input the command reads an end
of file at once.

Examples:
  lmb host run --file target/release/lmb-vmm -- lmb-vmm --version
  lmb host run --input -- sh -s < script.sh";

#[derive(Args, Debug)]
struct RunArgs {
    #[command(flatten)]
    kernel: KernelArgs,
    /// The host's CPUs
    #[arg(long, value_name = "N", default_value_t = 1)]
    cpus: u32,
    /// All of the host's memory; its file system is in it too
    #[arg(long, value_name = "SIZE", default_value = "3G", value_parser = mib)]
    memory: u64,
    /// What the host's clock counts
    #[arg(long, value_enum, default_value_t)]
    clock: Clock,
    /// How QEMU runs the CPUs [default: single for one CPU, multi for more]
    #[arg(long, value_enum)]
    threads: Option<Threads>,
    /// NUMA nodes, which share CPUs and memory evenly
    #[arg(long, value_name = "N")]
    nodes: Option<u32>,
    /// Memory of each node, in place of --memory and --nodes
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', value_parser = mib,
          conflicts_with_all = ["memory", "nodes"])]
    node_memory: Vec<u64>,
    /// Distances between nodes, as 0-1=20 (20 where none is named)
    #[arg(long, value_name = "A-B=D,...", value_delimiter = ',')]
    distances: Vec<Distance>,
    /// Width of the host's physical addresses: 36 to 52
    #[arg(long, value_name = "BITS", default_value_t = DEFAULT_PHYS_BITS)]
    phys_bits: u8,
    /// Huge pages of 2 MiB to reserve
    #[arg(long, value_name = "N", default_value_t = 0)]
    hugepages_2m: u64,
    /// Huge pages of 1 GiB to reserve
    #[arg(long, value_name = "N", default_value_t = 0)]
    hugepages_1g: u64,
    /// Wall time after which the host is stopped, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 600,
          value_parser = clap::value_parser!(u64).range(1..))]
    limit_s: u64,
    /// Pass standard input on to the command
    #[arg(long)]
    input: bool,
    /// A file or directory to put into the host; without DEST programs go to
    /// /bin and the rest to / (may be given again)
    #[arg(long = "file", value_name = "SOURCE[:/DEST]")]
    files: Vec<FileArgument>,
    /// A variable of the command's environment (may be given again)
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = variable)]
    environment: Vec<(String, OsString)>,
    /// The emulator [default: qemu-system-x86_64 in PATH]
    #[arg(long, value_name = "PATH")]
    qemu: Option<PathBuf>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Runs `lmb host`.
///
/// # Errors
/// When the run's preparation fails; what fails later has exit codes of its
/// own.
pub fn run(args: HostArgs) -> Result<ExitCode> {
    match args.command {
        HostCommand::Run(args) => run_command(*args),
        HostCommand::Check => check(),
    }
}

fn check() -> Result<ExitCode> {
    let (text, code) = match detect::native_kvm() {
        Ok(()) => (detect::host_kind(), ExitCode::SUCCESS),
        Err(reason) => (reason.to_string(), ExitCode::FAILURE),
    };
    print(&format!("{text}\n"))?;
    Ok(code)
}

fn run_command(args: RunArgs) -> Result<ExitCode> {
    let progress = Progress::new();
    let cache = Cache::open()?;
    let input = args.input;
    let host = host_run(args, &cache, &progress)?;
    let code = if input {
        stream_input(&host, &cache, &progress)?
    } else {
        stream(&host, &cache, &progress)
    };
    Ok(ExitCode::from(code))
}

/// As [`stream`], with the command's input from standard input.
fn stream_input(host: &HostRun, cache: &Cache, progress: &Progress) -> Result<u8> {
    let (attached, end) = attach().context("cannot make the command's input")?;
    let attached = Arc::new(attached);
    let copier = Arc::clone(&attached);
    // It may wait for standard input when all is over, and ends with the
    // process then.
    thread::Builder::new()
        .name("host-input".to_owned())
        .spawn(move || {
            if let Err(error) = copier.copy_all(io::stdin().lock()) {
                eprintln!("lmb: the command's input ends early: {error}");
            }
        })
        .context("cannot start a thread")?;
    let code = exit_code(run_on_stdout(host, cache, progress, Some(end)));
    drop(attached);
    Ok(code)
}

/// Runs the host with its command's output on standard output, and what goes
/// wrong on standard error: the exit code.
pub fn stream(host: &HostRun, cache: &Cache, progress: &Progress) -> u8 {
    exit_code(run_on_stdout(host, cache, progress, None))
}

/// Runs the host with its command's output on standard output.
///
/// # Errors
/// As [`HostRun::run_attached`].
pub(crate) fn run_on_stdout(
    host: &HostRun,
    cache: &Cache,
    progress: &Progress,
    end: Option<HostEnd>,
) -> Result<u8, HostError> {
    progress.show("booting the virtual KVM host");
    let mut stdout = io::stdout().lock();
    let mut output = |bytes: &[u8]| {
        progress.clear();
        stdout.write_all(bytes).and_then(|()| stdout.flush())
    };
    let outcome = match end {
        Some(end) => host.run_attached(cache, end, &mut output),
        None => host.run(cache, &mut output),
    };
    progress.clear();
    outcome
}

/// The exit code for a run's outcome; what went wrong is said here.
pub(crate) fn exit_code(outcome: Result<u8, HostError>) -> u8 {
    let error = match outcome {
        Ok(code) => return code,
        // A reader that has seen enough.
        Err(HostError::Output(error)) if error.kind() == ErrorKind::BrokenPipe => {
            return EXIT_NO_READER;
        }
        Err(error) => error,
    };
    eprintln!("lmb: {error}");
    match error {
        HostError::TimedOut { .. } => EXIT_TIMEOUT,
        HostError::Refused(_)
        | HostError::Start(_)
        | HostError::Failed { .. }
        | HostError::Output(_)
        | HostError::Stopped => EXIT_HOST_FAILED,
    }
}

fn host_run(args: RunArgs, cache: &Cache, progress: &Progress) -> Result<HostRun> {
    let note = |text: &str| progress.step(text);
    let qemu = match args.qemu {
        Some(qemu) => qemu,
        None => packages::qemu(&note)?,
    };
    let nodes_mib = match args.nodes {
        Some(nodes) => share(args.memory, nodes)?,
        None => args.node_memory,
    };
    let memory_mib = if nodes_mib.is_empty() {
        args.memory
    } else {
        nodes_mib
            .iter()
            .try_fold(0u64, |sum, node| sum.checked_add(*node))
            .context("the nodes' memory is more than 64 bits hold")?
    };
    Ok(HostRun {
        kernel: args.kernel.resolve(cache, &note)?,
        qemu,
        cpus: args.cpus,
        threads: args.threads,
        clock: args.clock,
        memory_mib,
        phys_bits: args.phys_bits,
        nodes_mib,
        distances: args.distances,
        hugepages_2m: args.hugepages_2m,
        hugepages_1g: args.hugepages_1g,
        limit: Duration::from_secs(args.limit_s),
        files: args.files,
        environment: args.environment,
        command: args.command,
    })
}

/// Shares memory out to nodes, the first taking what does not divide.
fn share(memory_mib: u64, nodes: u32) -> Result<Vec<u64>> {
    let count = u64::from(nodes);
    if nodes == 0 || nodes > 128 || memory_mib < count {
        bail!("{nodes} NUMA nodes: give 1 to 128, each with at least 1 MiB of --memory");
    }
    let each = memory_mib / count;
    Ok((0..count)
        .map(|node| each + if node == 0 { memory_mib % count } else { 0 })
        .collect())
}

/// A size in whole MiB.
fn mib(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text).map_err(|error| error.to_string())?;
    if bytes % (1 << 20) != 0 {
        return Err(format!("`{text}` is not whole MiB"));
    }
    Ok(bytes >> 20)
}

fn variable(text: &str) -> Result<(String, OsString), String> {
    let name_is_good = |name: &str| {
        name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
            && name.starts_with(|c: char| !c.is_ascii_digit())
    };
    match text.split_once('=') {
        Some((name, value)) if name_is_good(name) => Ok((name.to_owned(), value.into())),
        _ => Err(format!("`{text}` is no variable; write it like NAME=VALUE")),
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        host: HostArgs,
    }

    fn parse(words: &[&str]) -> Result<RunArgs, clap::Error> {
        let line = Line::try_parse_from(["host", "run"].iter().chain(words))?;
        match line.host.command {
            HostCommand::Run(args) => Ok(*args),
            HostCommand::Check => panic!("not what was asked for"),
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        Line::command().debug_assert();
    }

    #[test]
    fn what_follows_the_dashes_is_the_command() {
        let args = parse(&["--cpus", "2", "--", "lmb-vmm", "--memory", "1G"]).unwrap();
        assert_eq!(args.cpus, 2);
        assert_eq!(args.memory, 3072);
        assert_eq!(args.command, ["lmb-vmm", "--memory", "1G"]);
        assert!(parse(&["--cpus", "2"]).is_err());
        assert!(parse(&["stray", "--", "true"]).is_err());
    }

    #[test]
    fn lists_are_taken_apart() {
        let args = parse(&[
            "--node-memory",
            "1G,512M",
            "--distances",
            "0-1=30",
            "--env",
            "A=b=c",
            "--",
            "true",
        ])
        .unwrap();
        assert_eq!(args.node_memory, [1024, 512]);
        assert_eq!(
            args.distances,
            [Distance {
                a: 0,
                b: 1,
                value: 30
            }]
        );
        assert_eq!(args.environment, [("A".to_owned(), "b=c".into())]);
    }

    #[test]
    fn wrong_values_are_refused() {
        for words in [
            ["--memory", "1023K"],
            ["--memory", "big"],
            ["--env", "1A=x"],
            ["--env", "A"],
            ["--limit-s", "0"],
            ["--file", ":/x"],
            ["--clock", "sand"],
        ] {
            let mut line = words.to_vec();
            line.extend(["--", "true"]);
            assert!(parse(&line).is_err(), "{words:?}");
        }
    }

    #[test]
    fn nodes_share_all_of_the_memory() {
        assert_eq!(share(3072, 2).unwrap(), [1536, 1536]);
        assert_eq!(share(1000, 3).unwrap(), [334, 333, 333]);
        for (memory, nodes) in [(3072, 0), (3072, 129), (2, 3)] {
            assert!(share(memory, nodes).is_err(), "{memory} MiB in {nodes}");
        }
    }
}
