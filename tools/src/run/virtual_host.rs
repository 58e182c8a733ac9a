//! The same VM inside the virtual KVM host, where this machine's KVM cannot
//! run it. Its control socket is inside.
//!
//! A thread of its own runs the host and writes what the guest prints. The
//! host's input carries what is typed, and its end asks the VMM to end: see
//! [`SCRIPT`]. So the end of a pipe that lmb reads is not passed on.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use tempfile::NamedTempFile;

use super::console::{self, End, Input, Vm};
use super::definition::Definition;
use super::signals::Signals;
use super::vmm::{self, VmmFlags};
use super::{Boot, RunArgs, signal_code};
use crate::host::cli::{exit_code, run_on_stdout};
use crate::host::{Attached, DEFAULT_MEMORY_MIB, HostError, HostRun, attach};
use crate::initramfs::FileArgument;
use crate::packages::{self, Cache, DEFAULT_KERNEL_PACKAGE, KernelPackage, Progress};

/// What of the host's memory is not the guest's, in MiB.
const HOST_OWN_MIB: u64 = 2048;
/// How long a killed host may take to tidy up.
const TIDY_TIME: Duration = Duration::from_secs(2);

const KERNEL: &str = "/guest/kernel";
const INITRD: &str = "/guest/initrd";
const DEFINITION: &str = "/guest/vm.json";
const SOCKET: &str = "/vm.sock";

/// Runs the VMM, whose arguments are the script's, with the host's input as its
/// own, and asks it to end when that ends.
const SCRIPT: &str = r#"exec 3<&0
mkfifo /typed
lmb-vmm "$@" </typed 3<&- &
vmm=$!
{ cat; kill -TERM "$vmm" 2>/dev/null; } <&3 >/typed &
exec 3<&-
wait "$vmm"
"#;

/// Boots the host and the VM in it: the VMM's exit code.
///
/// # Errors
/// When something for the host is missing.
pub(super) fn run(args: &RunArgs, program: &Path, boot: Boot) -> anyhow::Result<u8> {
    let inside = Inside::new(&args.vmm, boot)?;
    let input = Input::choose(inside.console_is_stdio);
    if input == Input::Terminal {
        eprintln!("lmb: Ctrl-A x ends the VM");
    }
    let progress = Progress::new();
    let note = |text: &str| progress.step(text);
    let cache = Cache::open()?;
    let kernel = KernelPackage::fetch(&cache, DEFAULT_KERNEL_PACKAGE, false, &note)?;
    let qemu = packages::qemu(&note)?;
    let mut command: Vec<OsString> = ["sh", "-c", SCRIPT, vmm::PROGRAM].map(Into::into).into();
    command.extend(inside.arguments);
    let mut host = HostRun::new(kernel, qemu, command);
    host.limit = args.host_limit;
    host.memory_mib = inside
        .guest_mib
        .saturating_add(HOST_OWN_MIB)
        .max(DEFAULT_MEMORY_MIB);
    host.files = inside.files;
    host.files
        .push(put(program.to_owned(), &format!("bin/{}", vmm::PROGRAM)));
    let end = console::supervise(|| HostVm::start(host, cache, progress, input), input)
        .context("cannot run the virtual KVM host")?;
    Ok(match end {
        End::Itself(outcome) => exit_code(outcome),
        End::Quit => 0,
        End::Signal(signal) => signal_code(signal.as_raw()),
    })
}

/// The VM as it is described inside the host.
struct Inside {
    /// lmb-vmm's whole command line.
    arguments: Vec<OsString>,
    files: Vec<FileArgument>,
    guest_mib: u64,
    console_is_stdio: bool,
    /// One of the files; it must live as long as they.
    _definition: Option<NamedTempFile>,
}

