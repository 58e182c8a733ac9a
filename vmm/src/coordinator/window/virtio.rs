//! A window whose guest asks by virtio-mem: the device's requests decide which
//! LMBs come and go.
//!
//! States beside those of the window's body: a request is *in flight* from
//! its plan to its answer, and later requests wait in the guest's queue. A
//! window that has failed answers BUSY to every change until the machine is
//! built anew, since BUSY is the one answer that breaks no driver.
//!
//! The configuration shows LMBs as plugged from before a plug's effect begins
//! until it has failed, if it does: Linux takes a device that shows nothing
//! plugged at its probe for one that needs no UNPLUG_ALL
//! (drivers/virtio/virtio_mem.c, `virtio_mem_init`), and a driver may come at
//! any time. Owner: the coordinator.

use std::sync::Arc;

use lmb_devices::{MemConfig, MemRequest, MemResponse, RangeState, Ticket, VirtioMem};
use lmb_memory::{Change, GuestRam, LedgerError, LmbRange, Plan, PlanKind, Refusal};
use vmm_sys_util::eventfd::EventFd;

use super::body::{Body, Ended};
use super::{AttachError, HotplugDevice, Observer, Window, WindowParts, Wish};
use crate::coordinator::loudness::Loudness;
use crate::coordinator::retry::Reminder;
use crate::coordinator::worker::WorkerGone;
use crate::protocol::{LmbRun, LmbState, RequestCounts, WindowInfo};
use crate::timeline::Clock;

/// Requests looked at in one go, so that a guest that never stops asking
/// cannot keep the event loop from its other work.
const REQUESTS_AT_ONCE: usize = 256;

struct Machine {
    device: VirtioMem,
    ram: GuestRam,
    /// The right to answer the request whose effect runs.
    ticket: Option<Ticket>,
    malformed_seen: u64,
    active_told: Loudness,
    gave_up_told: Loudness,
}

/// Why an effect was not started.
enum NotLaunched {
    /// The device was reset since the request was read.
    Unwanted,
    WorkerGone(WorkerGone),
}

/// See the module's head.
pub(in crate::coordinator) struct VirtioWindow {
    body: Body,
    machine: Option<Machine>,
    counts: RequestCounts,
    reminder: Reminder,
    /// A cancelled operation left an effect in flight: the target follows it.
    follow_effect: bool,
}

impl VirtioWindow {
    pub(super) fn new(body: Body) -> Self {
        Self {
            body,
            machine: None,
            counts: RequestCounts::default(),
            reminder: Reminder::new(),
            follow_effect: false,
        }
    }

    fn follow_plugged(&mut self) {
        self.body.follow(self.body.ledger.plugged_lmbs());
    }

    fn announce(&self) {
        self.publish();
        if let Some(machine) = &self.machine {
            machine.device.config_interrupt();
        }
    }

    fn publish(&self) {
        if let Some(machine) = &self.machine {
            machine.device.publish(self.config());
        }
    }

    /// What the device's configuration space is to show: the book, and what is
    /// about to be plugged as if it were. A driver that waits for an answer
    /// does not look before it has it.
    pub(in crate::coordinator) fn config(&self) -> MemConfig {
        let view = self.body.ledger.config();
        let coming = self
            .body
            .held()
            .filter(|plan| plan.kind() == PlanKind::Plug)
            .map_or(0, |plan| plan.lmbs().get());
        let coming_bytes = coming.saturating_mul(view.block_size);
        MemConfig {
            block_size: view.block_size,
            addr: view.addr,
            region_size: view.region_size,
            usable_region_size: view.usable_region_size,
            plugged_size: view.plugged_size.saturating_add(coming_bytes),
            requested_size: view.requested_size,
        }
    }

    /// Looks at what the driver did. Returns whether requests are left over.
    fn look(&mut self, observer: &mut Observer<'_>) -> bool {
        let Some(machine) = &mut self.machine else {
            return false;
        };
        let events = machine.device.take_events();
        let (window, now_ns) = (self.body.id, observer.clock.now_ns());
        if events.activated {
            self.counts = RequestCounts::default();
            self.reminder.clear();
            if machine.active_told.loud("", now_ns) {
                tracing::info!(window, "the guest's driver is active");
            } else {
                tracing::debug!(window, "the guest's driver is active again");
            }
        }
        if events.failed || events.needs_reset {
            if machine.gave_up_told.loud("", now_ns) {
                tracing::warn!(window, ?events, "the guest's driver gave up");
            } else {
                tracing::debug!(window, ?events, "the guest's driver gave up again");
            }
        }
        let mut left = true;
        for _ in 0..REQUESTS_AT_ONCE {
            if !self.serve_one(observer) {
                left = false;
                break;
            }
        }
        self.count_malformed(observer);
        left
    }

    /// Serves the next request, if one may be served now.
    fn serve_one(&mut self, observer: &mut Observer<'_>) -> bool {
        if self.body.busy() {
            return false;
        }
        let Some(machine) = self.machine.as_mut() else {
            return false;
        };
        let Some((ticket, request)) = machine.device.next_request(&machine.ram) else {
            return false;
        };
        tracing::debug!(window = self.body.id, ?request, "guest request");
        self.note_request(request, observer);
        match self.decide(request) {
            Ok(plan) => self.begin(ticket, plan, observer),
            Err(response) => self.answer(ticket, response, 0, observer),
        }
        true
    }

