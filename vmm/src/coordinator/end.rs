//! How an operation ends: reached, stalled, past its deadline, cancelled or
//! cut off. Exactly one of these ends each.

use lmb_memory::Bytes;

use super::Coordinator;
use super::operation::{CancelError, OperationId};
use crate::protocol::{Hotplug, Operation, OperationState};
use crate::timeline::BootEvent;

impl Coordinator {
    pub(super) fn abort(&mut self, why: &str) {
        if let Some(record) = self.log.newest_mut() {
            record.usable_expected = false;
        }
        self.end_operation(OperationState::Aborted, Some(why.to_owned()));
    }

    /// Ends the operation that runs, if one does, with what became of it.
    pub(super) fn end_operation(&mut self, state: OperationState, message: Option<String>) {
        let plugged_bytes = self.total_bytes();
        let changes = self.windows.iter().flat_map(|window| window.changes());
        if let Some(record) = self.log.running_mut() {
            record.shown.changes = changes.collect();
        }
        self.log.end(state, plugged_bytes, message);
    }

    /// The operation that ran has ended short of its target; no other replaces
    /// it.
    pub(super) fn leave_alone(&mut self) {
        for window in &mut self.windows {
            window.left_alone();
        }
        self.tell_agent(self.sizes().requested_lmbs);
    }

    pub(super) fn incomplete_message(&self) -> Option<String> {
        let shown = &self.log.running()?.shown;
        let mut message = format!(
            "after {} ms the guest has {} of the {} wanted",
            shown.timeout_ms,
            Bytes::new(self.total_bytes()),
            Bytes::new(shown.target_bytes)
        );
        let trouble = self.windows.iter().find_map(|window| window.trouble());
        if let Some(trouble) = trouble {
            message.push_str(&format!(" ({trouble})"));
        } else if shown.timeline.first_request_ns.is_none() {
            message.push_str(" (it has asked for nothing)");
        }
        message.push_str(match self.fixed.hotplug {
            Hotplug::VirtioMem => "; the target stands and the guest may go on",
            Hotplug::Acpi => "; what the guest still works on is booked when it is done",
        });
        Some(message)
    }

    /// Ends the running operation if every window has what is requested.
    /// `answered` says that it was an answer to the guest that may have got
    /// there.
    pub(super) fn complete(&mut self, answered: bool) {
        if !self.windows.iter().all(|window| window.settled()) {
            self.end_if_stalled();
            return;
        }
        if self.log.running().is_none() {
            self.stamp_plugged_at_boot();
            return;
        }
        let last_answer = self
            .windows
            .iter()
            .filter_map(|window| window.last_answer())
            .max_by_key(|stamp| stamp.monotonic_ns);
        let last_usable_bytes = self.last_usable_bytes;
        if let Some(record) = self.log.running_mut() {
            let last_answer =
                last_answer.filter(|at| at.monotonic_ns >= record.shown.timeline.accepted_ns);
            let cpu_ns = last_answer.map(|at| record.cpu_since_accepted(at));
            let since_ns = last_answer.map(|at| record.since_accepted(at.monotonic_ns));
            let timeline = &mut record.shown.timeline;
            if answered {
                timeline.last_answer_ns = since_ns;
                timeline.last_answer_cpu_ns = cpu_ns;
            } else if last_usable_bytes == Some(record.usable_bytes) {
                // Nothing to do, and the guest has reported just this before.
                timeline.usable_ns = Some(0);
            }
        }
        self.end_operation(OperationState::Done, None);
    }

    /// Ends the running operation if nothing is under way any more though not
    /// every window has what is requested.
    pub(super) fn end_if_stalled(&mut self) {
        if self.log.running().is_none() {
            return;
        }
        let mut why = Vec::new();
        for window in &self.windows {
            match window.stalled() {
                Some(reason) => why.push(reason),
                None if window.settled() => {}
                None => return,
            }
        }
        self.end_operation(OperationState::Incomplete, Some(why.join("; ")));
        self.leave_alone();
    }

    /// A guest that was started with memory requested has it all.
    pub(super) fn stamp_plugged_at_boot(&mut self) {
        let answered = self
            .windows
            .iter()
            .filter_map(|window| window.last_answer())
            .max_by_key(|stamp| stamp.monotonic_ns);
        if let Some(stamp) = answered
            && self.requested_bytes() > 0
            && self.booting()
        {
            self.boot.stamp(BootEvent::Plugged, stamp);
        }
    }

    /// Cancels a running operation: the target becomes what is plugged.
    ///
    /// # Errors
    ///
    /// [`CancelError`]; nothing has changed then.
    pub fn cancel(&mut self, id: OperationId) -> Result<Operation, CancelError> {
        let Some(record) = self.log.get(id) else {
            return Err(CancelError::Unknown(id));
        };
        if !record.running() {
            return Err(CancelError::Ended(id, record.shown.state));
        }
        let target_bytes = record.shown.target_bytes;
        for window in &mut self.windows {
            if !window.settled() {
                window.request_what_is_plugged();
            }
        }
        self.tell_agent(self.sizes().requested_lmbs);
        let plugged_bytes = self.total_bytes();
        let message = format!(
            "cancelled with {} of the {} wanted; the target is now what the guest has",
            Bytes::new(plugged_bytes),
            Bytes::new(target_bytes)
        );
        self.end_operation(OperationState::Cancelled, Some(message));
        self.operation(id).ok_or(CancelError::Unknown(id))
    }
}
