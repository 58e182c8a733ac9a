//! The next steps towards the goal: telling the guest, and effects on the
//! host.

use lmb_devices::acpi_mem::Notice;
use lmb_memory::{Change, Plan, PlanKind};

use super::book::{self, Standing};
use super::{AcpiWindow, Goal};
use crate::coordinator::window::body::Ended;
use crate::coordinator::window::{Observer, Window};
use crate::protocol::LmbOutcome;

impl AcpiWindow {
    /// Takes the next steps towards the goal; see the module's head.
    pub(super) fn pump(&mut self, observer: &mut Observer<'_>) {
        if self.device.is_none() || self.body.has_failed() {
            return;
        }
        if observer.log.running().is_none() && self.settled() {
            self.talk.goal = Goal::Rest;
        }
        if self.talk.goal == Goal::Rest {
            // What the guest has is what it shall have.
            self.follow(self.talk.book.tally().staying());
        }
        if matches!(self.talk.goal, Goal::Count { .. }) {
            self.strive(observer);
        }
        if self.talk.all_or_nothing && !self.talk.restoring && self.talk.book.tally().at_rest() {
            self.restore();
        }
        self.start_effect();
    }

    /// Brings the number of LMBs that stay to what is requested, as far as
    /// that can be begun now.
    pub(super) fn strive(&mut self, observer: &mut Observer<'_>) {
        let (staying, requested) = (self.talk.book.tally().staying(), self.requested());
        if staying < requested {
            self.strive_up(requested - staying);
        } else {
            self.strive_down(staying - requested, observer);
        }
    }

    pub(super) fn strive_up(&mut self, mut missing: u32) {
        let asked: Vec<u32> = self
            .talk
            .book
            .those(Standing::Asked { late: false })
            .collect();
        for lmb in asked {
            if missing > 0 && self.withdraw(lmb, Notice::EjectRequest) {
                self.talk.book.set(lmb, Standing::Present);
                self.talk.fates.remove(&lmb);
                missing -= 1;
            }
        }
        if matches!(self.talk.goal, Goal::Count { full: true, .. }) {
            return;
        }
        let missing = usize::try_from(missing).unwrap_or(usize::MAX);
        let chosen: Vec<u32> = self
            .talk
            .book
            .those(Standing::Absent)
            .take(missing)
            .collect();
        for lmb in chosen {
            self.talk.book.set(lmb, Standing::Queued);
        }
    }

    pub(super) fn strive_down(&mut self, mut excess: u32, observer: &mut Observer<'_>) {
        while excess > 0
            && let Some(lmb) = self.talk.book.last_queued()
        {
            self.talk.book.set(lmb, Standing::Absent);
            excess -= 1;
        }
        if excess == 0 {
            return;
        }
        let offered: Vec<u32> = self
            .talk
            .book
            .those(Standing::Offered { late: false })
            .rev()
            .collect();
        for lmb in offered {
            if excess > 0 && self.unoffer(lmb) {
                excess -= 1;
            }
        }
        let Goal::Count { refused, .. } = &self.talk.goal else {
            return;
        };
        let excess = usize::try_from(excess).unwrap_or(usize::MAX);
        let chosen: Vec<u32> = self
            .talk
            .book
            .those(Standing::Present)
            .rev()
            .filter(|lmb| !refused.contains(lmb))
            .take(excess)
            .collect();
        for lmb in chosen {
            self.ask_for(lmb, observer);
        }
    }

    /// Asks the guest to give an LMB back.
    pub(super) fn ask_for(&mut self, lmb: u32, observer: &mut Observer<'_>) {
        self.talk.book.set(lmb, Standing::Asked { late: false });
        self.fate(lmb, LmbOutcome::Pending);
        self.notify(lmb, Notice::EjectRequest, observer);
    }

    /// A removal that is to be all or nothing got stuck halfway: what was
    /// removed is added again.
    pub(super) fn restore(&mut self) {
        let removed: Vec<u32> = self
            .talk
            .fates
            .iter()
            .filter(|(_, fate)| fate.outcome == LmbOutcome::Removed)
            .map(|(lmb, _)| *lmb)
            .collect();
        if self.settled() || removed.is_empty() {
            return;
        }
        self.talk.restoring = true;
        for lmb in removed {
            if self.talk.book.get(lmb) == Standing::Absent {
                self.talk.book.set(lmb, Standing::Queued);
            }
        }
        // Nothing but these from here on.
        self.talk.goal = Goal::Listed;
        self.follow(self.talk.book.tally().staying());
    }

