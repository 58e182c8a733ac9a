//! Finds the moment at which the wanted amount of hotplugged memory is online,
//! and says so by a mark. Pure: everything outside comes through [`Guest`].
//!
//! States: *idle* (nothing is known to be under way) and *working* (the memory
//! differs from the target). The one owner is the agent's main loop.
//!
//! - idle → working: the first memory-block event, or a look that finds the
//!   memory changed; the target is read then.
//! - working → idle: an event after which the blocks counted and the memory
//!   present both fit the target gives [`Mark::Usable`]; a second look that
//!   finds the memory right, or an event after others were lost, gives
//!   [`Mark::UsableLate`].
//!
//! Counting blocks costs nothing, reading the target costs nine exits to the
//! VMM, so events alone never lead to a read of the target while working.
//! Looks happen only after a quiet spell. They are needed since memory can
//! change inside a block that stays online (a device block smaller than the
//! guest's memory block), of which the kernel tells nobody; such a change can
//! only be found by looking, and its mark is called late for that reason.
//!
//! Where each LMB is an ACPI device ([`Watch::of_devices`]) memory comes and
//! goes in whole blocks, so their count alone says how much there is. How much
//! MemTotal grows by a block differs there: with memmap_on_memory a part of the
//! block holds the block's own description.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::marks::Mark;
use crate::uevent::{BlockAction, BlockEvent};

/// First look while working comes this long after the last event.
const FIRST_LOOK: Duration = Duration::from_millis(100);
/// Looks are never further apart than this, working or idle.
const SLOWEST_LOOK: Duration = Duration::from_secs(1);

/// Memory blocks as sysfs lists them, by number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Blocks {
    /// Blocks that exist.
    pub(crate) present: BTreeSet<u64>,
    /// Those of them that are online.
    pub(crate) online: BTreeSet<u64>,
}

/// What the watch asks of the system around it.
pub(crate) trait Guest {
    /// Bytes of hotplugged memory wanted; `None` when that cannot be read.
    fn target_bytes(&mut self) -> Option<u64>;
    /// Bytes of memory that the kernel manages now (MemTotal).
    fn total_bytes(&mut self) -> Option<u64>;
    /// All memory blocks, read afresh.
    fn blocks(&mut self) -> Option<Blocks>;
    /// Sends a mark.
    fn mark(&mut self, mark: Mark, value: u64);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    Working {
        target_bytes: u64,
        look_after: Duration,
        /// Events were lost, so that the mark may be late.
        late: bool,
    },
}

/// The watch. See the module's head.
#[derive(Debug)]
pub(crate) struct Watch {
    block_bytes: u64,
    /// MemTotal without hotplugged memory; `None` where whole blocks come and
    /// go.
    baseline_bytes: Option<u64>,
    boot_blocks: BTreeSet<u64>,
    /// Hotplugged blocks only.
    blocks: Blocks,
    /// MemTotal when it was last looked at.
    seen_bytes: u64,
    state: State,
}

impl Watch {
    /// A watch over a guest that has nothing hotplugged yet: `total_bytes` and
    /// `boot` are the baseline. A `block_bytes` of 0 counts as 1.
    pub(crate) fn new(block_bytes: u64, total_bytes: u64, boot: Blocks) -> Self {
        Self {
            block_bytes: block_bytes.max(1),
            baseline_bytes: Some(total_bytes),
            boot_blocks: boot.present,
            blocks: Blocks::default(),
            seen_bytes: total_bytes,
            state: State::Idle,
        }
    }

    /// A watch over a guest whose memory comes and goes in whole blocks of
    /// ACPI devices; `blocks` are all that are there now, and `of_device` says
    /// which of them are a device's.
    pub(crate) fn of_devices(
        block_bytes: u64,
        total_bytes: u64,
        mut blocks: Blocks,
        of_device: impl Fn(u64) -> bool,
    ) -> Self {
        let (plugged, boot) = blocks.present.iter().partition(|block| of_device(**block));
        blocks.present = plugged;
        blocks.online.retain(|block| blocks.present.contains(block));
        Self {
            block_bytes: block_bytes.max(1),
            baseline_bytes: None,
            boot_blocks: boot,
            blocks,
            seen_bytes: total_bytes,
            state: State::Idle,
        }
    }

    /// Looks whether memory that was there before this watch is what is wanted
    /// already.
    pub(crate) fn begin(&mut self, guest: &mut impl Guest) {
        if !self.blocks.present.is_empty() {
            self.start_work(guest, false);
            self.check_by_count(guest);
        }
    }

    /// How long to wait for events before [`Watch::look`] is due.
    pub(crate) fn patience(&self) -> Duration {
        match self.state {
            State::Idle => SLOWEST_LOOK,
            State::Working { look_after, .. } => look_after,
        }
    }

