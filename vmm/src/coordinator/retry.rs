//! When to remind a driver that got BUSY.
//!
//! Linux's virtio-mem driver waits 50 s after BUSY, doubling to 300 s, but
//! starts over at once at any config interrupt (drivers/virtio/virtio_mem.c,
//! `virtio_mem_config_changed`). The coordinator therefore sends a spare one
//! when trying again makes sense.
//!
//! States: idle → armed (BUSY answered) → idle (reminder sent, or something
//! succeeded). The pause doubles with each BUSY in a row, up to 32 s, and
//! starts over when a plug or unplug succeeds.

/// Pause before the first reminder.
const FIRST_PAUSE_NS: u64 = 1_000_000_000;

/// The longest pause, near the driver's own first one: past it a reminder
/// gains nothing.
const LONGEST_PAUSE_NS: u64 = 32_000_000_000;

/// The reminder of one window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reminder {
    next_pause_ns: u64,
    due_ns: Option<u64>,
}

impl Reminder {
    pub(super) fn new() -> Self {
        Self {
            next_pause_ns: FIRST_PAUSE_NS,
            due_ns: None,
        }
    }

    /// BUSY was answered at `now_ns`.
    pub(super) fn arm(&mut self, now_ns: u64) {
        self.due_ns = Some(now_ns.saturating_add(self.next_pause_ns));
        self.next_pause_ns = self.next_pause_ns.saturating_mul(2).min(LONGEST_PAUSE_NS);
    }

    /// A request succeeded: the trouble has passed.
    pub(super) fn clear(&mut self) {
        *self = Self::new();
    }

    /// When the reminder is due, if one is.
    pub(super) fn due_ns(&self) -> Option<u64> {
        self.due_ns
    }

    /// Whether the reminder is to be sent now; true once for each BUSY.
    pub(super) fn take_due(&mut self, now_ns: u64) -> bool {
        let due = self.due_ns.is_some_and(|due_ns| due_ns <= now_ns);
        if due {
            self.due_ns = None;
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_to_a_bound_and_start_over_after_success() {
        let mut reminder = Reminder::new();
        let mut pauses = Vec::new();
        for _ in 0..8 {
            reminder.arm(100);
            pauses.push((reminder.due_ns().unwrap() - 100) / 1_000_000_000);
            assert!(!reminder.take_due(101));
            assert!(reminder.take_due(u64::MAX));
            assert!(!reminder.take_due(u64::MAX), "sent once for each BUSY");
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 32, 32]);
        reminder.clear();
        assert_eq!(reminder.due_ns(), None);
        reminder.arm(0);
        assert_eq!(reminder.due_ns(), Some(FIRST_PAUSE_NS));
    }
}
