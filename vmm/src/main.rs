//! lmb-vmm: the command line. Errors are printed here, once, as one chain.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use lmb_memory::Layout;
use lmb_vmm::config::{HostLimits, LayoutReport, LogLevel, Options, VmConfig};
use lmb_vmm::restart::LmbChange;
use lmb_vmm::timeline::monotonic_ns;
use lmb_vmm::{host, kvm, vmm};

/// A KVM virtual machine monitor whose guest memory is made of LMBs (Logical
/// Memory Blocks)
///
/// Boots a stock Linux kernel with boot memory and, above it, a window of
/// LMBs that are added and removed through virtio-mem over the control socket.
///
/// Sizes are bytes, or numbers with K, M, G or T (powers of 1024): 256M, 4GiB,
/// 0x10000000.
///
/// Examples:
///   lmb-vmm --kernel vmlinuz --initrd initrd.img --memory 1G
///   lmb-vmm --kernel vmlinuz --initrd initrd.img --memory 1G --max-memory 9G \
///       --lmb-size 256M --api-socket /run/vm.sock
///   lmb-vmm --memory 2G --max-memory 64T --lmb-size 128M --dry-run
///
/// Exit codes: 0 the guest powered off, 1 an error, 2 wrong usage.
#[derive(Debug, Parser)]
#[command(version, verbatim_doc_comment)]
struct Cli {
    /// Configuration file: a JSON object with these options as fields
    /// (--lmb-size is "lmb_size"); flags go over it
    #[arg(long, value_name = "FILE.json")]
    config: Option<PathBuf>,

    /// Print the layout that the options come to, and start nothing
    #[arg(long)]
    dry_run: bool,

    /// With --dry-run: print it as JSON
    #[arg(long, requires = "dry_run")]
    json: bool,

    #[command(flatten)]
    options: Options,
}

fn main() -> ExitCode {
    let process_start_ns = monotonic_ns();
    let cli = Cli::parse();
    match run(cli, process_start_ns) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let mut chain = error.to_string();
            let mut source = error.source();
            while let Some(cause) = source {
                let text = cause.to_string();
                // Transparent wrappers repeat their cause.
                if !chain.contains(&text) {
                    chain.push_str(": ");
                    chain.push_str(&text);
                }
                source = cause.source();
            }
            eprintln!("lmb-vmm: {chain}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli, process_start_ns: u64) -> Result<(), Box<dyn std::error::Error>> {
    let file = cli
        .config
        .as_deref()
        .map(Options::from_file)
        .transpose()?
        .unwrap_or_default();
    let definition = file.clone();
    let options = cli.options.over(file);
    init_log(options.log_level.unwrap_or(LogLevel::Warn));
    let changed = LmbChange::find(&definition, &options);
    let config = VmConfig::new(options)?;
    if cli.dry_run {
        let limits = host::limits(kvm::open().ok().as_ref());
        let layout = config.layout(limits)?;
        vmm::check(&config, &layout)?;
        tell(changed, limits, &layout);
        let report = LayoutReport::new(&layout);
        let text = if cli.json {
            format!("{}\n", serde_json::to_string_pretty(&report)?)
        } else {
            report.to_string()
        };
        return Ok(print_out(&text)?);
    }
    config.kernel()?;
    let kvm = kvm::open()?;
    let limits = host::limits(Some(&kvm));
    let layout = config.layout(limits)?;
    for notice in &layout.notices {
        eprintln!("lmb-vmm: notice: {notice}");
    }
    tell(changed, limits, &layout);
    if !config.sandbox {
        eprintln!(
            "lmb-vmm: warning: the sandbox is off (--sandbox off): whoever takes this process \
             over has all rights of its user"
        );
    }
    vmm::run(kvm, config, layout, process_start_ns)?;
    Ok(())
}

/// Tells what a new LMB size does to the definition. That the old one was not
/// legal does not stop a start that is.
fn tell(changed: Option<LmbChange>, limits: HostLimits, layout: &Layout) {
    let Some(change) = changed else { return };
    match change.describe(limits, layout) {
        Ok(line) => eprintln!("lmb-vmm: {line}"),
        Err(error) => eprintln!(
            "lmb-vmm: the definition was not legal with its own LMB size, so old and new are \
             not compared: {error}"
        ),
    }
}

/// Writes to standard output; a reader that has seen enough is no error.
fn print_out(text: &str) -> std::io::Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

fn init_log(level: LogLevel) {
    let level = match level {
        LogLevel::Error => tracing::Level::ERROR,
        LogLevel::Warn => tracing::Level::WARN,
        LogLevel::Info => tracing::Level::INFO,
        LogLevel::Debug => tracing::Level::DEBUG,
        LogLevel::Trace => tracing::Level::TRACE,
    };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_target(false)
        .without_time()
        .init();
}
