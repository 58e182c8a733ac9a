//! `lmb run`: one VM from start to end, with its console on this terminal.
//!
//! The steps: find lmb-vmm, a kernel and an initramfs; see which host can run
//! them; take a name and a socket; start the VMM; stay with it until it ends.

mod child;
mod console;
mod definition;
mod escape;
mod place;
mod signals;
mod terminal;
mod typed;
mod virtual_host;
mod vmm;

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::Context;
use clap::{Args, ValueEnum};

use crate::guest::cli::KernelArgs;
use crate::guest::{DEFAULT_MODULES, GuestImage, default_agent};
use crate::host::detect;
use crate::packages::{Cache, Progress};
use crate::runtime::parse_name;
use crate::units::parse_timeout;
use child::ChildVm;
use console::{End, Input};
use place::Place;
use vmm::VmmFlags;

/// Where the VM runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum HostChoice {
    /// Here if this machine's KVM can, else in the virtual KVM host
    #[default]
    Auto,
    /// On this machine's KVM, with a warning where it runs no stock kernels
    Native,
    /// In the virtual KVM host
    Virtual,
}

/// What `lmb run --help` shows at its end.
pub const HELP: &str = "\
Examples:
  lmb run                                        1 GiB at boot, room for 8 GiB more
  lmb run --lmb-size 256M --memory 1G --max-memory 9G
  lmb run --hotplug acpi                         each LMB an ACPI device, removable by index
  lmb run --name web --kernel ./vmlinux --initrd ./initrd.img --cpus 2
  lmb run --memory 700M --lmb-size 512M --dry-run    only print the layout
  lmb run --serial file:/tmp/console.log & lmb mem show

In the virtual KVM host the console works as here, but the control socket is inside, where
`lmb mem` and the other commands do not reach it. To change memory there, run the VM and lmb in one
`lmb host run --file … -- sh -c '…'` (see its --help). The files that a definition (--config) names
are copied in; the console cannot be a file there.

Keys:
  Ctrl-A x  end the VM        Ctrl-A h  list the keys        Ctrl-A Ctrl-A  send a Ctrl-A

Exit codes: lmb-vmm's own (0 when the guest powered off); 0 after Ctrl-A x; 128 and the number of
a signal that ended lmb or lmb-vmm; in the virtual KVM host also 124 when --host-limit passed, 125
when that host failed and 141 when nobody reads its output; 1 and 2 as for the other commands.";

/// Options of `lmb run`.
#[derive(Clone, Debug, Args)]
pub struct RunArgs {
    /// Name of the VM: its control socket is NAME.sock [default: vm, vm2, …]
    ///
    /// The socket lies in $XDG_RUNTIME_DIR/lmb, else /run/lmb (root), else /tmp/lmb-UID, and is
    /// printed at the start.
    #[arg(short, long, value_name = "NAME", value_parser = parse_name)]
    name: Option<String>,

    /// Control socket at this path instead
    #[arg(
        long,
        value_name = "PATH",
        visible_alias = "socket",
        conflicts_with = "name"
    )]
    api_socket: Option<PathBuf>,

    /// Where to run: auto takes this machine's KVM where it can run stock
    /// kernels, else the virtual KVM host, and says which
    #[arg(long, value_name = "HOST", value_enum, default_value_t)]
    host: HostChoice,

    /// Wall time after which the virtual KVM host is stopped, at most 24h
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = parse_timeout)]
    host_limit: Duration,

    /// The VMM to start [default: lmb-vmm beside this program, else in $PATH]
    #[arg(long = "vmm", value_name = "PATH")]
    program: Option<PathBuf>,

    /// The static program that becomes the guest's /init [default:
    /// lmb-guest-agent beside this program]
    #[arg(long, value_name = "PATH", conflicts_with = "initrd")]
    agent: Option<PathBuf>,

    #[command(flatten)]
    kernel: KernelArgs,

    #[command(flatten)]
    vmm: VmmFlags,
}

/// The files a VM starts from; none where a definition file names them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Boot {
    kernel: Option<PathBuf>,
    initrd: Option<PathBuf>,
}

/// Runs `lmb run`: the exit code.
///
/// # Errors
/// When the VM cannot be started.
pub fn run(args: &RunArgs) -> anyhow::Result<u8> {
    let program = vmm::find(args.program.as_deref())?;
    if args.vmm.dry_run {
        return dry_run(args, &program);
    }
    let kvm = detect::native_kvm();
    let native = match args.host {
        HostChoice::Auto => kvm.is_ok(),
        HostChoice::Native => true,
        HostChoice::Virtual => false,
    };
    let boot = args.boot_files()?;
    if !native {
        let why = kvm.err().map_or(String::new(), |reason| {
            format!(", since {}", brief(&reason))
        });
        eprintln!(
            "lmb: host: virtual KVM host{why}; the control socket is inside, where `lmb mem` does not reach it: \
             `lmb run --help` says how to change memory there"
        );
        return virtual_host::run(args, &program, boot);
    }
    if let Err(reason) = kvm {
        // Asked for by name: other kernels than stock ones may run.
        eprintln!("lmb: warning: {reason}");
    }
    run_here(args, &program, &boot)
}

