//! A VMM's process: started with its guest's console on pipes and its standard
//! error in a file, killed when the value goes.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

use super::super::figures::monotonic_ns;
use super::console::Console;
use super::marks::{self, MarkSender, Marks};
use crate::output::printable;

/// A process with the console of the guest in it.
#[derive(Debug)]
pub(in crate::bench) struct Running {
    pub(super) process: Process,
    pub(super) console: Console,
}

/// See the module's head.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    /// The moment before it was started, on CLOCK_MONOTONIC.
    pub(super) started_ns: u64,
    errors: PathBuf,
}

impl Process {
    /// Starts `command`.
    pub(super) fn start(command: &mut Command, place: &Path) -> Result<Running> {
        Self::start_with(command, place, |_| None)
    }

    /// Starts a `command` whose guest's agent writes its marks to the console.
    pub(super) fn start_marked(command: &mut Command, place: &Path) -> Result<(Running, Marks)> {
        let mut marks = None;
        let running = Self::start_with(command, place, |pid| {
            let (sender, receiver) = marks::channel(pid);
            marks = Some(receiver);
            Some(sender)
        })?;
        Ok((running, marks.context("the VMM has no console")?))
    }

    fn start_with(
        command: &mut Command,
        place: &Path,
        marks: impl FnOnce(u32) -> Option<MarkSender>,
    ) -> Result<Running> {
        let errors = place.join("stderr");
        let file = File::create(&errors)
            .with_context(|| format!("cannot make the file {}", errors.display()))?;
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(file);
        let started_ns = monotonic_ns();
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot start {}", command.get_program().display()))?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let process = Self {
            child,
            started_ns,
            errors,
        };
        let (input, output) = pipes.context("the VMM has no console")?;
        let console = Console::new(input, output, marks(process.id()))?;
        Ok(Running { process, console })
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// An error when it has ended by itself.
    pub(super) fn check_alive(&mut self) -> Result<()> {
        match self.child.try_wait().context("cannot wait for the VMM")? {
            None => Ok(()),
            Some(status) => anyhow::bail!("the VMM ended with {status}"),
        }
    }

    /// Kills it and waits for its end.
    pub(super) fn stop(&mut self) -> Result<()> {
        // It fails when the process has ended already, which is as good.
        let _ = self.child.kill();
        self.child
            .wait()
            .map(drop)
            .context("cannot wait for the VMM's end")
    }

    /// The last lines of its standard error.
    pub(super) fn complaints(&self) -> String {
        let bytes = fs::read(&self.errors).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = text.lines().collect();
        let from = lines.len().saturating_sub(20);
        lines
            .iter()
            .skip(from)
            .map(|line| format!("  {}\n", printable(line)))
            .collect()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}
