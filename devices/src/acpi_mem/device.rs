//! The register block, and what its owner does with it.
//!
//! One lock holds everything, the line and the status table included: both
//! follow the state in the order in which it changes.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use super::wire::{Notice, OstSource, OstStatus, Write, reads_next};
use super::{MAX_LMBS, NO_NOTICE, STATUS_ABSENT, STATUS_PRESENT};
use crate::bus::{BusDevice, LevelLine, OwnerWake, Stamp, StampClock, lock};

/// Where \_STA of each LMB stands, as the guest's AML reads it. All are absent
/// before the first call.
pub trait StatusTable: Send + Sync {
    /// Sets the status of an LMB. Called under the device's lock; must not
    /// block.
    fn set(&self, lmb: u32, status: u8);
}

/// What the guest did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcpiMemEvent {
    /// The guest's event device looked for notices for the first time.
    GuestUp {
        /// When.
        at: Stamp,
    },
    /// The guest gave an LMB back. Its status shows absent already.
    Ejected {
        /// Number of the LMB.
        lmb: u32,
        /// When.
        at: Stamp,
    },
    /// The guest reported how something went (\_OST).
    Ost {
        /// Number of the LMB.
        lmb: u32,
        /// What it reports on.
        notice: OstSource,
        /// How it went.
        status: OstStatus,
        /// When.
        at: Stamp,
    },
}

/// Counts since the device was made; with a well-behaved guest all but
/// `overwritten_osts` stay 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AcpiMemCounters {
    /// Ejects of LMBs that were not present.
    pub stray_ejects: u64,
    /// Accesses that meet no register.
    pub bad_accesses: u64,
    /// Ejects and reports of LMBs that do not exist.
    pub bad_lmbs: u64,
    /// Reports overwritten by a later one before the owner took them.
    pub overwritten_osts: u64,
}

/// What is known of one LMB.
#[derive(Clone, Copy, Debug, Default)]
struct Lmb {
    present: bool,
    notice: Option<Notice>,
    /// An eject that the owner has not taken yet.
    ejected: Option<Stamp>,
    /// A report that the owner has not taken yet.
    ost: Option<(OstStatus, Stamp)>,
}

impl Lmb {
    fn has_events(&self) -> bool {
        self.ejected.is_some() || self.ost.is_some()
    }
}

struct State {
    lmbs: Vec<Lmb>,
    /// LMBs with a notice, oldest first.
    notices: VecDeque<u32>,
    /// LMBs with events, in the order of their first one.
    events: VecDeque<u32>,
    /// High from power-on until the guest first looks.
    greeting: bool,
    /// When it did, until the owner has taken that.
    greeted: Option<Stamp>,
    line_high: bool,
    counters: AcpiMemCounters,
}

struct Shared {
    state: Mutex<State>,
    table: Arc<dyn StatusTable>,
    line: Arc<dyn LevelLine>,
    wake: Arc<dyn OwnerWake>,
    clock: StampClock,
}

/// The register block. Clones are the same device.
#[derive(Clone)]
pub struct AcpiMem {
    shared: Arc<Shared>,
}

impl AcpiMem {
    /// A device of `lmbs` LMBs (at most [`MAX_LMBS`]), all absent, whose line
    /// is high until the guest first looks. `table` shows all as absent.
    #[must_use]
    pub fn new(
        lmbs: u32,
        table: Arc<dyn StatusTable>,
        line: Arc<dyn LevelLine>,
        wake: Arc<dyn OwnerWake>,
        clock: StampClock,
    ) -> Self {
        let mut state = State {
            lmbs: (0..lmbs.min(MAX_LMBS)).map(|_| Lmb::default()).collect(),
            notices: VecDeque::new(),
            events: VecDeque::new(),
            greeting: true,
            greeted: None,
            line_high: false,
            counters: AcpiMemCounters::default(),
        };
        state.drive(&*line);
        Self {
            shared: Arc::new(Shared {
                state: Mutex::new(state),
                table,
                line,
                wake,
                clock,
            }),
        }
    }

    /// The device as the port bus sees it, [`super::PORT_COUNT`] ports long.
    #[must_use]
    pub fn bus_device(&self) -> Arc<dyn BusDevice> {
        self.shared.clone()
    }

    /// Publishes an LMB's status. Does not tell the guest.
    ///
    /// Returns whether it now is what was asked for: an LMB that the guest gave
    /// back stays absent until the owner has taken [`AcpiMemEvent::Ejected`],
    /// and an LMB that does not exist is never present.
    pub fn show(&self, lmb: u32, present: bool) -> bool {
        let mut state = lock(&self.shared.state);
        let Some(entry) = state.entry(lmb) else {
            return !present;
        };
        if present && entry.ejected.is_some() {
            return false;
        }
        if entry.present != present {
            entry.present = present;
            self.shared.table.set(lmb, status_of(present));
        }
        true
    }

    /// Tells the guest something of an LMB, in place of what it has not yet
    /// read of the same LMB. An LMB that does not exist is none of the guest's.
    pub fn notify(&self, lmb: u32, notice: Notice) {
        let mut state = lock(&self.shared.state);
        let Some(entry) = state.entry(lmb) else {
            return;
        };
        if entry.notice.replace(notice).is_none() {
            state.notices.push_back(lmb);
        }
        state.drive(&*self.shared.line);
    }

