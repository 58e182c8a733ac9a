//! The running VM as `lmb run` sees it: something that ends by itself or when
//! asked to, and, where the user sits at a terminal, that terminal as the
//! guest's console.
//!
//! States: attached or not → ending (asked to end, with a time to do so) →
//! ended. The one loop in [`supervise`] owns all of it. The guest's output
//! goes past it; only what is typed passes through here, for the escape key.

use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, getpgrp, getpid, kill_process};

use super::escape;
use super::signals::{Pending, Signals};
use super::terminal::RawTerminal;
use super::typed::Typed;

/// How long a VM that was asked to end may take before it is killed.
const END_TIME: Duration = Duration::from_secs(5);

/// Where the guest's console input comes from.
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
}

/// How the VM ended.
#[derive(Debug)]
pub(super) enum End<E> {
    /// By itself: the guest powered off, or the VMM failed.
    Itself(E),
    /// The user asked for it by the escape key.
    Quit,
    /// lmb got this signal.
    Signal(Signal),
}

/// A VM that runs. Dropping it ends it at once.
pub(super) trait Vm {
    /// What it leaves when it ends by itself.
    type End;

    /// Where the guest's console is written to, once: `None` where nothing
    /// has to be passed on.
    fn console(&mut self) -> io::Result<Option<OwnedFd>>;

    /// Its end, if it came. A signal or [`Signals::wake`] tells of it.
    fn ended(&mut self) -> io::Result<Option<Self::End>>;

    /// Asks it to end in order.
    fn ask_to_end(&mut self) -> io::Result<()>;

    /// Ends it at once. [`Vm::ended`] tells of it as of every other end.
    fn kill(&mut self) -> io::Result<()>;
}

/// Stays with the VM that `start` starts until it has ended.
///
/// # Errors
/// When it cannot be started or waited for; it is dropped, and so ended, then.
pub(super) fn supervise<V: Vm>(
    start: impl FnOnce() -> io::Result<V>,
    input: Input,
) -> io::Result<End<V::End>> {
    // First, so that no end is missed.
    let signals = Signals::install()?;
    Supervisor::new(start()?, signals, input)?.run()
}

struct Supervisor<V> {
    vm: V,
    signals: Signals,
    terminal: Option<RawTerminal>,
    typed: Option<Typed>,
    /// Why and until when the VM is being ended.
    ending: Option<(Why, Instant)>,
}

#[derive(Clone, Copy, Debug)]
enum Why {
    Quit,
    Signal(Signal),
}

impl<V: Vm> Supervisor<V> {
    fn new(mut vm: V, signals: Signals, input: Input) -> io::Result<Self> {
        let typed = match vm.console()? {
            Some(console) => Some(Typed::new(console, input == Input::Terminal)?),
            None => None,
        };
        let terminal = match input {
            Input::Terminal => Some(RawTerminal::enter()?),
            Input::Inherited | Input::Nothing => None,
        };
        Ok(Self {
            vm,
            signals,
            terminal,
            typed,
            ending: None,
        })
    }

    fn run(&mut self) -> io::Result<End<V::End>> {
        loop {
            if let Some(end) = self.vm.ended()? {
                return Ok(match self.ending {
                    Some((Why::Quit, _)) => End::Quit,
                    Some((Why::Signal(signal), _)) => End::Signal(signal),
                    None => End::Itself(end),
                });
            }
            let (readable, writable) = self.wait()?;
            let pending = self.signals.take();
            self.on_signals(pending)?;
            if readable {
                self.read_typed()?;
            }
            if (writable || readable)
                && let Some(typed) = &mut self.typed
                && !typed.write()?
            {
                // The guest's console is read no more.
                self.typed = None;
            }
            if self.ending.is_some_and(|(_, by)| Instant::now() >= by) {
                self.vm.kill()?;
            }
        }
    }

    /// Waits for a signal, typed bytes, room for them, or the end's deadline:
    /// whether standard input and whether the guest's console are ready.
    fn wait(&self) -> io::Result<(bool, bool)> {
        let stdin = io::stdin();
        let mut fds = vec![PollFd::new(&self.signals, PollFlags::IN)];
        let reading = self.typed.as_ref().is_some_and(Typed::wants_more);
        if reading {
            fds.push(PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::IN));
        }
        if let Some(typed) = self.typed.as_ref().filter(|typed| typed.is_waiting()) {
            fds.push(PollFd::from_borrowed_fd(typed.console(), PollFlags::OUT));
        }
        let timeout = self.ending.map(|(_, by)| {
            let left = by.saturating_duration_since(Instant::now());
            Timespec::try_from(left).unwrap_or_default()
        });
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        let ready = |index: usize| fds.get(index).is_some_and(|fd| !fd.revents().is_empty());
        let console_index = if reading { 2 } else { 1 };
        Ok((reading && ready(1), ready(console_index)))
    }

    fn on_signals(&mut self, pending: Pending) -> io::Result<()> {
        if let Some(signal) = pending.ending() {
            self.end(Why::Signal(signal))?;
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

    /// Asks the VM to end; at the second time kills it.
    fn end(&mut self, why: Why) -> io::Result<()> {
        if self.ending.is_some() {
            return self.vm.kill();
        }
        self.ending = Some((why, Instant::now() + END_TIME));
        self.vm.ask_to_end()
    }

    fn read_typed(&mut self) -> io::Result<()> {
        let Some(typed) = &mut self.typed else {
            return Ok(());
        };
        match typed.read()? {
            Some(escape::Command::Quit) => self.end(Why::Quit),
            Some(escape::Command::Help) => {
                eprint!("\n{}", escape::HELP);
                Ok(())
            }
            None => Ok(()),
        }
    }
}