    /// A plan, or the answer where there is nothing to do.
    fn decide(&mut self, request: MemRequest) -> Result<Plan, MemResponse> {
        if let MemRequest::State { addr, nb_blocks } = request {
            return Err(match self.body.ledger.state(addr, u64::from(nb_blocks)) {
                Ok(state) => MemResponse::AckState(wire_state(state)),
                Err(refusal) => self.refusal_answer(&refusal),
            });
        }
        let plan = match request {
            MemRequest::Plug { addr, nb_blocks } => {
                self.body.ledger.plan_plug(addr, u64::from(nb_blocks))
            }
            MemRequest::Unplug { addr, nb_blocks } => {
                self.body.ledger.plan_unplug(addr, u64::from(nb_blocks))
            }
            MemRequest::UnplugAll | MemRequest::State { .. } => self.body.ledger.plan_unplug_all(),
        };
        plan.map_err(|refusal| self.refusal_answer(&refusal))
    }

    fn refusal_answer(&self, refusal: &Refusal) -> MemResponse {
        tracing::debug!(window = self.body.id, %refusal, "guest request refused");
        match refusal {
            Refusal::BadRange { .. } | Refusal::WrongState { .. } => MemResponse::Error,
            Refusal::OverRequest { .. } => MemResponse::Nack,
            // Whatever else there may be is passing trouble.
            _ => MemResponse::Busy,
        }
    }

    /// Starts a plan's effect.
    fn begin(&mut self, ticket: Ticket, plan: Plan, observer: &mut Observer<'_>) {
        if plan.runs().is_empty() {
            self.commit(plan);
            self.answer(ticket, MemResponse::Ack, 0, observer);
            return;
        }
        if let Err(plan) = self.body.hold(plan) {
            self.give_up(ticket, plan, observer);
            return;
        }
        if let Some(machine) = &mut self.machine {
            machine.ticket = Some(ticket);
        }
        self.publish();
        if let Err(failure) = self.launch() {
            if let NotLaunched::WorkerGone(gone) = failure {
                self.fail(gone.to_string());
            }
            let ticket = self.machine.as_mut().and_then(|m| m.ticket.take());
            if let (Some(ticket), Some(plan)) = (ticket, self.body.let_go()) {
                self.give_up(ticket, plan, observer);
            }
        }
    }

    /// Hands the effect in flight, which is published, to the worker.
    fn launch(&self) -> Result<(), NotLaunched> {
        let Some(machine) = &self.machine else {
            return Err(NotLaunched::Unwanted);
        };
        // A driver that came before the publishing has seen nothing of this,
        // and the one that asked for it is gone.
        let wanted = machine.ticket.as_ref();
        if !wanted.is_some_and(|ticket| machine.device.awaits(ticket)) {
            return Err(NotLaunched::Unwanted);
        }
        self.body.submit().map_err(NotLaunched::WorkerGone)
    }

    fn conclude(&mut self, ticket: Ticket, ended: Ended, observer: &mut Observer<'_>) {
        match ended {
            Ended::Done(plan) => {
                let lmbs = plan.lmbs().get();
                self.commit(plan);
                self.reminder.clear();
                self.answer(ticket, MemResponse::Ack, lmbs, observer);
            }
            Ended::Undone(plan) => {
                self.reminder.arm(observer.clock.now_ns());
                self.give_up(ticket, plan, observer);
            }
            Ended::Failed(plan) => {
                self.reminder.clear();
                self.give_up(ticket, plan, observer);
            }
        }
    }

    fn commit(&mut self, plan: Plan) {
        self.body.commit(plan);
        if self.follow_effect {
            // Before the answer: Linux looks at the target as soon as it has
            // that, and an old one would make it undo what it just did.
            self.follow_plugged();
        }
        self.publish();
    }

    /// Drops a plan without its effect. The driver looks at the configuration
    /// as soon as it has the answer.
    fn give_up(&mut self, ticket: Ticket, plan: Plan, observer: &mut Observer<'_>) {
        self.body.ledger.abort(plan);
        self.publish();
        self.answer(ticket, MemResponse::Busy, 0, observer);
    }

    fn fail(&mut self, reason: String) {
        self.reminder.clear();
        self.body.fail(reason);
    }

    fn answer(
        &mut self,
        ticket: Ticket,
        response: MemResponse,
        lmbs: u64,
        observer: &mut Observer<'_>,
    ) {
        if let Some(machine) = &mut self.machine {
            let delivery = machine.device.answer(&machine.ram, ticket, response);
            tracing::debug!(window = self.body.id, ?response, ?delivery, "answered");
        }
        self.body.last_answer = Some(observer.clock.stamp());
        self.count(observer, |counts| {
            let count = match response {
                MemResponse::Ack | MemResponse::AckState(_) => &mut counts.ack,
                MemResponse::Nack => &mut counts.nack,
                MemResponse::Busy => &mut counts.busy,
                MemResponse::Error => &mut counts.error,
            };
            *count = count.saturating_add(1);
            counts.blocks = counts.blocks.saturating_add(lmbs);
        });
    }

