//! One lmb-vmm process and the guest in it.
//!
//! States: started → shell ready → ended. The value owns the process, kills it
//! when dropped, and hands its logs to the running test's report.

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lmb_tools::client::Client;
use lmb_vmm::protocol::{MemoryAction, MemoryInfo, MemoryRequest, Operation, OperationState};
use tempfile::TempDir;

use crate::console::Log;
use crate::curl::Curl;
use crate::place::{lmb_program, vmm_program};
use crate::spec::GuestSpec;
use crate::{dmesg, host_memory, report, wait};

/// How much of each log a report shows.
const SHOWN_BYTES: usize = 6000;

/// What a command printed and how it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Exit code.
    pub status: i32,
    /// Standard output; of a command in a guest with its standard error.
    pub stdout: String,
    /// Standard error, of a command on the host.
    pub stderr: String,
}

/// A running VM.
#[derive(Debug)]
pub struct GuestVm {
    child: Child,
    stdin: Option<ChildStdin>,
    serial: Log,
    stderr: Log,
    /// Where the next search on the console starts.
    read_to: usize,
    commands: u64,
    socket: PathBuf,
    _directory: TempDir,
}

impl GuestVm {
    pub(crate) fn start(spec: &GuestSpec) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("lmb-test-").tempdir()?;
        let socket = directory.path().join("api.sock");
        let program = vmm_program()?;
        let mut child = Command::new(&program)
            .args(spec.arguments(&socket)?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let stdin = child.stdin.take();
        let serial = child.stdout.take().map(Log::of).unwrap_or_default();
        let stderr = child.stderr.take().map(Log::of).unwrap_or_default();
        Ok(Self {
            child,
            stdin,
            serial,
            stderr,
            read_to: 0,
            commands: 0,
            socket,
            _directory: directory,
        })
    }

    /// Waits for the guest's shell and makes it plain: no echo, no prompt, no
    /// carriage returns. Again after a reboot of the guest.
    ///
    /// # Errors
    /// When it does not come.
    pub fn await_shell(&mut self) -> Result<()> {
        // The prompt, behind the shell's greeting.
        let (_, at) = self
            .serial
            .find("built-in shell", self.read_to, wait::BOOT)?;
        let (_, at) = self.serial.find("# ", at, wait::SHORT)?;
        self.read_to = at;
        self.type_in("stty -echo -onlcr; PS1=; PS2=; echo ready-$((20+22))\n")?;
        let (_, at) = self.serial.find("ready-42\n", self.read_to, wait::SHORT)?;
        self.read_to = at;
        Ok(())
    }

    /// Waits until the guest's memory driver is active.
    ///
    /// # Errors
    /// When it does not become so.
    pub fn await_driver(&self) -> Result<()> {
        wait::until("the guest's memory driver", wait::SHORT, || {
            let memory = self.memory()?;
            Ok(memory.windows.iter().all(|w| w.driver_active).then_some(()))
        })
    }

    /// Types text on the guest's console.
    ///
    /// # Errors
    /// When the VMM no longer reads it.
    pub fn type_in(&mut self, text: &str) -> Result<()> {
        let stdin = self.stdin.as_mut().context("the console is closed")?;
        stdin.write_all(text.as_bytes())?;
        stdin.flush()?;
        Ok(())
    }

    /// Runs a command in the guest's shell.
    ///
    /// # Errors
    /// When it does not end within [`wait::CHANGE`].
    pub fn sh(&mut self, command: &str) -> Result<Output> {
        self.commands += 1;
        let number = self.commands;
        // The shell adds the numbers up, so that no echo of this line can be
        // taken for its output.
        self.type_in(&format!(
            "{{ {command}\n}} 2>&1; echo \"end-$(({number}+0))-$?.\"\n"
        ))?;
        let mark = format!("end-{number}-");
        let (stdout, at) = self.serial.find(&mark, self.read_to, wait::CHANGE)?;
        let (status, at) = self.serial.find(".\n", at, wait::SHORT)?;
        self.read_to = at;
        Ok(Output {
            status: status
                .parse()
                .with_context(|| format!("status {status:?}"))?,
            stdout,
            stderr: String::new(),
        })
    }

