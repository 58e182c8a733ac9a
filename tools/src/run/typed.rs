//! What is typed, on its way from standard input to the guest's console.
//!
//! States: open → draining (standard input has ended, the rest is written) →
//! gone (the console is closed). Owned by the loop in `console`.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

use super::escape::{Command, Escape};

/// Bytes held back for a guest that does not read. Of what a terminal sends
/// beyond it the rest is dropped, for its escape key must be seen; other input
/// is left where it is.
const LIMIT: usize = 64 << 10;

/// Bytes that wait for a guest, and where they go.
#[derive(Debug)]
pub(super) struct Typed {
    console: OwnedFd,
    waiting: VecDeque<u8>,
    /// The terminal's escape key; none for other input.
    escape: Option<Escape>,
    at_end: bool,
}

impl Typed {
    /// Writes to `console` without ever blocking on it.
    pub(super) fn new(console: OwnedFd, terminal: bool) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&console, true)?;
        Ok(Self {
            console,
            waiting: VecDeque::new(),
            escape: terminal.then(Escape::default),
            at_end: false,
        })
    }

    /// Whether standard input should be waited for.
    pub(super) fn wants_more(&self) -> bool {
        !self.at_end && (self.escape.is_some() || self.waiting.len() < LIMIT)
    }

    /// Whether the console should be waited for.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub(super) fn console(&self) -> BorrowedFd<'_> {
        self.console.as_fd()
    }

    /// Reads standard input once, which is ready: the command that was typed.
    pub(super) fn read(&mut self) -> io::Result<Option<Command>> {
        let mut bytes = [0u8; 4096];
        // Unbuffered: what lies in a buffer would not wake the poll.
        let count = match rustix::io::read(io::stdin(), &mut bytes) {
            // It has ended, or the terminal is gone.
            Ok(0) | Err(Errno::IO) => {
                self.at_end = true;
                return Ok(None);
            }
            Ok(count) => count,
            Err(Errno::INTR | Errno::AGAIN) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        Ok(self.take(bytes.get(..count).unwrap_or_default()))
    }

    fn take(&mut self, bytes: &[u8]) -> Option<Command> {
        let Some(escape) = &mut self.escape else {
            self.waiting.extend(bytes);
            return None;
        };
        let mut passed = Vec::new();
        let command = escape.feed(bytes, &mut passed);
        let room = LIMIT.saturating_sub(self.waiting.len());
        self.waiting.extend(passed.into_iter().take(room));
        command
    }

    /// Writes what the console takes. `false` when all is done: it is closed,
    /// or standard input has ended and nothing is left of it.
    pub(super) fn write(&mut self) -> io::Result<bool> {
        while !self.waiting.is_empty() {
            match rustix::io::write(&self.console, self.waiting.as_slices().0) {
                Ok(count) => drop(self.waiting.drain(..count)),
                Err(Errno::AGAIN) => return Ok(true),
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => return Ok(false),
                Err(e) => return Err(e.into()),
            }
        }
        Ok(!self.at_end)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    fn typed(terminal: bool) -> (Typed, UnixStream) {
        let (console, guest) = UnixStream::pair().unwrap();
        (Typed::new(console.into(), terminal).unwrap(), guest)
    }

    #[test]
    fn only_a_terminal_has_an_escape_key() {
        for (terminal, command, read) in [
            (true, Some(Command::Quit), &b"a"[..]),
            (false, None, b"a\x01xb"),
        ] {
            let (mut typed, mut guest) = typed(terminal);
            assert_eq!(typed.take(b"a\x01xb"), command);
            assert!(typed.write().unwrap());
            drop(typed);
            let mut bytes = Vec::new();
            guest.read_to_end(&mut bytes).unwrap();
            assert_eq!(bytes, read);
        }
    }

    #[test]
    fn a_guest_that_does_not_read_holds_a_file_back_and_a_terminal_not() {
        for terminal in [true, false] {
            let (mut typed, guest) = typed(terminal);
            // What the socket itself holds comes on top of the limit.
            let mut given = 0;
            while typed.waiting.len() < LIMIT {
                typed.take(&[b'x'; 4096]);
                given += 4096;
                assert!(typed.write().unwrap());
            }
            assert_eq!(typed.wants_more(), terminal);
            typed.take(b"y");
            if terminal {
                assert_eq!(typed.waiting.len(), LIMIT);
                assert_eq!(typed.take(b"\x01x"), Some(Command::Quit));
                continue;
            }
            typed.at_end = true;
            let reading = std::thread::spawn(move || {
                let mut bytes = Vec::new();
                (&guest).read_to_end(&mut bytes).map(|_| bytes)
            });
            while typed.write().unwrap() {
                let mut fds = [rustix::event::PollFd::from_borrowed_fd(
                    typed.console(),
                    rustix::event::PollFlags::OUT,
                )];
                rustix::event::poll(&mut fds, None).unwrap();
            }
            drop(typed);
            let bytes = reading.join().unwrap().unwrap();
            assert_eq!(bytes.len(), given + 1);
            assert_eq!(bytes.last(), Some(&b'y'));
        }
    }

    #[test]
    fn a_console_that_is_closed_is_an_end() {
        let (mut typed, guest) = typed(true);
        drop(guest);
        typed.take(b"ls\n");
        assert!(!typed.write().unwrap());
    }
}
