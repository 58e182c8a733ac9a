//! One window: its book, its device and its worker brought together.
//!
//! States of the machine's half: absent (before the first start and while the
//! machine is built anew) → idle → effect in flight (a plan is open, the
//! worker has it, later requests wait in the guest's queue) → idle. A window
//! whose effect could not be undone, or whose worker died, has *failed*: it
//! answers BUSY to every change until the machine is built anew, since BUSY is
//! the one answer that breaks no driver.
//!
//! The order is the design's: plan, effect, commit. The VMM's own access to
//! LMBs ends before an unplug's effect begins and starts after a plug's effect
//! ended. The configuration shows LMBs as plugged from before a plug's effect
//! begins until it has failed, if it does: Linux takes a device that shows
//! nothing plugged at its probe for one that needs no UNPLUG_ALL
//! (drivers/virtio/virtio_mem.c, `virtio_mem_init`), and a driver may come at
//! any time. Owner: the coordinator.

mod view;

use std::io;
use std::sync::Arc;

use lmb_devices::{AcpiMem, MemRequest, MemResponse, RangeState, Stamp, Ticket, VirtioMem};
use lmb_memory::{
    AccessMap, GuestRam, Ledger, LmbCount, LmbRange, LmbSize, Plan, PlanKind, Refusal, WindowLayout,
};
use vmm_sys_util::eventfd::EventFd;

use super::loudness::Loudness;
use super::operation::OperationLog;
use super::retry::Reminder;
use super::worker::{
    Completion, EffectError, EffectWorker, Job, Progress, WindowEffects, WorkerGone,
};
use crate::protocol::RequestCounts;
use crate::timeline::Clock;

/// Requests looked at in one go, so that a guest that never stops asking
/// cannot keep the event loop from its other work.
const REQUESTS_AT_ONCE: usize = 256;

/// The device through which the guest and a window's owner speak.
pub enum HotplugDevice {
    /// One virtio-mem device for the window.
    VirtioMem(VirtioMem),
    /// An ACPI memory device for each LMB.
    Acpi(AcpiMem),
}

/// A machine's half of a window, as the builder makes it.
pub struct WindowParts {
    /// The guest's device.
    pub device: HotplugDevice,
    /// Guest memory, where a virtio device's queue lies.
    pub ram: GuestRam,
    /// Which LMBs of the window the VMM itself may touch; none at first.
    pub access: AccessMap,
    /// Host memory and KVM slots of the window, all unplugged.
    pub effects: Box<dyn WindowEffects>,
}

/// A request whose effect runs.
struct InFlight {
    ticket: Ticket,
    plan: Plan,
}

struct Machine {
    device: VirtioMem,
    ram: GuestRam,
    access: AccessMap,
    worker: EffectWorker,
    in_flight: Option<InFlight>,
    slots: u64,
    malformed_seen: u64,
    active_told: Loudness,
    gave_up_told: Loudness,
    undone_told: Loudness,
}

/// Why an effect was not started.
enum NotLaunched {
    /// The device was reset since the request was read.
    Unwanted,
    WorkerGone(WorkerGone),
}

/// What the coordinator lends a window while it works on requests.
pub(super) struct Observer<'a> {
    pub(super) log: &'a mut OperationLog,
    pub(super) clock: &'a dyn Clock,
}

/// One window. See the module's head.
pub(super) struct Window {
    id: u32,
    node: u32,
    first_lmb: u64,
    ledger: Ledger,
    machine: Option<Machine>,
    counts: RequestCounts,
    reminder: Reminder,
    failed: Option<String>,
    last_trouble: Option<String>,
    last_answer: Option<Stamp>,
    /// A cancelled operation left an effect in flight: the target follows it.
    follow_effect: bool,
}

impl Window {
    pub(super) fn new(id: u32, layout: &WindowLayout, lmb: LmbSize, first_lmb: u64) -> Self {
        Self {
            id,
            node: 0,
            first_lmb,
            ledger: Ledger::new(layout, lmb),
            machine: None,
            counts: RequestCounts::default(),
            reminder: Reminder::new(),
            failed: None,
            last_trouble: None,
            last_answer: None,
            follow_effect: false,
        }
    }

