//! The port device and its queue.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use super::wire::{Mark, MarkKind};
use super::{PRESENCE, QUEUE_CAPACITY};
use crate::bus::{BusDevice, OwnerWake, Stamp, StampClock, lock};

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
    stamp: Stamp,
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
    clock: StampClock,
}

impl BootMarks {
    /// A device without marks, stamping by `clock`.
    #[must_use]
    pub fn new(wake: Arc<dyn OwnerWake>, clock: StampClock) -> Self {
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
    fn write(&mut self, offset: u64, byte: u8, now: Stamp) -> bool {
        if offset == 0 {
            self.open = Some(Open {
                code: byte,
                stamp: now,
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
            stamp: open.stamp,
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
        data.fill(0);
        let mut state = lock(&self.state);
        // A closed range ends where an open one would overflow.
        for (port, byte) in (offset..=u64::MAX).zip(data) {
            *byte = state.read(port);
        }
    }

    fn write(&self, offset: u64, data: &[u8]) {
        // Before the lock, so that waiting for it does not count; only the
        // code's byte is stamped.
        let now = if offset == 0 {
            (self.clock)()
        } else {
            Stamp::default()
        };
        let mut queued = false;
        {
            let mut state = lock(&self.state);
            for (port, byte) in (offset..=u64::MAX).zip(data) {
                queued |= state.write(port, *byte, now);
            }
        }
        if queued {
            self.wake.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::testing::Counter;

    fn ticking() -> Stamp {
        static NOW_NS: AtomicU64 = AtomicU64::new(1000);
        let monotonic_ns = NOW_NS.fetch_add(1, Ordering::Relaxed);
        Stamp {
            monotonic_ns,
            cpu_ns: monotonic_ns / 2,
        }
    }

    fn marks() -> (BootMarks, Arc<Counter>) {
        let wake = Arc::new(Counter::default());
        (BootMarks::new(wake.clone(), ticking), wake)
    }

    fn record(code: u8, value: u64) -> [u8; 9] {
        let mut bytes = [code; 9];
        bytes[1..].copy_from_slice(&value.to_le_bytes());
        bytes
    }

    /// As /dev/port does: a byte at a time, ports going up.
    fn write_bytes(marks: &BootMarks, bytes: &[u8]) {
        for (port, byte) in (0..).zip(bytes) {
            marks.write(port, &[*byte]);
        }
    }

    #[test]
    fn a_mark_is_complete_at_its_last_byte_and_stamped_at_its_first() {
        let (marks, wake) = marks();
        let bytes = record(4, 0x0102_0304_0506_0708);
        let before = ticking();
        marks.write(0, &bytes[..1]);
        let after = ticking();
        for port in 1..8_usize {
            marks.write(port as u64, &bytes[port..=port]);
        }
        assert_eq!(marks.take_mark(), None);
        assert_eq!(wake.take(), 0);
        marks.write(8, &bytes[8..]);
        assert_eq!(wake.take(), 1);
        let mark = marks.take_mark().unwrap();
        assert_eq!(mark.kind, MarkKind::Usable);
        assert_eq!(mark.value, 0x0102_0304_0506_0708);
        let at_ns = mark.stamp.monotonic_ns;
        assert!(before.monotonic_ns < at_ns && at_ns < after.monotonic_ns);
        assert_eq!(mark.stamp.cpu_ns, at_ns / 2);
        assert_eq!(marks.take_mark(), None);
        assert_eq!(marks.counters(), MarkCounters::default());
    }

    #[test]
    fn all_codes_arrive_in_order() {
        let (marks, _) = marks();
        for code in 1..=5 {
            write_bytes(&marks, &record(code, u64::from(code) << 60));
        }
        for code in 1..=5 {
            let mark = marks.take_mark().unwrap();
            assert_eq!(mark.kind.code(), code);
            assert_eq!(mark.value, u64::from(code) << 60);
        }
    }

    #[test]
    fn wide_writes_are_their_bytes() {
        let (marks, _) = marks();
        let bytes = record(2, u64::MAX - 5);
        marks.write(0, &bytes[..4]);
        marks.write(4, &bytes[4..8]);
        marks.write(8, &bytes[8..]);
        assert_eq!(marks.take_mark().unwrap().value, u64::MAX - 5);
    }

    #[test]
    fn what_is_out_of_order_or_unknown_is_dropped_and_counted() {
        let (marks, wake) = marks();
        let good = record(1, 7);
        // A hole, then the rest of it: the mark is gone.
        marks.write(0, &[1]);
        marks.write(2, &[0]);
        marks.write(1, &[0]);
        assert_eq!(marks.counters().malformed, 2);
        // Unknown codes.
        write_bytes(&marks, &record(0, 1));
        write_bytes(&marks, &record(6, 1));
        assert_eq!(marks.counters().malformed, 4);
        // Past the record, and past the device.
        marks.write(9, &[1]);
        marks.write(u64::MAX, &[1, 2]);
        assert_eq!(marks.counters().malformed, 6);
        assert_eq!(marks.take_mark(), None);
        // One begun anew is whole.
        marks.write(0, &[3, 1, 2, 3]);
        write_bytes(&marks, &good);
        assert_eq!(marks.take_mark().map(|m| m.value), Some(7));
        assert_eq!(wake.take(), 1);
        // One left open by a guest that was reset.
        marks.write(0, &good[..8]);
        marks.reset();
        marks.write(8, &good[8..]);
        assert_eq!(marks.take_mark(), None);
    }

    #[test]
    fn a_full_queue_keeps_the_oldest_and_counts_the_rest() {
        let (marks, _) = marks();
        for n in 0..QUEUE_CAPACITY as u64 + 3 {
            write_bytes(&marks, &record(4, n));
        }
        assert_eq!(marks.counters().overflowed, 3);
        let taken: Vec<u64> = std::iter::from_fn(|| marks.take_mark())
            .map(|mark| mark.value)
            .collect();
        let expected: Vec<u64> = (0..QUEUE_CAPACITY as u64).collect();
        assert_eq!(taken, expected);
        write_bytes(&marks, &record(4, 1));
        assert!(marks.take_mark().is_some());
    }

    #[test]
    fn a_read_of_nine_bytes_is_one_value() {
        let (marks, _) = marks();
        marks.set_target(0x1111_2222_3333_4444);
        let mut bytes = [0xaa; 9];
        for (port, byte) in bytes.iter_mut().enumerate() {
            if port == 5 {
                // The owner changes it in the middle.
                marks.set_target(0xffff_ffff_ffff_ffff);
            }
            marks.read(port as u64, std::slice::from_mut(byte));
        }
        assert_eq!(bytes[0], b'L');
        assert_eq!(bytes[1..], 0x1111_2222_3333_4444_u64.to_le_bytes());
        let mut whole = [0xaa; 16];
        marks.read(0, &mut whole);
        assert_eq!(whole[..9], [b"L".as_slice(), &[0xff; 8]].concat());
        assert_eq!(whole[9..], [0; 7]);
        let mut last = [0xaa; 2];
        marks.read(u64::MAX, &mut last);
        assert_eq!(last, [0, 0]);
    }
}
