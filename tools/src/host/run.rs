//! Starting QEMU, streaming the command's output, and finding out how it
//! ended.
//!
//! One thread reads QEMU's standard output and passes it on by a channel; the
//! caller's thread waits on that channel until the deadline, and owns the
//! process: when it leaves, QEMU is gone.

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};

use super::qemu::{self, RunFiles};
use super::{FailureLog, HostEnd, HostError, HostRun, image, monitor};
use crate::packages::{self, Cache};

/// How many lines of each log an error shows.
const TAIL_LINES: usize = 20;

/// How a workplace's directory begins.
const WORKPLACE_PREFIX: &str = "lmb-host-";

/// Name of a workplace's lock file.
const LOCK: &str = "lock";

/// The files of one run, in a directory of their own.
///
/// It goes with the run. A run that was killed leaves it behind, with its lock
/// free; the next one removes it.
struct Workplace {
    directory: tempfile::TempDir,
    _lock: File,
}

impl Workplace {
    fn new() -> std::io::Result<Workplace> {
        // Below /tmp and not in the cache: a socket's path must stay short.
        let parent = std::env::temp_dir();
        remove_abandoned(&parent);
        let directory = tempfile::Builder::new()
            .prefix(WORKPLACE_PREFIX)
            .tempdir_in(parent)?;
        // Locked before it has its name, so that nobody finds it free.
        let new = directory.path().join("new-lock");
        let lock = File::create(&new)?;
        lock.lock()?;
        fs::rename(&new, directory.path().join(LOCK))?;
        Ok(Workplace {
            directory,
            _lock: lock,
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        fs::read(self.path(name))
            .map(|bytes| String::from_utf8_lossy(&bytes).replace('\r', ""))
            .unwrap_or_default()
    }

    fn report(&self) -> Report {
        Report::parse(&self.text("status"))
    }
}

/// Removes the workplaces in `parent` that nobody holds. What cannot be
/// removed, such as another user's, is left.
fn remove_abandoned(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else {
        return;
    };
    for entry in entries.flatten() {
        let path = entry.path();
        let named = entry
            .file_name()
            .to_str()
            .is_some_and(|name| name.starts_with(WORKPLACE_PREFIX));
        if named
            && let Ok(lock) = File::options().write(true).open(path.join(LOCK))
            && lock.try_lock().is_ok()
        {
            let _ = fs::remove_dir_all(&path);
        }
    }
}

/// What the host's `/init` reported.
#[derive(Debug, Default, PartialEq, Eq)]
struct Report {
    ready: bool,
    failed: Option<String>,
    exit: Option<u8>,
}

impl Report {
    fn parse(text: &str) -> Report {
        let mut report = Report::default();
        // A line without its end is not complete yet.
        for line in text.split_inclusive('\n') {
            let Some(line) = line.strip_suffix('\n') else {
                continue;
            };
            let line = line.trim_end_matches('\r');
            if line == "ready" {
                report.ready = true;
            } else if let Some(text) = line.strip_prefix("failed ") {
                report.failed = Some(text.to_owned());
            } else if let Some(code) = line.strip_prefix("exit ") {
                report.exit = code.parse().ok();
            }
        }
        report
    }
}

type Output<'a> = &'a mut dyn FnMut(&[u8]) -> std::io::Result<()>;

pub(super) fn run(
    run: &HostRun,
    cache: &Cache,
    end: Option<HostEnd>,
    output: Output<'_>,
) -> Result<u8, HostError> {
    qemu::check(run)?;
    let stop = end.as_ref().map(|end| Arc::clone(&end.stop));
    let stopped = || stop.as_ref().is_some_and(|stop| stop.is_asked());
    let workplace = Workplace::new()
        .context("cannot make a temporary directory")
        .map_err(HostError::Start)?;
    prepare(run, cache, &workplace, end.is_some()).map_err(HostError::Start)?;
    let mut machine = Machine::start(run, &workplace, end).map_err(HostError::Start)?;
    let deadline = Instant::now().checked_add(run.limit);
    let in_time = pass_on(&machine.chunks, deadline, output).map_err(HostError::Output)?;
    if !in_time {
        let log = keep(cache, &workplace, Some(&machine.state(&workplace)));
        machine.stop();
        let report = workplace.report();
        return Err(HostError::TimedOut {
            limit_s: run.limit.as_secs(),
            stage: match (report.ready, report.exit) {
                (false, _) => "while it booted",
                (true, None) => "while the command ran",
                (true, Some(_)) => "while it powered off",
            },
            log,
        });
    }
    let status = machine
        .end()
        .context("cannot wait for QEMU")
        .map_err(HostError::Start)?;
    if stopped() {
        return Err(HostError::Stopped);
    }
    conclude(cache, &workplace, status)
}

fn conclude(cache: &Cache, workplace: &Workplace, status: ExitStatus) -> Result<u8, HostError> {
    let report = workplace.report();
    if let (Some(code), None) = (report.exit, &report.failed) {
        return Ok(code);
    }
    let reason = match report.failed {
        Some(text) => text,
        None if !status.success() => format!("QEMU ended with {status}"),
        None if report.ready => "it went down while the command ran".to_owned(),
        None => "it went down before the command ran".to_owned(),
    };
    let log = keep(cache, workplace, None);
    Err(HostError::Failed { reason, log })
}

fn prepare(run: &HostRun, cache: &Cache, workplace: &Workplace, input: bool) -> Result<()> {
    let version = qemu::version(&run.qemu)?;
    let initramfs = image::build(run, cache, &version, input, &|_| {})?;
    let path = workplace.path("initramfs");
    fs::write(&path, initramfs).with_context(|| format!("cannot write {}", path.display()))
}

/// A running QEMU. It is killed when this is dropped.
struct Machine {
    child: Child,
    chunks: Receiver<Vec<u8>>,
}

impl Machine {
    fn start(run: &HostRun, workplace: &Workplace, end: Option<HostEnd>) -> Result<Machine> {
        let messages = File::create(workplace.path("qemu.log")).context("cannot make a log")?;
        let arguments = qemu::arguments(
            run,
            &RunFiles {
                initramfs: &workplace.path("initramfs"),
                console: &workplace.path("console.log"),
                status: &workplace.path("status"),
                monitor: &workplace.path("monitor"),
                input: end.is_some(),
            },
        );
        let mut command = tied_to_this_process(&run.qemu);
        command
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(messages);
        let mut stop = None;
        if let Some(end) = end {
            command.stdin(OwnedFd::from(end.input)).process_group(0);
            stop = Some(end.stop);
        }
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot run {}", run.qemu.display()))?;
        // With the command goes this process's copy of QEMU's socket: its
        // other end sees when QEMU is gone.
        drop(command);
        let (sender, chunks) = sync_channel(64);
        let stdout = child.stdout.take();
        let machine = Machine { child, chunks };
        if let Some(stop) = stop {
            stop.watch(&machine.child)
                .context("cannot watch QEMU (this needs Linux 5.3 or newer)")?;
        }
        if let Some(stdout) = stdout {
            thread::Builder::new()
                .name("host-output".to_owned())
                .spawn(move || forward(stdout, &sender))
                .context("cannot start a thread")?;
        }
        Ok(machine)
    }

    fn state(&self, workplace: &Workplace) -> String {
        monitor::state(&workplace.path("monitor"))
    }

    fn end(&mut self) -> std::io::Result<ExitStatus> {
        self.child.wait()
    }

    fn stop(&mut self) {
        // It fails when QEMU has just ended by itself, which is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Passes output on until QEMU closes it, which it does by ending. `false` when
/// the deadline came first.
fn pass_on(
    chunks: &Receiver<Vec<u8>>,
    deadline: Option<Instant>,
    output: Output<'_>,
) -> std::io::Result<bool> {
    loop {
        let chunk = match deadline {
            Some(deadline) => {
                // Looked at each time: a command that writes without end
                // leaves no time in which nothing comes.
                let Some(left) = deadline.checked_duration_since(Instant::now()) else {
                    return Ok(false);
                };
                chunks.recv_timeout(left)
            }
            None => chunks.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match chunk {
            Ok(bytes) => output(&bytes)?,
            Err(RecvTimeoutError::Disconnected) => return Ok(true),
            Err(RecvTimeoutError::Timeout) => return Ok(false),
        }
    }
}

fn forward(mut stdout: ChildStdout, sender: &SyncSender<Vec<u8>>) {
    let mut buffer = vec![0; 1 << 16];
    loop {
        match stdout.read(&mut buffer) {
            Ok(0) => return,
            Ok(count) => {
                if sender.send(buffer[..count].to_vec()).is_err() {
                    return;
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

/// QEMU, such that it is killed when this process is, however that happens:
/// setpriv (util-linux) asks the kernel for that and then becomes QEMU. The
/// kernel takes the end of the thread that starts it for the end of the
/// process; that thread stays in [`run`] as long as QEMU lives.
fn tied_to_this_process(qemu: &Path) -> Command {
    match packages::find_program("setpriv") {
        Some(setpriv) => {
            let mut command = Command::new(setpriv);
            command.args(["--pdeathsig", "KILL", "--"]).arg(qemu);
            command
        }
        None => Command::new(qemu),
    }
}

/// The lines of a log that an error shows: from the first that names a crash
/// of the kernel, else the last.
fn telling_lines(text: &str) -> Vec<&str> {
    const CRASHES: [&str; 4] = ["BUG: ", "Oops: ", "Kernel panic", "triggered crash"];
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    let start = lines
        .iter()
        .position(|line| CRASHES.iter().any(|crash| line.contains(crash)))
        .unwrap_or_else(|| lines.len().saturating_sub(TAIL_LINES));
    lines.into_iter().skip(start).take(TAIL_LINES).collect()
}

/// Saves what a failed host left into the cache.
fn keep(cache: &Cache, workplace: &Workplace, state: Option<&str>) -> FailureLog {
    let mut tail = String::new();
    for name in ["console.log", "qemu.log"] {
        for line in telling_lines(&workplace.text(name)) {
            tail.push_str("  ");
            tail.push_str(line);
            tail.push('\n');
        }
    }
    let save = || -> Result<PathBuf> {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        let directory = cache
            .directory("host-failures")?
            .join(format!("{seconds}-{}", std::process::id()));
        fs::create_dir_all(&directory)?;
        for name in ["console.log", "qemu.log", "status"] {
            fs::write(directory.join(name), workplace.text(name))?;
        }
        if let Some(state) = state {
            fs::write(directory.join("state.txt"), state)?;
        }
        Ok(directory)
    };
    FailureLog {
        directory: save().ok(),
        tail: tail.trim_end().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(ready: bool, failed: Option<&str>, exit: Option<u8>) -> Report {
        Report {
            ready,
            failed: failed.map(str::to_owned),
            exit,
        }
    }

    #[test]
    fn reports_are_read_as_far_as_they_are_complete() {
        for (text, wanted) in [
            ("", report(false, None, None)),
            ("read", report(false, None, None)),
            ("ready\n", report(true, None, None)),
            ("ready\nexit 1", report(true, None, None)),
            ("ready\nexit 17\n", report(true, None, Some(17))),
            ("ready\r\nexit 7\r\n", report(true, None, Some(7))),
            ("ready\nexit 256\n", report(true, None, None)),
            ("failed no kvm\n", report(false, Some("no kvm"), None)),
            ("\0\u{fffd}\nnoise\n", report(false, None, None)),
        ] {
            assert_eq!(Report::parse(text), wanted, "{text:?}");
        }
    }

    #[test]
    fn the_deadline_holds_while_output_never_rests() {
        let (sender, chunks) = sync_channel(4);
        let flood = thread::spawn(move || while sender.send(vec![b'y'; 16]).is_ok() {});
        let deadline = Instant::now() + std::time::Duration::from_millis(50);
        let mut count = 0;
        let ended = pass_on(&chunks, Some(deadline), &mut |bytes| {
            count += bytes.len();
            Ok(())
        });
        drop(chunks);
        flood.join().unwrap();
        assert!(!ended.unwrap());
        assert!(count > 0);
    }

    #[test]
    fn output_that_cannot_be_passed_on_ends_the_run() {
        let (sender, chunks) = sync_channel(4);
        sender.send(vec![1]).unwrap();
        let outcome = pass_on(&chunks, None, &mut |_| {
            Err(std::io::ErrorKind::BrokenPipe.into())
        });
        assert_eq!(outcome.unwrap_err().kind(), std::io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn a_crash_is_shown_from_its_first_line_and_else_the_end() {
        let crash = format!("one\n\nBUG: bad\n{}", "trace\n".repeat(50));
        let lines = telling_lines(&crash);
        assert_eq!(lines[0], "BUG: bad");
        assert_eq!(lines.len(), TAIL_LINES);
        let numbers: Vec<String> = (0..50).map(|number| number.to_string()).collect();
        let text = numbers.join("\n");
        assert_eq!(telling_lines(&text), numbers[50 - TAIL_LINES..]);
        assert!(telling_lines("").is_empty());
    }

    #[test]
    fn only_workplaces_that_nobody_holds_are_removed() {
        let parent = tempfile::tempdir().unwrap();
        let place = |name: &str, locked: bool| {
            let path = parent.path().join(name);
            fs::create_dir(&path).unwrap();
            fs::write(path.join("initramfs"), "x").unwrap();
            let lock = File::create(path.join(LOCK)).unwrap();
            if locked {
                lock.lock().unwrap();
            }
            (path, lock)
        };
        let (held, _lock) = place("lmb-host-held", true);
        let (left, lock) = place("lmb-host-left", true);
        let (other, _) = place("another", false);
        let young = parent.path().join("lmb-host-young");
        fs::create_dir(&young).unwrap();
        drop(lock);
        remove_abandoned(parent.path());
        assert!(held.join("initramfs").exists());
        assert!(!left.exists());
        assert!(other.exists(), "it is not ours");
        assert!(young.exists(), "it has no lock yet");
    }
}