/// Why this machine's KVM is not used, in a few words.
fn brief(reason: &detect::Reason) -> String {
    match reason {
        detect::Reason::Missing => "/dev/kvm is missing".to_owned(),
        detect::Reason::NotPermitted => "/dev/kvm is not permitted".to_owned(),
        detect::Reason::NoHardwareVirtualization => {
            "this machine has no hardware virtualization".to_owned()
        }
        detect::Reason::Unusable(why) => format!("/dev/kvm cannot be opened ({why})"),
    }
}

fn dry_run(args: &RunArgs, program: &Path) -> anyhow::Result<u8> {
    let given = Boot {
        kernel: args.kernel.kernel.clone(),
        initrd: args.vmm.initrd.clone(),
    };
    let status = Command::new(program)
        .args(arguments(args, &given, None))
        .status()
        .with_context(|| format!("cannot start {}", program.display()))?;
    Ok(exit_code(status))
}

fn run_here(args: &RunArgs, program: &Path, boot: &Boot) -> anyhow::Result<u8> {
    let place = match &args.api_socket {
        Some(_) => None,
        None => Some(Place::take(args.name.as_deref())?),
    };
    let socket = args.api_socket.as_deref();
    let socket = socket.or(place.as_ref().map(|place| place.socket.as_path()));
    let input = Input::choose(args.vmm.console_is_stdio());
    announce(place.as_ref(), socket, input);
    let mut command = Command::new(program);
    command.args(arguments(args, boot, socket));
    let end = console::supervise(|| ChildVm::start(&mut command, input), input)
        .with_context(|| format!("cannot run {}", program.display()))?;
    Ok(match end {
        End::Itself(status) => exit_code(status),
        End::Quit => 0,
        End::Signal(signal) => signal_code(signal.as_raw()),
    })
}

fn announce(place: Option<&Place>, socket: Option<&Path>, input: Input) {
    let name = place.map_or(String::new(), |place| format!("{}, ", place.name));
    let socket = socket.map_or(String::new(), |path| path.display().to_string());
    let keys = match input {
        Input::Terminal => "; Ctrl-A x ends the VM",
        Input::Inherited | Input::Nothing => "",
    };
    eprintln!(
        "lmb: VM {name}host: {}, control socket {socket}{keys}",
        detect::host_kind()
    );
}

/// lmb-vmm's whole command line.
fn arguments(args: &RunArgs, boot: &Boot, socket: Option<&Path>) -> Vec<OsString> {
    let mut all = Vec::new();
    for (flag, path) in [
        ("--kernel", boot.kernel.as_deref()),
        ("--initrd", boot.initrd.as_deref()),
        ("--api-socket", socket),
    ] {
        if let Some(path) = path {
            all.extend([flag.into(), path.into()]);
        }
    }
    all.extend(args.vmm.arguments());
    all
}

impl RunArgs {
    /// The kernel and initramfs that were given; for what was not, the cached
    /// or fetched kernel and the guest image for it.
    fn boot_files(&self) -> anyhow::Result<Boot> {
        let given = Boot {
            kernel: self.kernel.kernel.clone(),
            initrd: self.vmm.initrd.clone(),
        };
        let complete = given.kernel.is_some() && given.initrd.is_some();
        if complete || self.vmm.config.is_some() {
            return Ok(given);
        }
        let progress = Progress::new();
        let note = |text: &str| progress.step(text);
        let cache = Cache::open()?;
        let kernel = self.kernel.resolve(&cache, &note)?;
        let vmlinuz = kernel.vmlinuz.clone();
        let initrd = match given.initrd {
            Some(initrd) => initrd,
            None => {
                let agent = match &self.agent {
                    Some(agent) => agent.clone(),
                    None => default_agent()?,
                };
                let image = GuestImage {
                    agent,
                    kernel,
                    modules: DEFAULT_MODULES.map(str::to_owned).to_vec(),
                    files: Vec::new(),
                    gzip: false,
                };
                image.build(&cache, None, &note)?.initramfs
            }
        };
        progress.clear();
        Ok(Boot {
            kernel: Some(vmlinuz),
            initrd: Some(initrd),
        })
    }
}

fn exit_code(status: ExitStatus) -> u8 {
    if let Some(signal) = status.signal() {
        eprintln!("lmb: signal {signal} ended lmb-vmm");
        return signal_code(signal);
    }
    // An exit code has eight bits.
    status
        .code()
        .and_then(|code| u8::try_from(code).ok())
        .unwrap_or(1)
}

/// As a shell has it.
fn signal_code(signal: i32) -> u8 {
    u8::try_from(signal)
        .ok()
        .and_then(|n| n.checked_add(128))
        .unwrap_or(1)
}