impl Inside {
    fn new(flags: &VmmFlags, boot: Boot) -> anyhow::Result<Self> {
        let mut flags = flags.clone();
        let mut definition = match &flags.config {
            Some(path) => Definition::read(path)?,
            None => Definition::default(),
        };
        let serial = flags.serial().or(definition.text("serial"));
        if let Some(file) = serial.and_then(|target| target.strip_prefix("file:")) {
            bail!(
                "the console's file {file} would lie in the virtual KVM host and go with it; \
                 leave --serial at stdio and redirect lmb's output"
            );
        }
        let console_is_stdio = serial.is_none_or(|target| target == "stdio");
        let guest_bytes = flags.boot_bytes(|field| definition.size(field));
        let mut arguments: Vec<OsString> = vec!["--api-socket".into(), SOCKET.into()];
        let mut files = Vec::new();
        definition.move_file("api_socket", SOCKET);
        for (field, given, inside) in [
            ("kernel", boot.kernel, KERNEL),
            ("initrd", boot.initrd, INITRD),
        ] {
            let named = definition.move_file(field, inside);
            if given.is_some() {
                arguments.extend([format!("--{field}").into(), inside.into()]);
            }
            // A flag goes over the definition.
            files.extend(given.or(named).map(|file| put(file, inside)));
        }
        let mut written = None;
        if flags.config.is_some() {
            let file = NamedTempFile::new().context("cannot make a temporary file")?;
            std::fs::write(file.path(), definition.to_json())
                .with_context(|| format!("cannot write {}", file.path().display()))?;
            files.push(put(file.path().to_owned(), DEFINITION));
            flags.config = Some(DEFINITION.into());
            written = Some(file);
        }
        arguments.extend(flags.arguments());
        Ok(Self {
            arguments,
            files,
            guest_mib: guest_bytes.unwrap_or_default() >> 20,
            console_is_stdio,
            _definition: written,
        })
    }
}

fn put(source: PathBuf, dest: &str) -> FileArgument {
    FileArgument {
        source,
        dest: Some(dest.to_owned()),
    }
}

type Outcome = Result<u8, HostError>;

/// A host that runs in its thread. It is stopped when this is dropped.
struct HostVm {
    attached: Attached,
    outcomes: Receiver<Outcome>,
    /// Whether something is to be passed on.
    input: bool,
    killed: Option<Outcome>,
}

impl HostVm {
    fn start(host: HostRun, cache: Cache, progress: Progress, input: Input) -> io::Result<Self> {
        let (attached, end) = attach()?;
        let (sender, outcomes) = sync_channel(1);
        thread::Builder::new()
            .name("host".to_owned())
            .spawn(move || {
                let _waker = Waker;
                // Nobody listens any more where it was killed.
                let _ = sender.send(run_on_stdout(&host, &cache, &progress, Some(end)));
            })?;
        Ok(Self {
            attached,
            outcomes,
            input: input != Input::Nothing,
            killed: None,
        })
    }
}

/// Wakes the loop when the host's thread ends, however it does.
struct Waker;

impl Drop for Waker {
    fn drop(&mut self) {
        Signals::wake();
    }
}

impl Vm for HostVm {
    type End = Outcome;

    fn console(&mut self) -> io::Result<Option<OwnedFd>> {
        if !self.input {
            return Ok(None);
        }
        Ok(Some(self.attached.input().try_clone()?.into()))
    }

    fn ended(&mut self) -> io::Result<Option<Outcome>> {
        if let Some(outcome) = self.killed.take() {
            return Ok(Some(outcome));
        }
        match self.outcomes.try_recv() {
            Ok(outcome) => Ok(Some(outcome)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(io::Error::other("its thread ended early")),
        }
    }

    fn ask_to_end(&mut self) -> io::Result<()> {
        if self.attached.end_input()? {
            return Ok(());
        }
        // No VMM runs yet that could end in order.
        self.kill()
    }

    fn kill(&mut self) -> io::Result<()> {
        self.attached.stop();
        // Its thread removes the host's files. It may hang in writing output
        // that nobody reads, and is left behind then.
        let outcome = self.outcomes.recv_timeout(TIDY_TIME);
        self.killed = Some(outcome.unwrap_or(Err(HostError::Stopped)));
        Ok(())
    }
}

impl Drop for HostVm {
    fn drop(&mut self) {
        self.attached.stop();
    }
}