    /// Takes the machine's half; the book must show nothing plugged.
    pub(super) fn attach(&mut self, parts: WindowParts, done: Arc<EventFd>) -> io::Result<()> {
        let HotplugDevice::VirtioMem(device) = parts.device else {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "memory devices of ACPI have no coordinator yet; use --hotplug virtio-mem",
            ));
        };
        let number = usize::try_from(self.id).unwrap_or(usize::MAX);
        let worker = EffectWorker::spawn(number, parts.effects, done)?;
        self.machine = Some(Machine {
            malformed_seen: device.counters().malformed,
            device,
            ram: parts.ram,
            access: parts.access,
            slots: worker.slots_at_start(),
            worker,
            in_flight: None,
            active_told: Loudness::default(),
            gave_up_told: Loudness::default(),
            undone_told: Loudness::default(),
        });
        self.publish();
        Ok(())
    }

    /// Lets go of the machine's half and resets the book; what is requested
    /// stays. Waits for an effect in flight, so that host memory and slots are
    /// free afterwards.
    pub(super) fn reset(&mut self) {
        self.machine = None;
        self.ledger.reset();
        self.counts = RequestCounts::default();
        self.reminder.clear();
        self.failed = None;
        self.last_trouble = None;
        self.last_answer = None;
        self.follow_effect = false;
    }

    /// Changes what is requested and tells the guest. Without a change it is
    /// told to look again, which starts a driver that waits.
    pub(super) fn request(&mut self, lmbs: LmbCount) -> Result<(), lmb_memory::LedgerError> {
        self.ledger.set_requested(lmbs)?;
        self.follow_effect = false;
        self.announce();
        Ok(())
    }

    /// Makes the target what is plugged: now, and again when the effect in
    /// flight has ended.
    pub(super) fn request_what_is_plugged(&mut self) {
        self.follow_effect = self.busy();
        self.follow_plugged();
        self.announce();
    }

    fn follow_plugged(&mut self) {
        let plugged = self.ledger.plugged_lmbs();
        if let Err(error) = self.ledger.set_requested(plugged) {
            tracing::error!(%error, "the book refused what it shows as plugged");
        }
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

    /// When the driver is to be reminded, if at all.
    pub(super) fn reminder_ns(&self) -> Option<u64> {
        self.reminder.due_ns()
    }

    /// Reminds the driver if that is due and of use.
    pub(super) fn remind(&mut self, now_ns: u64) {
        if self.reminder.take_due(now_ns) && !self.settled() && self.failed.is_none() {
            self.announce();
        }
    }

    /// Looks at what the driver did. Returns whether requests are left over.
    pub(super) fn serve(&mut self, observer: &mut Observer<'_>) -> bool {
        let Some(machine) = &mut self.machine else {
            return false;
        };
        let events = machine.device.take_events();
        let (window, now_ns) = (self.id, observer.clock.now_ns());
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
        let Some(machine) = self.machine.as_mut().filter(|m| m.in_flight.is_none()) else {
            return false;
        };
        let Some((ticket, request)) = machine.device.next_request(&machine.ram) else {
            return false;
        };
        tracing::debug!(window = self.id, ?request, "guest request");
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
            return Err(match self.ledger.state(addr, u64::from(nb_blocks)) {
                Ok(state) => MemResponse::AckState(wire_state(state)),
                Err(refusal) => self.refusal_answer(&refusal),
            });
        }
        let plan = match request {
            MemRequest::Plug { addr, nb_blocks } => {
                self.ledger.plan_plug(addr, u64::from(nb_blocks))
            }
            MemRequest::Unplug { addr, nb_blocks } => {
                self.ledger.plan_unplug(addr, u64::from(nb_blocks))
            }
            MemRequest::UnplugAll | MemRequest::State { .. } => self.ledger.plan_unplug_all(),
        };
        plan.map_err(|refusal| self.refusal_answer(&refusal))
    }

    fn refusal_answer(&self, refusal: &Refusal) -> MemResponse {
        tracing::debug!(window = self.id, %refusal, "guest request refused");
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
        let Some(machine) = self.machine.as_mut().filter(|_| self.failed.is_none()) else {
            self.give_up(ticket, plan, observer);
            return;
        };
        let runs = plan.runs().to_vec();
        let job = match plan.kind() {
            PlanKind::Plug => Job::Plug(runs),
            PlanKind::Unplug | PlanKind::UnplugAll => Job::Unplug(runs),
        };
        machine.in_flight = Some(InFlight { ticket, plan });
        self.publish();
        if let Err(failure) = self.launch(job) {
            if let NotLaunched::WorkerGone(gone) = failure {
                self.fail(gone.to_string());
            }
            let in_flight = self.machine.as_mut().and_then(|m| m.in_flight.take());
            if let Some(InFlight { ticket, plan }) = in_flight {
                self.give_up(ticket, plan, observer);
            }
        }
    }

    /// Hands the effect in flight, which is published, to the worker.
    fn launch(&self, job: Job) -> Result<(), NotLaunched> {
        let Some(machine) = &self.machine else {
            return Err(NotLaunched::Unwanted);
        };
        // A driver that came before the publishing has seen nothing of this,
        // and the one that asked for it is gone.
        let wanted = machine.in_flight.as_ref();
        if !wanted.is_some_and(|wanted| machine.device.awaits(&wanted.ticket)) {
            return Err(NotLaunched::Unwanted);
        }
        if let Job::Unplug(runs) = &job {
            set_access(&machine.access, runs, false);
        }
        machine.worker.submit(job).map_err(NotLaunched::WorkerGone)
    }

    /// Takes the end of the effect in flight, if it has come. Returns whether
    /// it has.
    pub(super) fn finish(&mut self, observer: &mut Observer<'_>) -> bool {
        let Some(machine) = &mut self.machine else {
            return false;
        };
        let progress = machine.worker.progress();
        if matches!(progress, Progress::Pending) {
            return false;
        }
        let Some(InFlight { ticket, plan }) = machine.in_flight.take() else {
            return false;
        };
        match progress {
            Progress::Pending => {}
            Progress::Ended(completion) => self.conclude(ticket, plan, completion, observer),
            Progress::Dead => {
                self.fail("its effect worker died".to_owned());
                self.give_up(ticket, plan, observer);
            }
        }
        if std::mem::take(&mut self.follow_effect) {
            self.request_what_is_plugged();
        }
        true
    }

    fn conclude(
        &mut self,
        ticket: Ticket,
        plan: Plan,
        completion: Completion,
        observer: &mut Observer<'_>,
    ) {
        let plug = plan.kind() == PlanKind::Plug;
        if let Some(machine) = &mut self.machine {
            machine.slots = completion.slots_in_use;
            // What is plugged after all, or still is, may be touched again.
            let reachable = match completion.result {
                Ok(()) => plug,
                Err(EffectError::Undone(_)) => !plug,
                Err(EffectError::Inconsistent(_)) => false,
            };
            if reachable {
                set_access(&machine.access, plan.runs(), true);
            }
        }
        match completion.result {
            Ok(()) => {
                let lmbs = plan.lmbs().get();
                self.commit(plan);
                self.reminder.clear();
                self.last_trouble = None;
                self.answer(ticket, MemResponse::Ack, lmbs, observer);
            }
            Err(EffectError::Undone(trouble)) => {
                self.tell_undone(&trouble, observer);
                self.last_trouble = Some(trouble);
                self.reminder.arm(observer.clock.now_ns());
                self.give_up(ticket, plan, observer);
            }
            Err(error @ EffectError::Inconsistent(_)) => {
                self.fail(error.to_string());
                self.give_up(ticket, plan, observer);
            }
        }
    }

    fn tell_undone(&mut self, trouble: &str, observer: &Observer<'_>) {
        let (window, now_ns) = (self.id, observer.clock.now_ns());
        let told = self
            .machine
            .as_mut()
            .map(|machine| &mut machine.undone_told);
        if told.is_some_and(|told| told.loud(trouble, now_ns)) {
            tracing::warn!(window, %trouble, "a change of memory failed and was undone");
        } else {
            tracing::debug!(window, %trouble, "a change of memory failed again and was undone");
        }
    }

    fn commit(&mut self, plan: Plan) {
        if !self.ledger.commit(plan) {
            tracing::error!(window = self.id, "the book refused a plan of its own");
        }
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
        self.ledger.abort(plan);
        self.publish();
        self.answer(ticket, MemResponse::Busy, 0, observer);
    }

    fn fail(&mut self, reason: String) {
        tracing::error!(window = self.id, %reason, "a window takes no further change until a reset");
        self.reminder.clear();
        self.failed = Some(reason);
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
            tracing::debug!(window = self.id, ?response, ?delivery, "answered");
        }
        self.last_answer = Some(observer.clock.stamp());
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
        if let Some(record) = observer.log.running_mut() {
            let since = record.since_accepted(observer.clock.now_ns());
            record.shown.timeline.first_request_ns.get_or_insert(since);
        }
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

fn set_access(access: &AccessMap, runs: &[LmbRange], reachable: bool) {
    for &run in runs {
        access.set(run, reachable);
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
#[path = "tests/window.rs"]
mod tests;
