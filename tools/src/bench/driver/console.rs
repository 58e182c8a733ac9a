//! A guest's serial console over its VMM's standard input and output.
//!
//! A thread reads; who waits sleeps until text comes, so a measured guest is
//! not disturbed by anybody looking. What a guest prints is not trusted: only
//! the last [`KEPT_BYTES`] are kept.

use std::io::{Read, Write};
use std::process::{ChildStdin, ChildStdout};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::marks::MarkSender;

/// How much of what the guest printed is kept.
const KEPT_BYTES: usize = 256 << 10;
/// What the guest's shell prints before its prompt.
const GREETING: &[u8] = b"built-in shell";
const PROMPT: &[u8] = b"# ";
/// A kernel that printed this runs no further.
const PANIC: &[u8] = b"end Kernel panic";
/// How long a guest's shell may take for one command.
const COMMAND_LIMIT: Duration = Duration::from_secs(60);

/// See the module's head.
#[derive(Debug)]
pub(super) struct Console {
    input: ChildStdin,
    chunks: Receiver<Vec<u8>>,
    text: Vec<u8>,
    commands: u64,
}

impl Console {
    /// With `marks` the agent's marks are taken out of what comes.
    pub(super) fn new(
        input: ChildStdin,
        output: ChildStdout,
        marks: Option<MarkSender>,
    ) -> Result<Self> {
        let (sender, chunks) = channel();
        thread::Builder::new()
            .name("console".to_owned())
            .spawn(move || {
                let mut output = output;
                let mut buffer = [0; 4096];
                while let Ok(count) = output.read(&mut buffer) {
                    let mut chunk = buffer.get(..count).unwrap_or_default().to_vec();
                    if let Some(marks) = &marks {
                        marks.take(&mut chunk);
                    }
                    if count == 0 || sender.send(chunk).is_err() {
                        return;
                    }
                }
            })
            .context("cannot start a thread")?;
        Ok(Self {
            input,
            chunks,
            text: Vec::new(),
            commands: 0,
        })
    }

    /// Waits for the shell's prompt: init has run then.
    pub(super) fn await_prompt(&mut self, limit: Duration) -> Result<()> {
        let deadline = deadline(limit);
        self.take_through(GREETING, deadline)?;
        self.take_through(PROMPT, deadline).map(drop)
    }

    /// Makes the shell plain: no echo, no prompt, no carriage returns.
    pub(super) fn make_plain(&mut self) -> Result<()> {
        self.type_in("stty -echo -onlcr; PS1=; PS2=; echo ready-$((20+22))\n")?;
        self.take_through(b"ready-42\n", deadline(COMMAND_LIMIT))
            .map(drop)
    }

    /// Runs a command in the plain shell: what it printed.
    pub(super) fn run(&mut self, command: &str) -> Result<String> {
        self.commands = self.commands.saturating_add(1);
        let mark = format!("end-of-{}\n", self.commands);
        // Added up by the shell, so that no echo is taken for the end.
        self.type_in(&format!(
            "{{ {command}\n}} 2>&1; echo end-of-$(({}+0))\n",
            self.commands
        ))?;
        let printed = self.take_through(mark.as_bytes(), deadline(COMMAND_LIMIT))?;
        Ok(String::from_utf8_lossy(&printed).into_owned())
    }

    /// Starts a command in the background and waits until it has printed
    /// `sign`.
    pub(super) fn start(&mut self, command: &str, sign: &str, limit: Duration) -> Result<()> {
        self.type_in(&format!("{command} &\n"))?;
        self.take_through(sign.as_bytes(), deadline(limit))
            .map(drop)
            .with_context(|| format!("the guest's load `{command}` did not start"))
    }

    fn type_in(&mut self, text: &str) -> Result<()> {
        self.input
            .write_all(text.as_bytes())
            .and_then(|()| self.input.flush())
            .context("the VMM no longer reads the guest's console")
    }

