//! What the guest says and does, and what that means for each LMB.

use lmb_devices::Stamp;
use lmb_devices::acpi_mem::{AcpiMemEvent, Notice, OstSource, OstStatus};

use super::book::Standing;
use super::{AcpiWindow, Failure, Goal};
use crate::coordinator::window::Observer;
use crate::protocol::{LmbOutcome, MemoryAction};

impl AcpiWindow {
    pub(super) fn on_event(&mut self, event: AcpiMemEvent, observer: &mut Observer<'_>) {
        match event {
            AcpiMemEvent::GuestUp { .. } => {
                if !std::mem::replace(&mut self.talk.up_told, true) {
                    tracing::info!(window = self.body.id, "the guest's event device is active");
                }
            }
            AcpiMemEvent::Ejected { lmb, at } => {
                observer.note_request(at.monotonic_ns);
                self.on_ejected(lmb, observer);
            }
            AcpiMemEvent::Ost {
                lmb, status, at, ..
            } => {
                observer.note_request(at.monotonic_ns);
                tracing::debug!(window = self.body.id, lmb, %status, "_OST");
                self.on_report(lmb, status, at, observer);
            }
        }
    }

    pub(super) fn on_ejected(&mut self, lmb: u32, observer: &mut Observer<'_>) {
        let before = self.talk.book.get(lmb);
        let asked = matches!(before, Standing::Asked { .. });
        if !matches!(
            before,
            Standing::Asked { .. } | Standing::Offered { .. } | Standing::Present
        ) {
            // It was withdrawn from the guest at the same moment.
            tracing::debug!(lmb, ?before, "an LMB was ejected that is leaving anyway");
            return;
        }
        self.talk.working_on = self.talk.working_on.filter(|working| *working != lmb);
        if !asked {
            if let Some(device) = &self.device {
                device.withdraw(lmb);
            }
            self.talk.fates.remove(&lmb);
            // The guest's own choice, which does not count for the operation.
            if self.talk.goal == Goal::Listed {
                self.follow(self.requested().saturating_sub(1));
            }
        }
        self.talk.book.set(lmb, Standing::Ejected);
        self.talk.failures.remove(&lmb);
        self.count(observer, |counts| {
            counts.ejected = counts.ejected.saturating_add(1);
            if !asked {
                counts.ejected_unasked = counts.ejected_unasked.saturating_add(1);
            }
        });
    }

    pub(super) fn on_report(
        &mut self,
        lmb: u32,
        status: OstStatus,
        at: Stamp,
        observer: &mut Observer<'_>,
    ) {
        if status.in_progress() {
            self.talk.working_on = Some(lmb);
            return;
        }
        self.talk.working_on = self.talk.working_on.filter(|working| *working != lmb);
        match (status.source(), self.talk.book.get(lmb)) {
            (OstSource::DeviceCheck, Standing::Offered { .. }) => {
                if status.is_success() {
                    self.on_added(lmb, at, observer);
                } else {
                    self.on_not_added(lmb, status, at, observer);
                }
            }
            (OstSource::EjectRequest, Standing::Asked { late }) if !status.is_success() => {
                self.on_refused(lmb, status, late, at, observer);
            }
            // The success after _EJ0, or what nobody asked.
            _ => {}
        }
    }

    pub(super) fn on_added(&mut self, lmb: u32, at: Stamp, observer: &mut Observer<'_>) {
        self.talk.book.set(lmb, Standing::Present);
        self.talk.failures.remove(&lmb);
        self.body.last_answer = Some(at);
        let outcome = if self.talk.restoring {
            LmbOutcome::Restored
        } else {
            LmbOutcome::Added
        };
        self.fate(lmb, outcome);
        self.count(observer, |counts| {
            counts.added = counts.added.saturating_add(1);
        });
    }

    /// The guest could not add an LMB. Whether it has it all the same only it
    /// knows, so it is asked to give it back.
    pub(super) fn on_not_added(
        &mut self,
        lmb: u32,
        status: OstStatus,
        at: Stamp,
        observer: &mut Observer<'_>,
    ) {
        self.refused(lmb, MemoryAction::Add, status, at, observer);
        match &mut self.talk.goal {
            Goal::Count { full, .. } => *full = true,
            // The operation, if there is one, ends short of its target.
            Goal::Rest | Goal::Listed => {}
        }
        self.talk.book.set(lmb, Standing::Asked { late: true });
        self.notify(lmb, Notice::EjectRequest, observer);
    }

    /// The guest cannot give an LMB back.
    pub(super) fn on_refused(
        &mut self,
        lmb: u32,
        status: OstStatus,
        late: bool,
        at: Stamp,
        observer: &mut Observer<'_>,
    ) {
        self.talk.book.set(lmb, Standing::Present);
        self.refused(lmb, MemoryAction::Remove, status, at, observer);
        match &mut self.talk.goal {
            Goal::Count { refused, .. } => _ = refused.insert(lmb),
            Goal::Listed if late => self.follow(self.requested().saturating_add(1)),
            // The operation, if there is one, ends short of its target.
            Goal::Rest | Goal::Listed => {}
        }
    }

    pub(super) fn refused(
        &mut self,
        lmb: u32,
        action: MemoryAction,
        status: OstStatus,
        at: Stamp,
        observer: &mut Observer<'_>,
    ) {
        let failure = Failure {
            action,
            status,
            at_ns: at.monotonic_ns,
        };
        self.talk.failures.insert(lmb, failure);
        if let Some(fate) = self.talk.fates.get_mut(&lmb) {
            fate.outcome = LmbOutcome::Refused;
            fate.reason = Some(status.to_string());
        }
        self.count(observer, |counts| {
            counts.refused = counts.refused.saturating_add(1);
        });
    }
}
