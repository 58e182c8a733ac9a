//! The port device and its queue.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use super::wire::{Mark, MarkKind};
use super::{PRESENCE, QUEUE_CAPACITY};
use crate::bus::{BusDevice, MonotonicClock, OwnerWake, lock};

/// Bytes of a mark's value.
const VALUE_BYTES: u64 = 8;

/// Counts of marks that did not arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MarkCounters {
    /// Complete marks lost, since the queue was full.
    pub overflowed: u64,
    /// Bytes out of order, unknown codes, writes past the last port in use.
    pub malformed: u64,
}

/// A mark whose value is still being written.
#[derive(Clone, Copy, Debug)]
struct Open {
    code: u8,
    stamp_ns: u64,
    value: u64,
    /// Offset of the next byte, 1 to 8.
    next: u64,
}

#[derive(Debug, Default)]
struct State {
    open: Option<Open>,
    queue: VecDeque<Mark>,
    counters: MarkCounters,
    target_bytes: u64,
    latched_bytes: u64,
}

/// The boot-mark device.
pub struct BootMarks {
    state: Mutex<State>,
    wake: Arc<dyn OwnerWake>,
    clock: MonotonicClock,
}

impl BootMarks {
    /// A device without marks, stamping by `clock`.
    #[must_use]
    pub fn new(wake: Arc<dyn OwnerWake>, clock: MonotonicClock) -> Self {
        Self {
            state: Mutex::new(State::default()),
            wake,
            clock,
        }
    }

    /// Sets the bytes of hotplug memory the guest should have, as it reads
    /// them here.
    pub fn set_target(&self, target_bytes: u64) {
        lock(&self.state).target_bytes = target_bytes;
    }

    /// The oldest mark not yet taken.
    #[must_use]
    pub fn take_mark(&self) -> Option<Mark> {
        lock(&self.state).queue.pop_front()
    }

    /// What did not arrive so far.
    #[must_use]
    pub fn counters(&self) -> MarkCounters {
        lock(&self.state).counters
    }

    /// Forgets a mark left open, after a system reset. Marks already complete
    /// stay.
    pub fn reset(&self) {
        lock(&self.state).open = None;
    }
}

impl State {
    /// Takes one byte in. Returns whether a mark was queued.
    fn write(&mut self, offset: u64, byte: u8, now_ns: u64) -> bool {
        if offset == 0 {
            self.open = Some(Open {
                code: byte,
                stamp_ns: now_ns,
                value: 0,
                next: 1,
            });
            return false;
        }
        let Some(mut open) = self.open.take().filter(|open| open.next == offset) else {
            self.count_malformed();
            return false;
        };
        // Bytes come lowest first: each enters at the top and moves down.
        open.value = (open.value >> 8) | (u64::from(byte) << 56);
        open.next += 1;
        if open.next <= VALUE_BYTES {
            self.open = Some(open);
            return false;
        }
        self.finish(open)
    }

    fn finish(&mut self, open: Open) -> bool {
        let Some(kind) = MarkKind::from_code(open.code) else {
            self.count_malformed();
            return false;
        };
        if self.queue.len() >= QUEUE_CAPACITY {
            self.counters.overflowed = self.counters.overflowed.saturating_add(1);
            return false;
        }
        self.queue.push_back(Mark {
            kind,
            value: open.value,
            stamp_ns: open.stamp_ns,
        });
        true
    }

    fn count_malformed(&mut self) {
        self.counters.malformed = self.counters.malformed.saturating_add(1);
    }

    fn read(&mut self, offset: u64) -> u8 {
        if offset == 0 {
            self.latched_bytes = self.target_bytes;
            return PRESENCE;
        }
        usize::try_from(offset - 1)
            .ok()
            .and_then(|n| self.latched_bytes.to_le_bytes().get(n).copied())
            .unwrap_or(0)
    }
}

impl BusDevice for BootMarks {
    fn read(&self, offset: u64, data: &mut [u8]) {
        let mut state = lock(&self.state);
        for (port, byte) in (offset..).zip(data) {
            *byte = state.read(port);
        }
    }

    fn write(&self, offset: u64, data: &[u8]) {
        // Before the lock, so that waiting for it does not count.
        let now_ns = (self.clock)();
        let mut queued = false;
        {
            let mut state = lock(&self.state);
            for (port, byte) in (offset..).zip(data) {
                queued |= state.write(port, *byte, now_ns);
            }
        }
        if queued {
            self.wake.wake();
        }
    }
}
