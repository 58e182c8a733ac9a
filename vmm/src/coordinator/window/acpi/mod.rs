//! A window whose LMBs are ACPI memory devices: the VMM chooses which come
//! and go, tells the guest, and follows what the guest answers for each.
//!
//! # The way of an LMB
//!
//! Add: queued → its effect (host memory, KVM slot) → booked as plugged →
//! _STA shows it → a device check is sent → the guest's _OST ends it. Remove:
//! an eject request is sent → the guest offlines the LMB and calls _EJ0, after
//! which _STA shows it as gone at once → its effect → booked as unplugged. Only
//! _EJ0 takes memory from a guest that may have it: an LMB that the guest says
//! it could not add is asked for with an eject request. [`book`] has the states.
//!
//! # What drives it
//!
//! [`Goal`] says what the running operation wants. After each event
//! [`AcpiWindow::pump`] compares it with the book and takes the next steps: it
//! tells the guest, or hands the worker the next effect. A removal by count
//! asks for the highest LMBs first; in place of one that the guest refuses the
//! next is asked for. Without an operation nothing new is begun, but what the
//! guest does late is booked, and what is requested follows it.
//!
//! Effects that fail are undone and tried again: in single LMBs at once, then
//! after growing pauses ([`Reminder`]). An LMB that the guest gave back stays
//! given back however often that takes. Owner: the coordinator.

mod answers;
mod book;
mod report;
mod steps;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use lmb_devices::AcpiMem;
use lmb_devices::acpi_mem::{Notice, OstStatus};
use lmb_memory::{Change, LedgerError, LmbCount, LmbRange};
use vmm_sys_util::eventfd::EventFd;

use self::book::{Book, Standing};
use super::body::Body;
use super::{AttachError, HotplugDevice, Observer, Window, WindowParts, Wish};
use crate::coordinator::retry::Reminder;
use crate::coordinator::worker::EffectError;
use crate::protocol::{
    AcpiCounts, LmbChange, LmbOutcome, LmbRun, LmbState, MemoryAction, RequestCounts, WindowInfo,
};
use crate::timeline::Clock;

/// Events looked at in one go.
const EVENTS_AT_ONCE: usize = 256;
/// LMBs that one effect plugs at most: the guest starts with the first ones
/// while the next are plugged.
const LMBS_AT_ONCE: usize = 64;

/// What the running operation wants.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Goal {
    /// Nothing runs.
    Rest,
    /// As many LMBs as are requested.
    Count {
        /// LMBs that the guest has refused to give back meanwhile.
        refused: BTreeSet<u32>,
        /// The guest could not add one, so no further one is offered.
        full: bool,
    },
    /// The LMBs that were named, which are under way; no others.
    Listed,
}

/// A request that the guest could not fulfil.
#[derive(Clone, Copy, Debug)]
struct Failure {
    action: MemoryAction,
    status: OstStatus,
    at_ns: u64,
}

/// What became of an LMB in an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Fate {
    outcome: LmbOutcome,
    reason: Option<String>,
}

impl From<LmbOutcome> for Fate {
    fn from(outcome: LmbOutcome) -> Self {
        Self {
            outcome,
            reason: None,
        }
    }
}

/// See the module's head.
pub(in crate::coordinator) struct AcpiWindow {
    body: Body,
    device: Option<AcpiMem>,
    talk: Talk,
}

/// What is known of the guest that runs.
struct Talk {
    book: Book,
    goal: Goal,
    /// A removal that is taken back if it cannot be done whole.
    all_or_nothing: bool,
    /// That is being done: what was removed is added again.
    restoring: bool,
    fates: BTreeMap<u32, Fate>,
    failures: BTreeMap<u32, Failure>,
    /// The LMB that the guest said it works on.
    working_on: Option<u32>,
    counts: AcpiCounts,
    /// LMBs plugged and unplugged.
    blocks: u64,
    reminder: Reminder,
    /// LMBs that the next effect plugs at most.
    batch: usize,
    up_told: bool,
}

impl Talk {
    fn new(lmbs: u32) -> Self {
        Self {
            book: Book::new(lmbs),
            goal: Goal::Rest,
            all_or_nothing: false,
            restoring: false,
            fates: BTreeMap::new(),
            failures: BTreeMap::new(),
            working_on: None,
            counts: AcpiCounts::default(),
            blocks: 0,
            reminder: Reminder::new(),
            batch: LMBS_AT_ONCE,
            up_told: false,
        }
    }
}

/// The layout keeps windows of ACPI devices to 4,096 LMBs.
fn lmbs_of(body: &Body) -> u32 {
    u32::try_from(body.ledger.total_lmbs().get()).unwrap_or(u32::MAX)
}

impl AcpiWindow {
    pub(super) fn new(body: Body) -> Self {
        let lmbs = lmbs_of(&body);
        Self {
            body,
            device: None,
            talk: Talk::new(lmbs),
        }
    }

    fn requested(&self) -> u32 {
        u32::try_from(self.body.ledger.requested_lmbs().get()).unwrap_or(u32::MAX)
    }