    /// Runs a command that must succeed: what it printed, without white space
    /// at its ends.
    ///
    /// # Errors
    /// When it fails.
    pub fn sh_ok(&mut self, command: &str) -> Result<String> {
        let output = self.sh(command)?;
        ensure!(output.status == 0, "in the guest, {command:?}: {output:?}");
        Ok(output.stdout.trim().to_owned())
    }

    /// Runs a command that must print a number.
    ///
    /// # Errors
    /// When it does not.
    pub fn sh_number(&mut self, command: &str) -> Result<u64> {
        let text = self.sh_ok(command)?;
        text.parse()
            .with_context(|| format!("{command:?} printed {text:?}"))
    }

    /// The guest's MemTotal in bytes.
    ///
    /// # Errors
    /// When the guest does not say.
    pub fn mem_total_bytes(&mut self) -> Result<u64> {
        let kib = self.sh_number("awk '/^MemTotal/ {print $2}' /proc/meminfo")?;
        Ok(kib << 10)
    }

    /// Warnings and errors in the guest's kernel log that must not be there.
    ///
    /// # Errors
    /// When the guest does not say.
    pub fn complaints(&mut self) -> Result<Vec<String>> {
        Ok(dmesg::complaints(&self.sh_ok("dmesg -r")?))
    }

    /// The control socket's path.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The control socket by the project's client.
    #[must_use]
    pub fn client(&self) -> Client {
        Client::new(&self.socket)
    }

    /// The control socket by curl.
    #[must_use]
    pub fn curl(&self) -> Curl {
        Curl::new(self.socket.clone())
    }

    /// `GET /memory`.
    ///
    /// # Errors
    /// When there is no such reply.
    pub fn memory(&self) -> Result<MemoryInfo> {
        Ok(self.client().memory()?)
    }

    /// An operation, waited for, with the guest's report that it is usable.
    ///
    /// # Errors
    /// When it is refused.
    pub fn change(&self, action: MemoryAction, bytes: u64) -> Result<Operation> {
        self.ask(MemoryRequest {
            size_bytes: Some(bytes),
            ..MemoryRequest::new(action)
        })
    }

    /// The same with any request; how long and for what it waits is the same.
    ///
    /// # Errors
    /// When it is refused.
    pub fn ask(&self, request: MemoryRequest) -> Result<Operation> {
        let operation = self.client().start_operation(&MemoryRequest {
            timeout_ms: u64::try_from(wait::CHANGE.as_millis()).unwrap_or(u64::MAX),
            wait: true,
            wait_usable: true,
            ..request
        })?;
        Ok(operation)
    }

    /// As [`GuestVm::change`], of an operation that must be done.
    ///
    /// # Errors
    /// When it is not.
    pub fn change_ok(&self, action: MemoryAction, bytes: u64) -> Result<Operation> {
        let operation = self.change(action, bytes)?;
        ensure!(operation.state == OperationState::Done, "{operation:#?}");
        Ok(operation)
    }

    /// Starts an operation without waiting.
    ///
    /// # Errors
    /// When it is refused.
    pub fn begin(&self, action: MemoryAction, bytes: u64) -> Result<Operation> {
        let operation = self.client().start_operation(&MemoryRequest {
            action,
            size_bytes: Some(bytes),
            lmbs: None,
            timeout_ms: u64::try_from(wait::CHANGE.as_millis()).unwrap_or(u64::MAX),
            wait: false,
            wait_usable: false,
            ..MemoryRequest::new(action)
        })?;
        Ok(operation)
    }

    /// Waits until an operation no longer runs.
    ///
    /// # Errors
    /// When it still runs after [`wait::CHANGE`].
    pub fn await_end(&self, id: u64) -> Result<Operation> {
        wait::until("an operation's end", wait::CHANGE, || {
            let operation = self.client().operation(id)?;
            Ok((operation.state != OperationState::Running).then_some(operation))
        })
    }

