//! Signals as events of a poll loop.
//!
//! A handler notes its signal in one atomic word and writes to a socket pair;
//! the loop polls the other end and takes the word. Nothing else happens in a
//! handler. Handlers and word stay for the process's life, so
//! [`Signals::install`] may be called again.

use std::ffi::{c_int, c_void};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::Signal;
use vmm_sys_util::signal::register_signal_handler;

/// The signals that end the program in an orderly way.
pub(super) const ENDING: [Signal; 4] = [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM];

/// Bit n: signal n came since the word was last taken.
static PENDING: AtomicU64 = AtomicU64::new(0);
static WAKE: OnceLock<(UnixStream, UnixStream)> = OnceLock::new();

/// The signals of this process, as one file descriptor to poll.
#[derive(Debug)]
pub(super) struct Signals {
    wake: &'static UnixStream,
}

/// The signals that came, each once.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pending(u64);

impl Pending {
    pub(super) fn has(self, signal: Signal) -> bool {
        self.0 & bit(signal.as_raw()) != 0
    }

    /// The first signal that asks for the end.
    pub(super) fn ending(self) -> Option<Signal> {
        ENDING.into_iter().find(|signal| self.has(*signal))
    }
}

impl Signals {
    /// Takes over the ending signals, the death of a child, and stop and
    /// continue.
    pub(super) fn install() -> io::Result<Self> {
        if WAKE.get().is_none() {
            let pair = UnixStream::pair()?;
            pair.0.set_nonblocking(true)?;
            pair.1.set_nonblocking(true)?;
            // A racing second install keeps the first pair.
            let _ = WAKE.set(pair);
        }
        let (_, wake) = WAKE.get().ok_or(io::ErrorKind::NotFound)?;
        for signal in ENDING
            .into_iter()
            .chain([Signal::CHILD, Signal::TSTP, Signal::CONT])
        {
            register_signal_handler(signal.as_raw(), on_signal)
                .map_err(|e| io::Error::from_raw_os_error(e.errno()))?;
        }
        Ok(Self { wake })
    }

    /// Wakes who polls, from any thread, with no signal.
    pub(super) fn wake() {
        if let Some((waking, _)) = WAKE.get() {
            // Full means that the loop has been woken already.
            let mut waking = waking;
            let _ = waking.write(&[1]);
        }
    }

    /// What came since the last call.
    pub(super) fn take(&self) -> Pending {
        let mut bytes = [0u8; 64];
        let mut wake = self.wake;
        // Drained first: a signal after this leaves a byte for the next poll.
        while matches!(wake.read(&mut bytes), Ok(count) if count > 0) {}
        Pending(PENDING.swap(0, Ordering::AcqRel))
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

extern "C" fn on_signal(signal: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
    PENDING.fetch_or(bit(signal), Ordering::AcqRel);
    // A write that succeeds leaves the interrupted code's errno alone.
    Signals::wake();
}

fn bit(signal: c_int) -> u64 {
    u32::try_from(signal)
        .ok()
        .and_then(|shift| 1u64.checked_shl(shift))
        .unwrap_or(0)
}
