//! The guest's serial port and the host side of it.
//!
//! Input has one owner, the event loop: it reads standard input when it is
//! readable and the port has room, and holds back what does not fit until the
//! guest has read. Output is written by the vCPU thread that the guest writes
//! from; what its reader has no room for waits, and the event loop writes it
//! later.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lmb_devices::{OwnerWake, Serial};
use vmm_sys_util::terminal::Terminal;

use crate::config::SerialOption;

/// Input read at once, bytes.
const READ_BYTES: usize = 256;
/// Most output that waits for its reader, bytes.
const PENDING_BYTES: usize = 1 << 20;
/// Most input taken from a regular file, bytes.
const FILE_BYTES: u64 = 1 << 20;

/// The guest's output on its way out: written by vCPU threads, which must not
/// wait for a slow reader, and emptied by the event loop when the reader has
/// room. What exceeds [`PENDING_BYTES`] is lost and counted.
#[derive(Clone)]
pub struct ConsoleOutput(Arc<Mutex<OutputState>>);

struct OutputState {
    /// None: output is dropped.
    file: Option<File>,
    pending: VecDeque<u8>,
    lost_bytes: u64,
    wake: Arc<dyn OwnerWake>,
}

impl ConsoleOutput {
    /// Output of one boot to `file`, dropped if there is none; `wake` is
    /// called when some of it waits.
    #[must_use]
    pub fn new(file: Option<File>, wake: Arc<dyn OwnerWake>) -> Self {
        Self(Arc::new(Mutex::new(OutputState {
            file,
            pending: VecDeque::new(),
            lost_bytes: 0,
            wake,
        })))
    }

    /// What to wait for room on, while output waits.
    #[must_use]
    pub fn waiting_fd(&self) -> Option<RawFd> {
        let state = self.lock();
        let waits = !state.pending.is_empty();
        state.file.as_ref().filter(|_| waits).map(File::as_raw_fd)
    }

    /// Writes what waits, as far as there is room.
    pub fn flush_pending(&self) {
        self.lock().flush_pending();
    }

    fn lock(&self) -> MutexGuard<'_, OutputState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OutputState {
    fn write(&mut self, bytes: &[u8]) {
        let Some(mut file) = self.file.as_ref() else {
            return;
        };
        let written = if self.pending.is_empty() {
            file.write(bytes).unwrap_or(0)
        } else {
            0
        };
        let rest = bytes.get(written..).unwrap_or_default();
        if rest.is_empty() {
            return;
        }
        let room = PENDING_BYTES.saturating_sub(self.pending.len());
        let (kept, lost) = rest.split_at(rest.len().min(room));
        self.pending.extend(kept);
        if !lost.is_empty() {
            if self.lost_bytes == 0 {
                tracing::warn!("nobody reads the serial port's output; some of it is lost");
            }
            self.lost_bytes = self.lost_bytes.saturating_add(lost.len() as u64);
        }
        self.wake.wake();
    }

    fn flush_pending(&mut self) {
        let Some(mut file) = self.file.as_ref() else {
            return;
        };
        while !self.pending.is_empty() {
            match file.write(self.pending.make_contiguous()) {
                Ok(0) => return,
                Ok(written) => drop(self.pending.drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The reader is gone, and nobody will want the rest.
                Err(error) => {
                    tracing::debug!("the serial port's output ends: {error}");
                    self.pending.clear();
                    self.file = None;
                    return;
                }
            }
        }
    }
}

impl Write for ConsoleOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.lock().write(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Opens where the guest's output goes; nowhere, if it is off.
///
/// # Errors
/// When the target cannot be opened.
pub fn open_output(option: &SerialOption) -> io::Result<Option<File>> {
    match option {
        SerialOption::Stdio => standard_output().map(Some),
        SerialOption::Off => Ok(None),
        SerialOption::File(path) => OpenOptions::new()
            .create(true)
            .append(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(path)
            .map(Some),
    }
}

/// Standard output, not blocking where that can be had without changing the
/// descriptor that others share: a pipe or terminal is opened anew.
fn standard_output() -> io::Result<File> {
    let output = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    let kind = output.metadata()?.file_type();
    if kind.is_fifo() || kind.is_char_device() {
        let reopened = OpenOptions::new()
            .write(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
            .open("/proc/self/fd/1");
        if let Ok(reopened) = reopened {
            return Ok(reopened);
        }
        tracing::debug!("standard output cannot be opened anew: a slow reader stops the guest");
    }
    Ok(output)
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

#[cfg(test)]
mod tests {
    use std::io::PipeReader;

    use lmb_devices::testing::Counter;

    use super::*;

    fn over_a_pipe() -> (PipeReader, ConsoleOutput, Arc<Counter>) {
        let (reader, writer) = io::pipe().unwrap();
        let file = OpenOptions::new()
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(format!("/proc/self/fd/{}", writer.as_raw_fd()))
            .unwrap();
        let wake = Arc::new(Counter::default());
        let output = ConsoleOutput::new(Some(file), Arc::clone(&wake) as _);
        (reader, output, wake)
    }

    #[test]
    fn output_waits_for_a_slow_reader_and_keeps_its_order() {
        let (mut reader, mut output, wake) = over_a_pipe();
        let sent: Vec<u8> = (0..300_000_u32).map(|n| n.to_le_bytes()[0]).collect();
        for chunk in sent.chunks(1000) {
            output.write_all(chunk).unwrap();
        }
        assert!(wake.take() > 0, "the loop is to wait for room");
        assert!(output.waiting_fd().is_some());
        let mut read = vec![0; sent.len()];
        let mut filled = 0;
        while filled < read.len() {
            filled += reader.read(&mut read[filled..]).unwrap();
            output.flush_pending();
        }
        assert_eq!(read, sent);
        assert_eq!(output.waiting_fd(), None);
    }

    #[test]
    fn what_nobody_reads_is_bounded_and_a_gone_reader_ends_it() {
        let (reader, mut output, _) = over_a_pipe();
        for _ in 0..2048 {
            output.write_all(&[b'x'; 1024]).unwrap();
        }
        {
            let state = output.lock();
            assert_eq!(state.pending.len(), PENDING_BYTES);
            assert!(state.lost_bytes > 0);
        }
        drop(reader);
        output.flush_pending();
        assert_eq!(output.waiting_fd(), None);
        output.write_all(b"more").unwrap();
        assert_eq!(output.waiting_fd(), None);
    }
}