    /// Takes in one event.
    pub(crate) fn event(&mut self, guest: &mut impl Guest, event: BlockEvent) {
        if self.boot_blocks.contains(&event.block) {
            return;
        }
        match event.action {
            BlockAction::Add => {
                self.blocks.present.insert(event.block);
            }
            BlockAction::Online => {
                self.blocks.present.insert(event.block);
                self.blocks.online.insert(event.block);
            }
            BlockAction::Offline => {
                self.blocks.online.remove(&event.block);
            }
            BlockAction::Remove => {
                self.blocks.online.remove(&event.block);
                self.blocks.present.remove(&event.block);
            }
        }
        self.start_work(guest, false);
        self.check_by_count(guest);
    }

    /// Events were lost: reads the blocks afresh. The caller has emptied the
    /// queue of events first, since those left in it are older than this.
    pub(crate) fn events_lost(&mut self, guest: &mut impl Guest) {
        if let Some(mut blocks) = guest.blocks() {
            blocks.present.retain(|b| !self.boot_blocks.contains(b));
            blocks.online.retain(|b| !self.boot_blocks.contains(b));
            self.blocks = blocks;
        }
        self.start_work(guest, true);
        self.check_by_count(guest);
    }

    /// No event came for [`Watch::patience`]: looks at the memory itself. It
    /// counts only when two looks in a row find the same, since the driver
    /// takes pages away before it asks the device to unplug them.
    pub(crate) fn look(&mut self, guest: &mut impl Guest) {
        let Some(total_bytes) = guest.total_bytes() else {
            return;
        };
        let changed = total_bytes != self.seen_bytes;
        self.seen_bytes = total_bytes;
        if changed {
            self.start_work(guest, false);
            return;
        }
        let State::Working {
            look_after, late, ..
        } = self.state
        else {
            return;
        };
        // The target may have moved since work began.
        let Some(target_bytes) = guest.target_bytes() else {
            return;
        };
        if self.fits(total_bytes, target_bytes) {
            self.reached(guest, target_bytes, true);
        } else {
            self.state = State::Working {
                target_bytes,
                look_after: look_after.saturating_mul(2).min(SLOWEST_LOOK),
                late,
            };
        }
    }

    /// Idle → working; while working takes note that something still moves, and
    /// of lost events.
    fn start_work(&mut self, guest: &mut impl Guest, lost: bool) {
        self.state = match self.state {
            State::Idle => match guest.target_bytes() {
                Some(target_bytes) => State::Working {
                    target_bytes,
                    look_after: FIRST_LOOK,
                    late: lost,
                },
                None => State::Idle,
            },
            State::Working {
                target_bytes, late, ..
            } => State::Working {
                target_bytes,
                look_after: FIRST_LOOK,
                late: late || lost,
            },
        };
    }

    /// Sends the mark if the count of blocks says that the target may be
    /// reached and the memory confirms it.
    fn check_by_count(&mut self, guest: &mut impl Guest) {
        let State::Working {
            target_bytes, late, ..
        } = self.state
        else {
            return;
        };
        if !self.counts(target_bytes) {
            return;
        }
        let Some(total_bytes) = guest.total_bytes() else {
            return;
        };
        self.seen_bytes = total_bytes;
        if self.fits(total_bytes, target_bytes) {
            self.reached(guest, target_bytes, late);
        }
    }

    /// Whether there are as many blocks as the target takes, all of them
    /// online: one that is present and offline is on its way in or out.
    fn counts(&self, target_bytes: u64) -> bool {
        let online = u64::try_from(self.blocks.online.len()).unwrap_or(u64::MAX);
        self.blocks.online.len() == self.blocks.present.len()
            && online == target_bytes.div_ceil(self.block_bytes)
    }

    /// Whether the memory is what is wanted.
    fn fits(&self, total_bytes: u64, target_bytes: u64) -> bool {
        match self.baseline_bytes {
            Some(baseline) => total_bytes.checked_sub(baseline) == Some(target_bytes),
            None => self.counts(target_bytes),
        }
    }

    /// Working → idle, or on to a target that was set meanwhile.
    fn reached(&mut self, guest: &mut impl Guest, bytes: u64, late: bool) {
        let mark = if late { Mark::UsableLate } else { Mark::Usable };
        guest.mark(mark, bytes);
        self.state = match guest.target_bytes() {
            Some(target_bytes) if target_bytes != bytes => State::Working {
                target_bytes,
                look_after: FIRST_LOOK,
                late: false,
            },
            _ => State::Idle,
        };
    }
}

#[cfg(test)]
#[path = "watch_tests.rs"]
mod tests;