    /// Whether all that is requested, and no more, is there or coming.
    pub(super) fn whole(&self) -> bool {
        self.talk.book.tally().staying() == self.requested()
    }

    /// Hands the worker the next effect, if there is one to do and it is idle:
    /// memory that was given back first.
    pub(super) fn start_effect(&mut self) {
        if self.body.busy() || self.talk.reminder.due_ns().is_some() || self.body.has_failed() {
            return;
        }
        let ejected = self.talk.book.ejected();
        let (change, lmbs, standing) = if ejected.is_empty() {
            let queued = self.talk.book.next_queued(self.talk.batch);
            (Change::Plug, queued, Standing::Plugging)
        } else {
            (Change::Unplug, ejected, Standing::Unplugging)
        };
        if lmbs.is_empty() {
            return;
        }
        let plan = match self.body.ledger.plan_runs(change, &book::runs(&lmbs)) {
            Ok(plan) => plan,
            Err(refusal) => {
                self.body.fail(format!("its books disagree: {refusal}"));
                return;
            }
        };
        if let Err(plan) = self.body.hold(plan) {
            self.body.ledger.abort(plan);
            return;
        }
        if let Err(gone) = self.body.submit() {
            if let Some(plan) = self.body.let_go() {
                self.body.ledger.abort(plan);
            }
            self.body.fail(gone.to_string());
            return;
        }
        for lmb in lmbs {
            self.talk.book.set(lmb, standing);
        }
    }

    /// Books the end of an effect.
    pub(super) fn conclude(&mut self, ended: Ended, observer: &mut Observer<'_>) {
        match ended {
            Ended::Done(plan) => {
                self.talk.reminder.clear();
                let kind = plan.kind();
                let lmbs: Vec<u32> = book::lmbs(plan.runs()).collect();
                self.body.commit(plan);
                let blocks = u64::try_from(lmbs.len()).unwrap_or(u64::MAX);
                self.talk.blocks = self.talk.blocks.saturating_add(blocks);
                observer.note_blocks(blocks);
                match kind {
                    PlanKind::Plug => self.offer(&lmbs, observer),
                    PlanKind::Unplug | PlanKind::UnplugAll => self.gone(&lmbs, observer),
                }
            }
            Ended::Undone(plan) => self.try_again(plan, observer.clock.now_ns()),
            Ended::Failed(plan) => {
                self.talk.reminder.clear();
                self.body.ledger.abort(plan);
            }
        }
    }

    pub(super) fn offer(&mut self, lmbs: &[u32], observer: &mut Observer<'_>) {
        // What an operation that is over had begun has nobody who waits.
        let late = self.talk.goal == Goal::Rest;
        for &lmb in lmbs {
            if !self.show(lmb, true) {
                self.talk.book.set(lmb, Standing::Ejected);
                continue;
            }
            self.talk.book.set(lmb, Standing::Offered { late });
            if !self.talk.restoring {
                self.fate(lmb, LmbOutcome::Pending);
            }
            self.notify(lmb, Notice::DeviceCheck, observer);
        }
    }

    pub(super) fn gone(&mut self, lmbs: &[u32], observer: &mut Observer<'_>) {
        for &lmb in lmbs {
            self.talk.book.set(lmb, Standing::Absent);
            // One that was withdrawn unread leaves no trace.
            if self.talk.fates.contains_key(&lmb) {
                self.fate(lmb, LmbOutcome::Removed);
            }
        }
        self.body.last_answer = Some(observer.clock.stamp());
    }

    /// An effect failed and was undone.
    pub(super) fn try_again(&mut self, plan: Plan, now_ns: u64) {
        let plug = plan.kind() == PlanKind::Plug;
        let lmbs: Vec<u32> = book::lmbs(plan.runs()).collect();
        self.body.ledger.abort(plan);
        let standing = match (plug, &self.talk.goal) {
            (false, _) => Standing::Ejected,
            // Nobody wants it any more.
            (true, Goal::Rest) if !self.talk.restoring => Standing::Absent,
            (true, _) => Standing::Queued,
        };
        for &lmb in &lmbs {
            self.talk.book.set(lmb, standing);
        }
        // Perhaps there is room for some of them.
        if plug && lmbs.len() > 1 {
            self.talk.batch = 1;
        } else {
            self.talk.reminder.arm(now_ns);
        }
    }
}