    /// Takes back a notice that the guest has not read yet.
    pub fn withdraw(&self, lmb: u32) -> Option<Notice> {
        let mut state = lock(&self.shared.state);
        let notice = state.drop_notice(lmb);
        state.drive(&*self.shared.line);
        notice
    }

    /// What the guest did since the last call: at most `limit` events, LMBs in
    /// the order of their first event, the eject of an LMB before its report.
    /// If more are left, the owner is woken again.
    #[must_use]
    pub fn take_events(&self, limit: usize) -> Vec<AcpiMemEvent> {
        let mut taken = Vec::new();
        let left = {
            let mut state = lock(&self.shared.state);
            while taken.len() < limit {
                let Some(event) = state.next_event() else {
                    break;
                };
                taken.push(event);
            }
            state.greeted.is_some() || !state.events.is_empty()
        };
        if left {
            self.shared.wake.wake();
        }
        taken
    }

    /// Whether the guest's event device has looked for notices.
    #[must_use]
    pub fn guest_up(&self) -> bool {
        !lock(&self.shared.state).greeting
    }

    /// What was wrong so far.
    #[must_use]
    pub fn counters(&self) -> AcpiMemCounters {
        lock(&self.shared.state).counters
    }
}

fn status_of(present: bool) -> u8 {
    if present {
        STATUS_PRESENT
    } else {
        STATUS_ABSENT
    }
}

impl State {
    fn entry(&mut self, lmb: u32) -> Option<&mut Lmb> {
        self.lmbs.get_mut(usize::try_from(lmb).ok()?)
    }

    /// Makes the line follow the state.
    fn drive(&mut self, line: &dyn LevelLine) {
        let high = self.greeting || !self.notices.is_empty();
        if high != self.line_high {
            self.line_high = high;
            line.set(high);
        }
    }

    /// Takes the oldest notice as the guest reads it.
    fn next_notice(&mut self) -> u32 {
        let Some(lmb) = self.notices.pop_front() else {
            return NO_NOTICE;
        };
        self.entry(lmb)
            .and_then(|entry| entry.notice.take())
            .map_or(NO_NOTICE, |notice| notice.encode(lmb))
    }

    fn drop_notice(&mut self, lmb: u32) -> Option<Notice> {
        let notice = self.entry(lmb)?.notice.take()?;
        self.notices.retain(|queued| *queued != lmb);
        Some(notice)
    }

    fn next_event(&mut self) -> Option<AcpiMemEvent> {
        if let Some(at) = self.greeted.take() {
            return Some(AcpiMemEvent::GuestUp { at });
        }
        let lmb = *self.events.front()?;
        let entry = self.entry(lmb)?;
        let event = if let Some(at) = entry.ejected.take() {
            AcpiMemEvent::Ejected { lmb, at }
        } else {
            let (status, at) = entry.ost.take()?;
            AcpiMemEvent::Ost {
                lmb,
                notice: status.source(),
                status,
                at,
            }
        };
        if !entry.has_events() {
            self.events.pop_front();
        }
        Some(event)
    }
}

impl Shared {
    /// Does what the guest wrote. Returns whether the owner is to be woken: it
    /// is already, where events of the LMB wait.
    fn apply(&self, state: &mut State, write: Write, at: Stamp) -> bool {
        let (Write::Eject { lmb } | Write::Ost { lmb, .. }) = write;
        let Some(entry) = state.entry(lmb) else {
            state.counters.bad_lmbs = state.counters.bad_lmbs.saturating_add(1);
            return false;
        };
        let waited = entry.has_events();
        match write {
            Write::Eject { .. } if !entry.present => {
                state.counters.stray_ejects = state.counters.stray_ejects.saturating_add(1);
                return false;
            }
            Write::Eject { .. } => {
                entry.present = false;
                entry.ejected = Some(at);
                self.table.set(lmb, STATUS_ABSENT);
                // What was to be said of the LMB is void now.
                state.drop_notice(lmb);
                state.drive(&*self.line);
            }
            Write::Ost { status, .. } => {
                if entry.ost.replace((status, at)).is_some() {
                    let count = &mut state.counters.overwritten_osts;
                    *count = count.saturating_add(1);
                }
            }
        }
        if !waited {
            state.events.push_back(lmb);
        }
        !waited
    }

    fn count_bad_access(state: &mut State) {
        state.counters.bad_accesses = state.counters.bad_accesses.saturating_add(1);
    }
}

impl BusDevice for Shared {
    fn read(&self, offset: u64, data: &mut [u8]) {
        data.fill(0xff);
        let mut state = lock(&self.state);
        if !reads_next(offset, data.len()) {
            Self::count_bad_access(&mut state);
            return;
        }
        let greeted = std::mem::take(&mut state.greeting);
        if greeted {
            state.greeted = Some((self.clock)());
        }
        data.copy_from_slice(&state.next_notice().to_le_bytes());
        state.drive(&*self.line);
        drop(state);
        if greeted {
            self.wake.wake();
        }
    }

    fn write(&self, offset: u64, data: &[u8]) {
        // Before the lock, so that waiting for it does not count.
        let at = (self.clock)();
        let mut state = lock(&self.state);
        let Some(write) = Write::decode(offset, data) else {
            Self::count_bad_access(&mut state);
            return;
        };
        let wake = self.apply(&mut state, write, at);
        drop(state);
        if wake {
            self.wake.wake();
        }
    }
}
