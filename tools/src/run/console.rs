//! The running VM as `lmb run` sees it: a child process, and, where the user
//! sits at a terminal, that terminal as the guest's console.
//!
//! States: attached or not → ending (asked to end, with a time to do so) →
//! ended. The one loop in [`supervise`] owns all of it. The guest's output
//! goes from the VMM to the terminal directly; only what is typed passes
//! through here, for the escape key.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, getpgrp, getpid, kill_process};

use super::escape::{self, Escape};
use super::signals::{Pending, Signals};
use super::terminal::RawTerminal;

/// How long a VMM that was asked to end may take before it is killed.
const END_TIME: Duration = Duration::from_secs(5);
/// Typed bytes held back for a guest that does not read; more are dropped.
const TYPED_LIMIT: usize = 64 << 10;

/// Where the VMM's standard input comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Input {
    /// The terminal, in raw mode, through lmb.
    Terminal,
    /// lmb's own standard input, as it is (a pipe or a file).
    Inherited,
    /// Nothing: the console is elsewhere, or lmb runs in the background.
    Nothing,
}

impl Input {
    /// The right one for a VM whose console is (or is not) on standard input.
    pub(super) fn choose(console_is_stdio: bool) -> Self {
        let stdin = io::stdin();
        if !console_is_stdio {
            return Self::Nothing;
        }
        if !stdin.is_terminal() {
            return Self::Inherited;
        }
        match rustix::termios::tcgetpgrp(&stdin) {
            // In the background: touching the terminal would stop us.
            Ok(group) if group != getpgrp() => Self::Nothing,
            // Also a terminal that is not ours to control, such as a test's.
            _ => Self::Terminal,
        }
    }

    fn stdio(self) -> Stdio {
        match self {
            Self::Terminal => Stdio::piped(),
            Self::Inherited => Stdio::inherit(),
            Self::Nothing => Stdio::null(),
        }
    }
}

/// How the VM ended.
#[derive(Debug)]
pub(super) enum End {
    /// By itself: the guest powered off, or the VMM failed.
    Itself(ExitStatus),
    /// The user asked for it by the escape key.
    Quit,
    /// lmb got this signal.
    Signal(Signal),
}

/// Starts the VMM and stays with it until it has ended.
///
/// # Errors
/// When it cannot be started or waited for; the child is killed then.
pub(super) fn supervise(command: &mut Command, input: Input) -> io::Result<End> {
    let signals = Signals::install()?;
    let mut child = command.stdin(input.stdio()).spawn()?;
    let result = Supervisor::new(&mut child, signals, input).and_then(|mut s| s.run());
    if result.is_err() {
        // It failed between us and the child; a VM without its lmb must not
        // stay. Both calls fail only when the child has ended already.
        let _ = child.kill();
        let _ = child.wait();
    }
    result
}

struct Supervisor<'a> {
    child: &'a mut Child,
    signals: Signals,
    terminal: Option<RawTerminal>,
    to_guest: Option<ChildStdin>,
    typed: VecDeque<u8>,
    escape: Escape,
    /// Why and until when the child is being ended.
    ending: Option<(End, Instant)>,
}

impl<'a> Supervisor<'a> {
    fn new(child: &'a mut Child, signals: Signals, input: Input) -> io::Result<Self> {
        let to_guest = child.stdin.take();
        if let Some(pipe) = &to_guest {
            rustix::io::ioctl_fionbio(pipe, true)?;
        }
        let terminal = match input {
            Input::Terminal => Some(RawTerminal::enter()?),
            Input::Inherited | Input::Nothing => None,
        };
        Ok(Self {
            child,
            signals,
            terminal,
            to_guest,
            typed: VecDeque::new(),
            escape: Escape::default(),
            ending: None,
        })
    }

