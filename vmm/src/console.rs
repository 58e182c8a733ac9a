//! The guest's serial port and the host side of it.
//!
//! One owner, the event loop: it reads standard input when it is readable and
//! the port has room, and holds back what does not fit until the guest has
//! read. Output is written by the vCPU thread that the guest writes from.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, RawFd};

use lmb_devices::Serial;
use vmm_sys_util::terminal::Terminal;

use crate::config::SerialOption;

/// Input read at once, bytes.
const READ_BYTES: usize = 256;
/// Most input taken from a regular file, bytes.
const FILE_BYTES: u64 = 1 << 20;

/// Where the guest's output goes.
///
/// # Errors
/// When the file cannot be opened.
pub fn output(option: &SerialOption) -> io::Result<Box<dyn Write + Send>> {
    Ok(match option {
        SerialOption::Stdio => Box::new(File::from(io::stdout().as_fd().try_clone_to_owned()?)),
        SerialOption::Off => Box::new(io::sink()),
        SerialOption::File(path) => {
            Box::new(OpenOptions::new().create(true).append(true).open(path)?)
        }
    })
}

/// Standard input on its way to the guest. A terminal is raw while this lives,
/// so that every key reaches the guest.
#[derive(Debug)]
pub struct ConsoleInput {
    input: File,
    pending: VecDeque<u8>,
    at_end: bool,
    raw: bool,
}

impl ConsoleInput {
    /// Takes standard input over.
    ///
    /// # Errors
    /// When it cannot be duplicated.
    pub fn new() -> io::Result<Self> {
        let stdin = io::stdin();
        let raw = io::IsTerminal::is_terminal(&stdin) && stdin.lock().set_raw_mode().is_ok();
        Ok(Self {
            input: File::from(stdin.as_fd().try_clone_to_owned()?),
            pending: VecDeque::new(),
            at_end: false,
            raw,
        })
    }

    /// What to wait for.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.input.as_raw_fd()
    }

    /// Whether more input may be read: everything read so far was delivered.
    #[must_use]
    pub fn wants_input(&self) -> bool {
        self.pending.is_empty()
    }

    /// Reads once, which does not block after the descriptor became readable.
    /// Returns false at the end of input.
    ///
    /// # Errors
    /// The system's reason, but for a spurious wake-up.
    pub fn read(&mut self) -> io::Result<bool> {
        let mut buffer = [0_u8; READ_BYTES];
        match self.input.read(&mut buffer) {
            Ok(0) => Ok(false),
            Ok(count) => {
                self.pending.extend(&buffer[..count]);
                Ok(true)
            }
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                Ok(true)
            }
            Err(error) => Err(error),
        }
    }

    /// Whether nothing more will come from outside.
    #[must_use]
    pub fn is_at_end(&self) -> bool {
        self.at_end
    }

    /// Takes all of a regular file, which cannot be waited for, up to a bound.
    pub fn read_whole(&mut self) {
        let mut bytes = Vec::new();
        if let Err(error) = (&self.input).take(FILE_BYTES).read_to_end(&mut bytes) {
            tracing::warn!("console input ended: {error}");
        }
        self.pending.extend(bytes);
        self.at_end = true;
    }

    /// Offers what is pending to the port.
    pub fn deliver(&mut self, serial: &Serial) {
        let taken = serial.enqueue(self.pending.make_contiguous());
        self.pending.drain(..taken.min(self.pending.len()));
    }
}

impl Drop for ConsoleInput {
    fn drop(&mut self) {
        if self.raw
            && let Err(error) = io::stdin().lock().set_canon_mode()
        {
            tracing::warn!("the terminal stays in raw mode: {error}; type `stty sane`");
        }
    }
}