    fn follow(&mut self, lmbs: u32) {
        self.body.follow(LmbCount::new(u64::from(lmbs)));
    }

    /// Plugs what is requested before the guest starts, so that it finds the
    /// LMBs present as it boots.
    fn plug_for_boot(
        &mut self,
        effects: &mut dyn crate::coordinator::WindowEffects,
        clock: &dyn Clock,
    ) {
        let lmbs: Vec<u32> = (0..self.requested()).collect();
        let runs = book::runs(&lmbs);
        if runs.is_empty() {
            return;
        }
        let plan = match self.body.ledger.plan_runs(Change::Plug, &runs) {
            Ok(plan) => plan,
            Err(refusal) => {
                tracing::error!(%refusal, "the book refused LMBs of its own");
                return;
            }
        };
        match effects.plug(&runs) {
            Ok(()) => {
                self.body.commit(plan);
                for lmb in lmbs {
                    self.talk.book.set(lmb, Standing::Present);
                }
                self.body.last_answer = Some(clock.stamp());
            }
            Err(error) => {
                self.body.ledger.abort(plan);
                let trouble = error.to_string();
                tracing::warn!(%trouble, "requested memory is not there at boot");
                if matches!(error, EffectError::Inconsistent(_)) {
                    self.body.fail(trouble);
                } else {
                    // Tried again once the guest is up, as for an operation.
                    self.body.last_trouble = Some(trouble);
                    self.talk.goal = Goal::Count {
                        refused: BTreeSet::new(),
                        full: false,
                    };
                    self.talk.reminder.arm(clock.now_ns());
                }
            }
        }
    }

    /// Makes _STA show an LMB so; false where an eject of it has yet to be
    /// looked at.
    fn show(&self, lmb: u32, present: bool) -> bool {
        self.device
            .as_ref()
            .is_some_and(|device| device.show(lmb, present))
    }

    fn notify(&mut self, lmb: u32, notice: Notice, observer: &mut Observer<'_>) {
        if let Some(device) = &self.device {
            device.notify(lmb, notice);
        }
        self.count(observer, |counts| match notice {
            Notice::DeviceCheck => counts.add_requests = counts.add_requests.saturating_add(1),
            Notice::EjectRequest => {
                counts.eject_requests = counts.eject_requests.saturating_add(1);
            }
        });
        observer.note_announced();
    }

    /// Takes back a notice that the guest has not read.
    fn withdraw(&self, lmb: u32, notice: Notice) -> bool {
        self.device
            .as_ref()
            .is_some_and(|device| device.withdraw(lmb) == Some(notice))
    }

    /// Takes an LMB back that was offered, if the guest has never heard of it.
    fn unoffer(&mut self, lmb: u32) -> bool {
        let unread = self.withdraw(lmb, Notice::DeviceCheck);
        if unread {
            self.show(lmb, false);
            self.talk.book.set(lmb, Standing::Ejected);
            self.talk.fates.remove(&lmb);
        }
        unread
    }

    /// Counts for the window and for the operation that runs.
    fn count(&mut self, observer: &mut Observer<'_>, add: impl Fn(&mut AcpiCounts)) {
        add(&mut self.talk.counts);
        if let Some(record) = observer.log.running_mut() {
            add(record.shown.acpi.get_or_insert_default());
        }
    }

    fn fate(&mut self, lmb: u32, fate: impl Into<Fate>) {
        if self.talk.goal != Goal::Rest {
            self.talk.fates.insert(lmb, fate.into());
        }
    }

    /// Begins with the LMBs that were named; they were checked.
    fn begin_listed(&mut self, change: Change, runs: &[LmbRange], observer: &mut Observer<'_>) {
        for lmb in book::lmbs(runs) {
            match change {
                Change::Plug => self.talk.book.set(lmb, Standing::Queued),
                Change::Unplug => self.ask_for(lmb, observer),
            }
        }
    }
}

impl Window for AcpiWindow {
    fn body(&self) -> &Body {
        &self.body
    }