    /// Runs `lmb` on the host; `arguments` are followed by the socket.
    ///
    /// # Errors
    /// When it cannot be run.
    pub fn lmb(&self, arguments: &[&str]) -> Result<Output> {
        let output = Command::new(lmb_program()?)
            .args(arguments)
            .arg("--socket")
            .arg(&self.socket)
            .stdin(Stdio::null())
            .output()
            .context("cannot run lmb")?;
        Ok(Output {
            status: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }

    /// The VMM's process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Bytes of the VMM that are resident, huge pages included.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn resident_bytes(&self) -> Result<u64> {
        host_memory::resident_bytes(self.pid())
    }

    /// Bytes that the VMM's memfds hold.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn memfd_bytes(&self) -> Result<u64> {
        host_memory::memfd_bytes(self.pid())
    }

    /// The VMM's own memory: Pss without guest memory.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn own_pss_bytes(&self) -> Result<u64> {
        host_memory::own_pss_bytes(self.pid())
    }

    /// Free huge pages of 2 MiB in the host's pool.
    #[must_use]
    pub fn free_huge_pages_2m() -> u64 {
        host_memory::free_huge_pages(2048)
    }

    /// What the VMM wrote to its standard error so far.
    #[must_use]
    pub fn stderr(&self) -> String {
        self.stderr.text()
    }

    /// What came from the guest's serial port so far.
    #[must_use]
    pub fn serial(&self) -> String {
        self.serial.text()
    }

    /// Waits for text on the guest's console, behind what was read so far.
    ///
    /// # Errors
    /// When it does not come.
    pub fn await_text(&mut self, text: &str, limit: Duration) -> Result<String> {
        let (before, at) = self.serial.find(text, self.read_to, limit)?;
        self.read_to = at;
        Ok(before)
    }

    /// Forgets what the console showed so far.
    pub fn skip_console(&mut self) {
        self.read_to = self.serial.len();
    }

    /// Leaves the guest's console unread from here to the VMM's end, as a
    /// reader that is stuck.
    pub fn stop_reading(&self) {
        self.serial.hold(true);
    }

    /// Sends the VMM SIGTERM.
    ///
    /// # Errors
    /// When there is no process to send it to.
    pub fn terminate(&self) -> Result<()> {
        let command = format!("kill -TERM {}", self.pid());
        let status = Command::new("sh").args(["-c", &command]).status()?;
        ensure!(status.success(), "{command}: {status}");
        Ok(())
    }

    /// Waits for the VMM to end.
    ///
    /// # Errors
    /// When it does not.
    pub fn await_exit(&mut self) -> Result<ExitStatus> {
        let child = &mut self.child;
        let status = wait::until("the VMM's end", wait::SHORT, || Ok(child.try_wait()?))?;
        self.serial.hold(false);
        self.serial.whole(wait::SHORT)?;
        self.stderr.whole(wait::SHORT)?;
        Ok(status)
    }

    fn logs(&self) -> String {
        let status = format!("lmb-vmm, process {}", self.pid());
        format!(
            "---- {status}: standard error ----\n{}\n---- {status}: serial console ----\n{}\n----",
            last(&self.stderr.text()),
            last(&self.serial.text())
        )
    }
}

/// The end of a long text.
fn last(text: &str) -> &str {
    let mut from = text.len().saturating_sub(SHOWN_BYTES);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    text.get(from..).unwrap_or(text)
}

impl Drop for GuestVm {
    fn drop(&mut self) {
        // It may have ended by itself, which is as good.
        let early = self.child.try_wait().ok().flatten();
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.serial.hold(false);
        let mut logs = self.logs();
        if let Some(status) = early {
            let how = match status.signal() {
                Some(signal) => format!("was ended by signal {signal}"),
                None => format!("had ended: {status}"),
            };
            logs.push_str(&format!("\nlmb-vmm {how}"));
        }
        report::attach(logs);
    }
}
