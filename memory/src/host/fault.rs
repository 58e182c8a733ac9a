//! A window's memory that fails where a test wants it to.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{HostMemoryError, WindowMemory, WindowOp};
use crate::units::{LmbIndex, LmbRange};

/// How an injected fault looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// [`HostMemoryError::MappingLimit`].
    MappingLimit,
    /// A system call's ENOMEM.
    OutOfMemory,
}

impl FaultKind {
    fn error(self, range: LmbRange) -> HostMemoryError {
        match self {
            Self::MappingLimit => HostMemoryError::MappingLimit {
                in_use: 64_530,
                limit: 65_530,
            },
            Self::OutOfMemory => HostMemoryError::system(
                "an injected fault",
                range.to_string(),
                io::Error::from_raw_os_error(libc::ENOMEM),
            ),
        }
    }
}

/// A call that a [`FaultyWindow`] saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowCall {
    /// The operation.
    pub op: WindowOp,
    /// Its LMBs.
    pub range: LmbRange,
    /// Whether it succeeded.
    pub succeeded: bool,
}

/// Arms the faults of a [`FaultyWindow`] and shows the calls it saw; a handle
/// that stays with the test when the window moves to another thread.
#[derive(Clone, Debug, Default)]
pub struct FaultControl(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// Operation, calls of it still to be let through, and the fault.
    armed: Vec<(WindowOp, u64, FaultKind)>,
    calls: Vec<WindowCall>,
}

impl FaultControl {
    /// Lets the `nth` call of `op` from now on (1 is the next) fail without an
    /// effect. Once it has, the fault is gone.
    pub fn fail(&self, op: WindowOp, nth: u64, kind: FaultKind) {
        self.state().armed.push((op, nth.max(1), kind));
    }

    /// The calls seen, in their order.
    pub fn calls(&self) -> Vec<WindowCall> {
        self.state().calls.clone()
    }

    /// Drops the faults that were not met.
    pub fn disarm(&self) {
        self.state().armed.clear();
    }

    /// Faults armed and not yet met.
    pub fn pending(&self) -> usize {
        self.state().armed.len()
    }

    /// Counts a call of `op`; the fault if one is due.
    fn due(&self, op: WindowOp) -> Option<FaultKind> {
        let mut state = self.state();
        let mut due = None;
        state.armed.retain_mut(|(armed, left, kind)| {
            if *armed == op {
                *left -= 1;
            }
            if *left == 0 {
                due = Some(*kind);
            }
            *left > 0
        });
        due
    }

    fn record(&self, op: WindowOp, range: LmbRange, succeeded: bool) {
        self.state().calls.push(WindowCall {
            op,
            range,
            succeeded,
        });
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A test that panicked leaves plain data behind.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Any window's memory, with faults.
#[derive(Debug)]
pub struct FaultyWindow<W> {
    inner: W,
    control: FaultControl,
}

impl<W: WindowMemory> FaultyWindow<W> {
    /// Wraps `inner`; nothing fails until the control says so.
    pub fn new(inner: W) -> (Self, FaultControl) {
        let control = FaultControl::default();
        let window = Self {
            inner,
            control: control.clone(),
        };
        (window, control)
    }

    /// The memory behind it.
    pub fn inner(&self) -> &W {
        &self.inner
    }

    fn call(
        &mut self,
        op: WindowOp,
        range: LmbRange,
        act: impl FnOnce(&mut W, LmbRange) -> Result<(), HostMemoryError>,
    ) -> Result<(), HostMemoryError> {
        let result = match self.control.due(op) {
            Some(kind) => Err(kind.error(range)),
            None => act(&mut self.inner, range),
        };
        self.control.record(op, range, result.is_ok());
        result
    }
}

impl<W: WindowMemory> WindowMemory for FaultyWindow<W> {
    fn open(&mut self, range: LmbRange) -> Result<(), HostMemoryError> {
        self.call(WindowOp::Open, range, W::open)
    }

    fn close(&mut self, range: LmbRange) -> Result<(), HostMemoryError> {
        self.call(WindowOp::Close, range, W::close)
    }

    fn reopen(&mut self, range: LmbRange) -> Result<(), HostMemoryError> {
        self.call(WindowOp::Reopen, range, W::reopen)
    }

    fn discard(&mut self, range: LmbRange) -> Result<(), HostMemoryError> {
        self.call(WindowOp::Discard, range, W::discard)
    }

    fn host_address(&self, lmb: LmbIndex) -> u64 {
        self.inner.host_address(lmb)
    }
}