    /// Waits for `wanted`: what came before it. It and that are taken away.
    fn take_through(&mut self, wanted: &[u8], deadline: Instant) -> Result<Vec<u8>> {
        // What was searched is not searched again, but for its end.
        let overlap = wanted.len().max(PANIC.len());
        let mut searched = 0;
        loop {
            let new = self.text.get(searched..).unwrap_or_default();
            if let Some(at) = find(new, wanted) {
                let at = searched.saturating_add(at);
                let rest = self.text.split_off(at.saturating_add(wanted.len()));
                let mut before = std::mem::replace(&mut self.text, rest);
                before.truncate(at);
                return Ok(before);
            }
            if find(new, PANIC).is_some() {
                bail!("the guest's kernel panicked:\n{}", self.tail());
            }
            searched = self.text.len().saturating_sub(overlap);
            let left = deadline.saturating_duration_since(Instant::now());
            match self.chunks.recv_timeout(left) {
                Ok(chunk) => {
                    self.text.extend(chunk);
                    let surplus = self.text.len().saturating_sub(KEPT_BYTES);
                    self.text.drain(..surplus);
                    searched = searched.saturating_sub(surplus);
                }
                Err(RecvTimeoutError::Timeout) => bail!(
                    "the guest did not print `{}` in time; its console ends with:\n{}",
                    String::from_utf8_lossy(wanted).trim(),
                    self.tail()
                ),
                Err(RecvTimeoutError::Disconnected) => bail!(
                    "the VMM ended before the guest printed `{}`; its console ends with:\n{}",
                    String::from_utf8_lossy(wanted).trim(),
                    self.tail()
                ),
            }
        }
    }

    fn tail(&self) -> String {
        let from = self.text.len().saturating_sub(2000);
        let text = String::from_utf8_lossy(self.text.get(from..).unwrap_or_default());
        text.lines()
            .map(|line| format!("  {}\n", crate::output::printable(line)))
            .collect()
    }
}

fn deadline(limit: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(limit).unwrap_or(now)
}

fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    text.windows(wanted.len().max(1))
        .position(|part| part == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    /// A guest's shell stands in the way of a real one here: this machine's.
    fn shell(script: &str) -> (Child, Console) {
        let mut child = Command::new("sh")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = child.stdout.take().unwrap();
        (child, Console::new(input, output, None).unwrap())
    }

    #[test]
    fn commands_print_between_their_marks() {
        let (mut child, mut console) =
            shell("printf 'noise built-in shell (ash)\\n\\n/ # '; exec sh");
        console.await_prompt(Duration::from_secs(10)).unwrap();
        assert_eq!(console.run("echo one; echo two >&2").unwrap(), "one\ntwo\n");
        assert_eq!(console.run("false").unwrap(), "");
        console
            .start("echo load-ready", "load-ready", Duration::from_secs(10))
            .unwrap();
        drop(console);
        assert!(child.wait().is_ok());
    }

    #[test]
    fn an_early_end_shows_what_was_printed_without_control_characters() {
        let (mut child, mut console) = shell("printf 'Kernel panic \\033[31m'");
        let error = console.await_prompt(Duration::from_secs(10)).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("the VMM ended") && text.contains("Kernel panic"));
        assert!(!text.contains('\u{1b}'));
        assert!(child.wait().is_ok());
    }

    #[test]
    fn a_panic_is_told_at_once() {
        let (mut child, mut console) =
            shell("echo 'init died'; echo '---[ end Kernel panic - not syncing'; exec cat");
        let error = console.await_prompt(Duration::from_secs(600)).unwrap_err();
        assert!(error.to_string().contains("init died"), "{error}");
        drop(console);
        assert!(child.wait().is_ok());
    }

    #[test]
    fn a_guest_that_floods_its_console_takes_bounded_memory() {
        let (mut child, mut console) =
            shell("head -c 3000000 /dev/zero | tr '\\0' x; printf 'built-in shell # '");
        console.await_prompt(Duration::from_secs(30)).unwrap();
        assert!(console.text.len() <= KEPT_BYTES);
        assert!(child.wait().is_ok());
    }
}