    #[cfg(test)]
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }

    #[cfg(test)]
    fn as_any_mut(&mut self) -> &mut dyn std::any::Any {
        self
    }

    fn attach(
        &mut self,
        parts: WindowParts,
        done: Arc<EventFd>,
        clock: &dyn Clock,
    ) -> Result<(), AttachError> {
        let HotplugDevice::Acpi(device) = parts.device else {
            return Err(AttachError::OtherDevice);
        };
        let mut effects = parts.effects;
        self.plug_for_boot(&mut *effects, clock);
        self.body
            .attach(parts.access, effects, done, parts.sandbox)?;
        self.device = Some(device);
        let present: Vec<u32> = self.talk.book.those(Standing::Present).collect();
        for lmb in present {
            self.show(lmb, true);
        }
        Ok(())
    }

    fn reset(&mut self) {
        self.device = None;
        self.body.reset();
        self.talk = Talk::new(lmbs_of(&self.body));
    }

    fn request(&mut self, wish: &Wish, observer: &mut Observer<'_>) -> Result<(), LedgerError> {
        self.body.ledger.set_requested(wish.lmbs)?;
        self.talk.fates.clear();
        self.talk.batch = LMBS_AT_ONCE;
        self.talk.restoring = false;
        self.talk.all_or_nothing = wish.all_or_nothing;
        match &wish.listed {
            Some((change, runs)) => {
                self.talk.goal = Goal::Listed;
                self.begin_listed(*change, runs, observer);
            }
            None => {
                self.talk.goal = Goal::Count {
                    refused: BTreeSet::new(),
                    full: false,
                };
            }
        }
        self.pump(observer);
        Ok(())
    }

    fn request_what_is_plugged(&mut self) {
        let asked: Vec<u32> = self
            .talk
            .book
            .those(Standing::Asked { late: false })
            .collect();
        for lmb in asked {
            if self.withdraw(lmb, Notice::EjectRequest) {
                self.talk.book.set(lmb, Standing::Present);
            }
        }
        let offered: Vec<u32> = self
            .talk
            .book
            .those(Standing::Offered { late: false })
            .collect();
        for lmb in offered {
            self.unoffer(lmb);
        }
        self.left_alone();
        self.start_effect();
    }

    fn left_alone(&mut self) {
        if std::mem::take(&mut self.talk.all_or_nothing) && !self.talk.restoring {
            self.restore();
        }
        let restored: Vec<u32> = if self.talk.restoring {
            self.talk.book.those(Standing::Queued).collect()
        } else {
            Vec::new()
        };
        self.talk.book.left_alone();
        for lmb in restored {
            self.talk.book.set(lmb, Standing::Queued);
        }
        self.talk.goal = Goal::Rest;
        self.follow(self.talk.book.tally().staying());
        self.start_effect();
    }

    fn serve(&mut self, observer: &mut Observer<'_>) -> bool {
        let Some(device) = self.device.clone() else {
            return false;
        };
        let events = device.take_events(EVENTS_AT_ONCE);
        let left = events.len() == EVENTS_AT_ONCE;
        for event in events {
            self.on_event(event, observer);
        }
        self.pump(observer);
        left
    }

    fn finish(&mut self, observer: &mut Observer<'_>) -> bool {
        let Some(ended) = self.body.take_end(observer.clock.now_ns()) else {
            return false;
        };
        self.conclude(ended, observer);
        self.pump(observer);
        true
    }

    fn reminder_ns(&self) -> Option<u64> {
        self.talk.reminder.due_ns()
    }

    fn remind(&mut self, observer: &mut Observer<'_>) {
        if self.talk.reminder.take_due(observer.clock.now_ns()) {
            self.pump(observer);
        }
    }

    fn driver_active(&self) -> bool {
        self.device.as_ref().is_some_and(AcpiMem::guest_up)
    }

    fn settled(&self) -> bool {
        let taken_back = self.talk.restoring && self.talk.goal != Goal::Rest;
        self.whole() && self.talk.book.tally().at_rest() && !self.body.busy() && !taken_back
    }

    fn stalled(&self) -> Option<String> {
        if let Some(failure) = self.failure() {
            return Some(failure);
        }
        let waits_for_late = match &self.talk.goal {
            Goal::Count { full, .. } => {
                // An LMB that comes free late can be offered again.
                !full
                    && self.talk.book.tally().staying() < self.requested()
                    && self.talk.book.tally().asked_late > 0
            }
            Goal::Rest | Goal::Listed => false,
        };
        let idle = self.talk.book.tally().at_rest()
            && !self.body.busy()
            && self.talk.reminder.due_ns().is_none();
        if !idle || self.settled() || waits_for_late {
            return None;
        }
        Some(self.why_short())
    }

    fn waits_behind(&self) -> Option<String> {
        self.late_text()
    }

    fn trouble(&self) -> Option<String> {
        if let Some(failure) = self.body.failure() {
            return Some(failure);
        }
        if !self.driver_active() {
            return Some("the guest's ACPI event device has not looked for events".to_owned());
        }
        self.pending_text().or_else(|| self.body.trouble())
    }

    fn info(&self) -> WindowInfo {
        WindowInfo {
            driver_active: self.driver_active(),
            requests: RequestCounts {
                blocks: self.talk.blocks,
                ..RequestCounts::default()
            },
            acpi: Some(self.talk.counts),
            ..self.body.info()
        }
    }

    fn changes(&self) -> Vec<LmbChange> {
        self.fate_runs()
    }

    fn check_listed(&self, change: Change, runs: &[LmbRange]) -> Result<(), (u64, LmbState)> {
        let right = match change {
            Change::Plug => Standing::Absent,
            Change::Unplug => Standing::Present,
        };
        match book::lmbs(runs).find(|lmb| self.talk.book.get(*lmb) != right) {
            Some(lmb) => Err((u64::from(lmb), report::state_of(self.talk.book.get(lmb)))),
            None => Ok(()),
        }
    }

    fn lmbs(&self) -> Vec<LmbRun> {
        self.standing_runs()
    }
}
