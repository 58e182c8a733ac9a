//! A shell on the console, and what else falls to PID 1: collecting children
//! that ended, and the signals by which `poweroff` and `reboot` ask.
//!
//! The one owner is the thread that runs [`serve`]; the shell is started
//! again whenever it ends.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::log;
use crate::sys::{self, Signal, Signals};

const SHELL: &str = "/bin/sh";
const PATH: &str = "/bin:/sbin:/usr/bin:/usr/sbin";
/// A shell that lived shorter than this waits this long for its successor.
const SHORT_LIFE: Duration = Duration::from_secs(1);

/// Runs for as long as the machine does.
pub(crate) fn serve(signals: &Signals) {
    let console = console_device();
    let mut shell = start_shell(console.as_deref());
    loop {
        match signals.wait() {
            Ok(Signal::Child) => {
                while let Some(pid) = sys::reap() {
                    if let Some((_, started)) = shell.filter(|(shell, _)| *shell == pid) {
                        if started.elapsed() < SHORT_LIFE {
                            thread::sleep(SHORT_LIFE);
                        }
                        shell = start_shell(console.as_deref());
                    }
                }
            }
            Ok(Signal::PowerOff) => log::error("power off", &sys::end_machine(false)),
            Ok(Signal::Reboot) => log::error("reboot", &sys::end_machine(true)),
            Err(error) => {
                log::error("wait for signals", &error);
                return;
            }
        }
    }
}

/// The terminal behind /dev/console; `None` where the guest has no console.
/// /dev/console itself cannot be a controlling terminal.
fn console_device() -> Option<PathBuf> {
    let active = fs::read_to_string("/sys/class/tty/console/active").ok()?;
    let name = active.split_whitespace().next_back()?;
    Some(Path::new("/dev").join(name))
}

/// Starts the shell: its process id and when that was.
fn start_shell(console: Option<&Path>) -> Option<(u32, Instant)> {
    let started = console.map(spawn_shell)?;
    match started {
        Ok(pid) => Some((pid, Instant::now())),
        Err(error) => {
            log::error("start a shell on the console", &error);
            None
        }
    }
}

fn spawn_shell(console: &Path) -> io::Result<u32> {
    let terminal = File::options().read(true).write(true).open(console)?;
    let mut command = Command::new(SHELL);
    command
        .stdin(Stdio::from(terminal.try_clone()?))
        .stdout(Stdio::from(terminal.try_clone()?))
        .stderr(Stdio::from(terminal))
        .current_dir("/")
        .env_clear()
        .envs([
            ("PATH", PATH),
            ("HOME", "/"),
            ("TERM", "linux"),
            ("PS1", "# "),
        ]);
    sys::own_terminal(&mut command);
    // The child is collected by `serve`, with all others.
    command.spawn().map(|child| child.id())
}