    fn run(&mut self) -> io::Result<End> {
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(match self.ending.take() {
                    Some((end, _)) => end,
                    None => End::Itself(status),
                });
            }
            let (readable, writable) = self.wait()?;
            let pending = self.signals.take();
            self.on_signals(pending)?;
            if readable {
                self.read_typed()?;
            }
            if writable || readable {
                self.write_typed()?;
            }
            if self
                .ending
                .as_ref()
                .is_some_and(|(_, by)| Instant::now() >= *by)
            {
                self.child.kill()?;
            }
        }
    }

    /// Waits for a signal, typed bytes, room for them, or the end's deadline:
    /// whether standard input and whether the guest's pipe are ready.
    fn wait(&self) -> io::Result<(bool, bool)> {
        let stdin = io::stdin();
        let mut fds = vec![PollFd::new(&self.signals, PollFlags::IN)];
        let reading = self.to_guest.is_some() && self.terminal.is_some();
        if reading {
            fds.push(PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::IN));
        }
        if let Some(pipe) = self.to_guest.as_ref().filter(|_| !self.typed.is_empty()) {
            fds.push(PollFd::new(pipe, PollFlags::OUT));
        }
        let timeout = self.ending.as_ref().map(|(_, by)| {
            let left = by.saturating_duration_since(Instant::now());
            Timespec::try_from(left).unwrap_or_default()
        });
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        let ready = |index: usize| fds.get(index).is_some_and(|fd| !fd.revents().is_empty());
        let pipe_index = if reading { 2 } else { 1 };
        Ok((reading && ready(1), ready(pipe_index)))
    }

    fn on_signals(&mut self, pending: Pending) -> io::Result<()> {
        if let Some(signal) = pending.ending() {
            self.end(End::Signal(signal))?;
        }
        if pending.has(Signal::TSTP) {
            if let Some(terminal) = &self.terminal {
                terminal.suspend()?;
            }
            // Returns when someone continues us.
            kill_process(getpid(), Signal::STOP)?;
        }
        let continued = pending.has(Signal::TSTP) || pending.has(Signal::CONT);
        if let Some(terminal) = self.terminal.as_ref().filter(|_| continued) {
            terminal.resume()?;
        }
        Ok(())
    }

    /// Asks the VMM to end; at the second time kills it.
    fn end(&mut self, end: End) -> io::Result<()> {
        if self.ending.is_some() {
            return self.child.kill();
        }
        self.ending = Some((end, Instant::now() + END_TIME));
        // The child has not been waited for, so its number is still its own.
        match kill_process(Pid::from_child(self.child), Signal::TERM) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    fn read_typed(&mut self) -> io::Result<()> {
        let mut bytes = [0u8; 4096];
        // Unbuffered: what lies in a buffer would not wake the poll.
        let count = match rustix::io::read(io::stdin(), &mut bytes) {
            // The terminal is gone.
            Ok(0) | Err(rustix::io::Errno::IO) => {
                self.to_guest = None;
                return Ok(());
            }
            Ok(count) => count,
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => return Ok(()),
            Err(e) => return Err(e.into()),
        };
        let mut passed = Vec::new();
        let typed = bytes.get(..count).unwrap_or_default();
        let command = self.escape.feed(typed, &mut passed);
        let room = TYPED_LIMIT.saturating_sub(self.typed.len());
        self.typed.extend(passed.into_iter().take(room));
        match command {
            Some(escape::Command::Quit) => self.end(End::Quit),
            Some(escape::Command::Help) => {
                eprint!("\n{}", escape::HELP);
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn write_typed(&mut self) -> io::Result<()> {
        let Some(pipe) = &mut self.to_guest else {
            self.typed.clear();
            return Ok(());
        };
        while !self.typed.is_empty() {
            match pipe.write(self.typed.as_slices().0) {
                Ok(count) => drop(self.typed.drain(..count)),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                // The VMM does not read its console any more.
                Err(e) if e.kind() == ErrorKind::BrokenPipe => {
                    self.to_guest = None;
                    self.typed.clear();
                    return Ok(());
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}