    fn note_request(&mut self, request: MemRequest, observer: &mut Observer<'_>) {
        observer.note_request(observer.clock.now_ns());
        self.count(observer, |counts| {
            let count = match request {
                MemRequest::Plug { .. } => &mut counts.plug,
                MemRequest::Unplug { .. } => &mut counts.unplug,
                MemRequest::UnplugAll => &mut counts.unplug_all,
                MemRequest::State { .. } => &mut counts.state,
            };
            *count = count.saturating_add(1);
        });
    }

    /// The device answers what is no request itself; only the count comes here.
    fn count_malformed(&mut self, observer: &mut Observer<'_>) {
        let Some(machine) = &mut self.machine else {
            return;
        };
        let seen = machine.device.counters().malformed;
        let more = seen.saturating_sub(machine.malformed_seen);
        machine.malformed_seen = seen;
        self.count(observer, |counts| {
            counts.malformed = counts.malformed.saturating_add(more);
        });
    }

    /// Counts for the window and for the operation that runs.
    fn count(&mut self, observer: &mut Observer<'_>, add: impl Fn(&mut RequestCounts)) {
        add(&mut self.counts);
        if let Some(record) = observer.log.running_mut() {
            add(&mut record.shown.requests);
        }
    }
}

impl Window for VirtioWindow {
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
        _clock: &dyn Clock,
    ) -> Result<(), AttachError> {
        let HotplugDevice::VirtioMem(device) = parts.device else {
            return Err(AttachError::OtherDevice);
        };
        self.body
            .attach(parts.access, parts.effects, done, parts.sandbox)?;
        self.machine = Some(Machine {
            malformed_seen: device.counters().malformed,
            device,
            ram: parts.ram,
            ticket: None,
            active_told: Loudness::default(),
            gave_up_told: Loudness::default(),
        });
        self.publish();
        Ok(())
    }

    fn reset(&mut self) {
        self.machine = None;
        self.body.reset();
        self.counts = RequestCounts::default();
        self.reminder.clear();
        self.follow_effect = false;
    }

    fn request(&mut self, wish: &Wish, observer: &mut Observer<'_>) -> Result<(), LedgerError> {
        self.body.ledger.set_requested(wish.lmbs)?;
        self.follow_effect = false;
        self.announce();
        observer.note_announced();
        Ok(())
    }

    fn request_what_is_plugged(&mut self) {
        self.follow_effect = self.body.busy();
        self.follow_plugged();
        self.announce();
    }

    fn serve(&mut self, observer: &mut Observer<'_>) -> bool {
        self.look(observer)
    }

    fn finish(&mut self, observer: &mut Observer<'_>) -> bool {
        let Some(ended) = self.body.take_end(observer.clock.now_ns()) else {
            return false;
        };
        let ticket = self.machine.as_mut().and_then(|m| m.ticket.take());
        if let Some(ticket) = ticket {
            self.conclude(ticket, ended, observer);
        }
        if std::mem::take(&mut self.follow_effect) {
            self.request_what_is_plugged();
        }
        true
    }

    fn reminder_ns(&self) -> Option<u64> {
        self.reminder.due_ns()
    }

    fn remind(&mut self, observer: &mut Observer<'_>) {
        let due = self.reminder.take_due(observer.clock.now_ns());
        if due && !self.settled() && !self.body.has_failed() {
            self.announce();
        }
    }

    fn driver_active(&self) -> bool {
        self.machine
            .as_ref()
            .is_some_and(|machine| machine.device.driver_active())
    }

    fn settled(&self) -> bool {
        let ledger = &self.body.ledger;
        ledger.plugged_lmbs() == ledger.requested_lmbs() && !self.body.busy()
    }

    fn trouble(&self) -> Option<String> {
        if let Some(failure) = self.body.failure() {
            return Some(failure);
        }
        if !self.driver_active() {
            return Some("the guest's driver is not active".to_owned());
        }
        self.body.trouble()
    }

    fn info(&self) -> WindowInfo {
        WindowInfo {
            driver_active: self.driver_active(),
            requests: self.counts,
            ..self.body.info()
        }
    }

    fn check_listed(&self, _: Change, runs: &[LmbRange]) -> Result<(), (u64, LmbState)> {
        // The driver chooses; the coordinator refuses indices before it asks.
        let first = runs.first().map_or(0, |run| run.first().get());
        Err((first, self.body.state_of(first)))
    }

    fn lmbs(&self) -> Vec<LmbRun> {
        self.body.lmbs()
    }
}

fn wire_state(state: lmb_memory::RangeState) -> RangeState {
    match state {
        lmb_memory::RangeState::Plugged => RangeState::Plugged,
        lmb_memory::RangeState::Unplugged => RangeState::Unplugged,
        lmb_memory::RangeState::Mixed => RangeState::Mixed,
    }
}

#[cfg(test)]
#[path = "../tests/window_virtio.rs"]
mod tests;
