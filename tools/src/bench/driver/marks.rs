//! The boot marks of a guest's agent, where another VMM than lmb-vmm runs it:
//! one byte each, stamped as it arrives. They come over a debug port's socket
//! ([`Marks::read`]) or between the bytes of the console ([`channel`]).

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::bench::figures::{cpu_ns, monotonic_ns};

/// The agent is init and runs.
pub(super) const INIT: u8 = 2;
/// It has loaded the memory driver.
pub(super) const DRIVER: u8 = 3;
/// A memory block came online.
pub(super) const BLOCK_ONLINE: u8 = 6;
/// A memory block is gone.
pub(super) const BLOCK_GONE: u8 = 7;
/// After this long without a mark there will be no more.
pub(super) const QUIET: Duration = Duration::from_secs(2);

/// On the console a mark is its code plus this: bytes that no UTF-8 has.
const ON_CONSOLE: u8 = 0xf8;

/// A mark as it arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) code: u8,
    pub(super) at_ns: u64,
    /// CPU time of the VMM's process then.
    pub(super) cpu_ns: Option<u64>,
}

/// The marks of one guest, in their order.
#[derive(Debug)]
pub(super) struct Marks {
    arrived: Receiver<Mark>,
}

/// Where marks are put in.
#[derive(Debug)]
pub(super) struct MarkSender {
    pid: u32,
    sender: Sender<Mark>,
}

/// Marks of a guest in the VMM `pid`, and where they are put in.
pub(super) fn channel(pid: u32) -> (MarkSender, Marks) {
    let (sender, arrived) = mpsc::channel();
    (MarkSender { pid, sender }, Marks { arrived })
}

impl MarkSender {
    /// Stamps marks that arrived together; false when nobody wants them.
    pub(super) fn send(&self, codes: impl IntoIterator<Item = u8>) -> bool {
        let (at_ns, cpu_ns) = (monotonic_ns(), cpu_ns(self.pid));
        codes.into_iter().all(|code| {
            let mark = Mark {
                code,
                at_ns,
                cpu_ns,
            };
            self.sender.send(mark).is_ok()
        })
    }

    /// Takes the marks out of what came from a console.
    pub(super) fn take(&self, text: &mut Vec<u8>) {
        let codes: Vec<u8> = text
            .extract_if(.., |byte| *byte > ON_CONSOLE)
            .map(|byte| byte - ON_CONSOLE)
            .collect();
        if !codes.is_empty() {
            // Whoever wants them no longer may still want the text.
            let _ = self.send(codes);
        }
    }
}

impl Marks {
    /// Marks that come over a socket.
    pub(super) fn read(mut stream: UnixStream, pid: u32) -> Result<Self> {
        let (sender, marks) = channel(pid);
        thread::Builder::new()
            .name("marks".to_owned())
            .spawn(move || {
                let mut buffer = [0; 64];
                while let Ok(count @ 1..) = stream.read(&mut buffer) {
                    if !sender.send(buffer.get(..count).unwrap_or_default().iter().copied()) {
                        return;
                    }
                }
            })
            .context("cannot start a thread")?;
        Ok(marks)
    }

    /// The next mark; none when it does not come in time.
    pub(super) fn next(&self, limit: Duration) -> Result<Option<Mark>> {
        match self.arrived.recv_timeout(limit) {
            Ok(mark) => Ok(Some(mark)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => bail!("the VMM closed the boot marks"),
        }
    }

    /// The next mark with this code; those before it are passed over.
    pub(super) fn wait_for(&self, code: u8, limit: Duration) -> Result<Option<Mark>> {
        let start = Instant::now();
        loop {
            let left = limit.saturating_sub(start.elapsed());
            match self.next(left)? {
                Some(mark) if mark.code == code => return Ok(Some(mark)),
                Some(_) => {}
                None => return Ok(None),
            }
        }
    }

    pub(super) fn forget(&self) {
        while self.arrived.try_recv().is_ok() {}
    }

    /// The last mark with this code, once there has been quiet for a while.
    pub(super) fn last(&self, code: u8) -> Result<Option<Mark>> {
        let mut last = None;
        while let Some(mark) = self.next(QUIET)? {
            if mark.code == code {
                last = Some(mark);
            }
        }
        Ok(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_taken_out_of_a_consoles_text() {
        let (sender, marks) = channel(std::process::id());
        let mut text = "caf\u{e9} \u{10ffff}".as_bytes().to_vec();
        text.splice(2..2, [ON_CONSOLE + INIT, ON_CONSOLE + BLOCK_GONE]);
        sender.take(&mut text);
        assert_eq!(text, "caf\u{e9} \u{10ffff}".as_bytes());
        let next = || marks.next(Duration::ZERO).unwrap().map(|mark| mark.code);
        assert_eq!(
            [next(), next(), next()],
            [Some(INIT), Some(BLOCK_GONE), None]
        );
    }

    #[test]
    fn a_mark_is_waited_for_over_others_and_an_end_is_an_error() {
        let (sender, marks) = channel(std::process::id());
        assert!(sender.send([INIT, DRIVER, BLOCK_ONLINE, INIT]));
        let mark = marks.wait_for(DRIVER, Duration::from_secs(5)).unwrap();
        assert!(mark.unwrap().at_ns > 0);
        assert_eq!(
            marks.wait_for(DRIVER, Duration::from_millis(1)).unwrap(),
            None
        );
        drop(sender);
        assert!(marks.next(Duration::from_secs(5)).is_err());
    }
}
