//! The hotplug coordinator: what clients ask for, what guests request, and
//! what the host does about it, in one place.
//!
//! # The way of a change
//!
//! [`Coordinator::start_operation`] checks a client's request against the
//! books, sets what is requested and announces it. The guest's requests come
//! with [`Coordinator::on_device_wake`]: each is planned in the ledger or
//! refused at once, and its effect handed to the window's worker. The
//! effect's end comes with [`Coordinator::on_effect_done`]: the book is
//! committed (or the plan dropped), the guest answered, and the operation
//! ended once plugged equals requested. [`Coordinator::on_deadline`] ends an
//! operation whose time is up and reminds a driver that got BUSY.
//!
//! # Ownership
//!
//! The event loop's thread owns the coordinator, and the coordinator owns
//! ledgers, devices and operations. Nothing here waits, with one exception: a
//! reset waits for the effect in flight.
//!
//! # States
//!
//! *detached* (no machine: before the first start, and between
//! [`Coordinator::system_reset`] and [`Coordinator::attach`]) → *attached* →
//! *detached*. Books, operations and targets live through a reset.

mod loudness;
mod operation;
mod report;
mod retry;
mod target;
#[cfg(test)]
pub(crate) mod tests;
mod window;
mod worker;

use std::io;
use std::sync::Arc;

use lmb_devices::{BootMarks, Mark, MarkKind, Stamp};
use lmb_memory::{Bytes, Layout, LmbCount};
use vmm_sys_util::eventfd::EventFd;

use self::operation::{OpeningSizes, OperationLog, verb};
use self::target::{Sizes, spread};
use self::window::{Observer, Window};
use crate::protocol::{DEFAULT_TIMEOUT_MS, MemoryAction, MemoryRequest, Operation, OperationState};
use crate::timeline::{BootEvent, BootStamps, Clock, MonotonicClock};

pub use self::operation::{CancelError, HISTORY, OperationCounts, OperationId};
pub use self::target::{MAX_TIMEOUT_MS, RequestError};
pub use self::window::{HotplugDevice, WindowParts};
pub use self::worker::{EffectError, WindowEffects};

/// A machine that does not fit the layout, or a worker that did not start.
#[derive(Debug, thiserror::Error)]
pub enum CoordinatorError {
    /// The builder and the layout disagree.
    #[error("the machine has more windows than its layout, which has {0}")]
    TooManyWindows(usize),
    /// A thread could not be started.
    #[error("the effect worker of a window could not be started: {0}; check the limit of threads")]
    Worker(#[source] io::Error),
}

/// Sizes of the layout that never change while the process lives.
#[derive(Clone, Copy, Debug)]
struct Fixed {
    lmb_bytes: u64,
    boot_lmbs: u64,
    boot_bytes: u64,
    guest_block_bytes: u64,
    slot_bytes: u64,
}

/// See the module's head.
pub struct Coordinator {
    fixed: Fixed,
    windows: Vec<Window>,
    marks: Option<Arc<BootMarks>>,
    log: OperationLog,
    boot: BootStamps,
    clock: Arc<dyn Clock>,
    effect_done: Arc<EventFd>,
    /// Bytes that the guest last reported usable, in this boot.
    last_usable_bytes: Option<u64>,
    /// The newest operation when this boot began: later ones are of this boot.
    before_boot: Option<OperationId>,
}

impl Coordinator {
    /// A coordinator for a VM of this layout, detached, nothing requested.
    /// `start_ns` is when the process started; `effect_done`, which must not
    /// block, is written when [`Coordinator::on_effect_done`] is to be called.
    #[must_use]
    pub fn new(layout: &Layout, start_ns: u64, effect_done: Arc<EventFd>) -> Self {
        Self::with_clock(layout, start_ns, effect_done, Arc::new(MonotonicClock))
    }

    /// The same with another clock.
    #[must_use]
    pub fn with_clock(
        layout: &Layout,
        start_ns: u64,
        effect_done: Arc<EventFd>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let mut first_lmb = layout.boot_lmbs.get();
        let mut windows = Vec::new();
        for (id, window) in (0_u32..).zip(&layout.window) {
            windows.push(Window::new(id, window, layout.lmb_size, first_lmb));
            first_lmb = first_lmb.saturating_add(window.lmbs.get());
        }
        Self {
            fixed: Fixed {
                lmb_bytes: layout.lmb_size.bytes().get(),
                boot_lmbs: layout.boot_lmbs.get(),
                boot_bytes: layout.boot_bytes.get(),
                guest_block_bytes: layout.guest_block.get(),
                slot_bytes: layout.slot_size.get(),
            },
            windows,
            marks: None,
            log: OperationLog::new(),
            boot: BootStamps::begin(start_ns),
            clock,
            effect_done,
            last_usable_bytes: None,
            before_boot: None,
        }
    }

    /// Takes the next window of a newly built machine, nothing of it plugged;
    /// windows come in the layout's order.
    ///
    /// # Errors
    ///
    /// [`CoordinatorError`]; the window stays without its machine's half then.
    pub fn attach(&mut self, parts: WindowParts) -> Result<(), CoordinatorError> {
        let windows = self.windows.len();
        let Some(window) = self.windows.iter_mut().find(|window| !window.attached()) else {
            return Err(CoordinatorError::TooManyWindows(windows));
        };
        window
            .attach(parts, Arc::clone(&self.effect_done))
            .map_err(CoordinatorError::Worker)
    }

    /// Takes the boot-mark device of a newly built machine, which tells the
    /// guest's agent how much memory it should have. The agent is told before
    /// the driver is, so that it knows what a change of memory leads to.
    pub fn attach_marks(&mut self, marks: Arc<BootMarks>) {
        marks.set_target(self.requested_bytes());
        self.marks = Some(marks);
    }

    fn tell_agent(&self, lmbs: u64) {
        if let Some(marks) = &self.marks {
            marks.set_target(lmbs.saturating_mul(self.fixed.lmb_bytes));
        }
    }

    /// Bytes of hotplug memory that the guest should have.
    #[must_use]
    pub fn requested_bytes(&self) -> u64 {
        let lmbs = self.sizes().requested_lmbs;
        lmbs.saturating_mul(self.fixed.lmb_bytes)
    }

    /// The guest was reset: lets go of the machine (waits for an effect in
    /// flight), resets the books and keeps what is requested, so that the
    /// guest plugs it again. `asked_ns` is when the reset was asked for. The
    /// vCPUs must have stopped.
    pub fn system_reset(&mut self, asked_ns: u64) {
        self.abort("the VM was reset; the target stands and the guest plugs it again");
        self.windows.iter_mut().for_each(Window::reset);
        self.marks = None;
        self.last_usable_bytes = None;
        self.before_boot = self.log.newest().map(|record| record.shown.id);
        self.boot.begin_again(self.opening_stamp(asked_ns));
    }

    /// The VM ends: a running operation ends as aborted, so that its client
    /// gets a reply.
    pub fn stop(&mut self) {
        self.abort("the VM was stopped");
    }

    fn abort(&mut self, why: &str) {
        if let Some(record) = self.log.newest_mut() {
            record.usable_expected = false;
        }
        let plugged_bytes = self.total_bytes();
        self.log
            .end(OperationState::Aborted, plugged_bytes, Some(why.to_owned()));
    }

    /// Whether what the guest has is what its boot asked for: no operation of
    /// this boot has changed it.
    fn booting(&self) -> bool {
        self.log.newest().map(|record| record.shown.id) == self.before_boot
    }

    /// A moment just past, with the CPU time used until now.
    fn opening_stamp(&self, at_ns: u64) -> Stamp {
        Stamp {
            monotonic_ns: at_ns,
            cpu_ns: self.clock.stamp().cpu_ns,
        }
    }

    /// Stamps of the latest boot.
    #[must_use]
    pub fn boot(&self) -> &BootStamps {
        &self.boot
    }

    /// Stamps of the latest boot, for the builder to set.
    pub fn boot_mut(&mut self) -> &mut BootStamps {
        &mut self.boot
    }

    /// Serves the guest's requests. To be called at each wake-up by a device
    /// and each notification of a queue; a spurious call is harmless.
    pub fn on_device_wake(&mut self) {
        self.serve();
    }

    /// Takes the ends of effects and goes on with the guest's requests. To be
    /// called when the event descriptor is readable; a spurious call
    /// is harmless.
    pub fn on_effect_done(&mut self) {
        // Emptied before looking, so that an end that comes later is seen.
        // EAGAIN says that there was nothing to empty.
        let _ = self.effect_done.read();
        let mut observer = Observer {
            log: &mut self.log,
            clock: &*self.clock,
        };
        let mut ended = false;
        for window in &mut self.windows {
            ended |= window.finish(&mut observer);
        }
        if ended {
            // A cancelled operation's target follows the effect's end.
            self.tell_agent(self.sizes().requested_lmbs);
            self.complete(true);
        }
        self.serve();
    }

    fn serve(&mut self) {
        let mut observer = Observer {
            log: &mut self.log,
            clock: &*self.clock,
        };
        let mut left = false;
        for window in &mut self.windows {
            left |= window.serve(&mut observer);
        }
        if left && let Err(error) = self.effect_done.write(1) {
            tracing::error!(%error, "guest requests wait until the next wake-up");
        }
        self.complete(true);
    }

    /// Takes a mark of the guest: a stamp of the boot, or its report of how
    /// much hotplugged memory is usable.
    pub fn on_mark(&mut self, mark: Mark) {
        let event = match mark.kind {
            MarkKind::KernelEntry => BootEvent::KernelEntry,
            MarkKind::Init => BootEvent::Init,
            MarkKind::DriverLoaded => BootEvent::DriverLoaded,
            MarkKind::Usable | MarkKind::UsableLate => {
                self.on_usable(mark, mark.kind == MarkKind::UsableLate);
                return;
            }
        };
        self.boot.stamp(event, mark.stamp);
    }

    fn on_usable(&mut self, mark: Mark, late: bool) {
        self.last_usable_bytes = Some(mark.value);
        let requested = self.requested_bytes();
        if requested > 0 && requested == mark.value && self.booting() {
            self.boot.stamp(BootEvent::Usable, mark.stamp);
        }
        let Some(record) = self.log.newest_mut() else {
            return;
        };
        let since = mark
            .stamp
            .monotonic_ns
            .checked_sub(record.shown.timeline.accepted_ns);
        let open = matches!(
            record.shown.state,
            OperationState::Running | OperationState::Done
        );
        let first = record.shown.timeline.usable_ns.is_none();
        if let Some(since) = since
            && open
            && first
            && record.usable_expected
            && record.usable_bytes == mark.value
        {
            record.shown.timeline.usable_ns = Some(since);
            record.shown.timeline.usable_cpu_ns = Some(record.cpu_since_accepted(mark.stamp));
            record.shown.timeline.usable_late = late;
        }
    }

    /// When [`Coordinator::on_deadline`] is next to be called, on the clock.
    #[must_use]
    pub fn next_deadline_ns(&self) -> Option<u64> {
        let operation = self.log.running().map(|record| record.deadline_ns);
        let reminders = self.windows.iter().filter_map(Window::reminder_ns);
        reminders.chain(operation).min()
    }

    /// Ends the operation whose deadline has passed and reminds drivers.
    pub fn on_deadline(&mut self, now_ns: u64) {
        for window in &mut self.windows {
            window.remind(now_ns);
        }
        let late = self
            .log
            .running()
            .is_some_and(|record| record.deadline_ns <= now_ns);
        if late {
            let message = self.incomplete_message();
            let plugged_bytes = self.total_bytes();
            self.log
                .end(OperationState::Incomplete, plugged_bytes, message);
        }
    }

    fn incomplete_message(&self) -> Option<String> {
        let shown = &self.log.running()?.shown;
        let mut message = format!(
            "after {} ms the guest has {} of the {} wanted",
            shown.timeout_ms,
            Bytes::new(self.total_bytes()),
            Bytes::new(shown.target_bytes)
        );
        let trouble = self.windows.iter().find_map(Window::trouble);
        if let Some(trouble) = trouble {
            message.push_str(&format!(" ({trouble})"));
        } else if shown.timeline.first_request_ns.is_none() {
            message.push_str(" (it has asked for nothing)");
        }
        message.push_str("; the target stands and the guest may go on");
        Some(message)
    }

    /// Requests memory from the start, so that the guest plugs it while it
    /// boots; for a VM whose vCPUs have not run yet. `total` includes boot
    /// memory. It is no operation: the boot's stamps tell when it was done.
    ///
    /// # Errors
    ///
    /// [`RequestError`] as for an operation that sets this size.
    pub fn request_at_start(&mut self, total: Bytes) -> Result<(), RequestError> {
        let request = MemoryRequest {
            action: MemoryAction::Set,
            size_bytes: Some(total.get()),
            lmbs: None,
            timeout_ms: DEFAULT_TIMEOUT_MS,
            wait: false,
            wait_usable: false,
            ..MemoryRequest::new(MemoryAction::Set)
        };
        let wanted_lmbs = self.sizes().wanted_lmbs(&request)?;
        let limits: Vec<(u64, u64)> = self.windows.iter().map(window_limits).collect();
        let shares = spread(&limits, wanted_lmbs);
        self.announce(&shares)
    }

    /// Starts an operation; one that runs ends as superseded. `accepted_ns` is
    /// when the request was read whole.
    ///
    /// # Errors
    ///
    /// [`RequestError`]; nothing has changed then, and an operation that runs
    /// goes on.
    pub fn start_operation(
        &mut self,
        request: &MemoryRequest,
        accepted_ns: u64,
    ) -> Result<OperationId, RequestError> {
        let wanted_lmbs = self.sizes().wanted_lmbs(request)?;
        let limits: Vec<(u64, u64)> = self.windows.iter().map(window_limits).collect();
        let shares = spread(&limits, wanted_lmbs);
        self.check_drivers(&shares)?;
        let wanted_bytes = wanted_lmbs.saturating_mul(self.fixed.lmb_bytes);
        let sizes = OpeningSizes {
            from_bytes: self.total_bytes(),
            target_bytes: self.fixed.boot_bytes.saturating_add(wanted_bytes),
            usable_bytes: wanted_bytes,
            lmb_bytes: self.fixed.lmb_bytes,
        };
        let superseded = format!(
            "a later operation ({} to {}) replaced the target",
            verb(request.action),
            Bytes::new(sizes.target_bytes)
        );
        self.log.end(
            OperationState::Superseded,
            sizes.from_bytes,
            Some(superseded),
        );
        let id = self
            .log
            .open(request, self.opening_stamp(accepted_ns), sizes);
        self.announce(&shares)?;
        self.complete(false);
        Ok(id)
    }

    /// Whether each window that has something to do can do it, and has a driver
    /// to do it.
    fn check_drivers(&self, shares: &[u64]) -> Result<(), RequestError> {
        for (window, &share) in self.windows.iter().zip(shares) {
            if !has_work(window, share) {
                continue;
            }
            if !window.attached() {
                return Err(RequestError::Resetting);
            }
            if let Some(failure) = window.failure() {
                return Err(RequestError::WindowFailed(failure));
            }
            if !window.driver_active() {
                return Err(RequestError::DriverNotActive);
            }
        }
        Ok(())
    }

    /// Sets the shares of the operation just opened and tells the guest.
    fn announce(&mut self, shares: &[u64]) -> Result<(), RequestError> {
        self.tell_agent(
            shares
                .iter()
                .fold(0, |sum, &share| sum.saturating_add(share)),
        );
        let mut announced = false;
        for (window, &share) in self.windows.iter_mut().zip(shares) {
            if !has_work(window, share) {
                continue;
            }
            let requested = window.request(LmbCount::new(share));
            if let Err(error) = requested {
                let plugged_bytes = self.total_bytes();
                let message = Some(error.to_string());
                self.log
                    .end(OperationState::Aborted, plugged_bytes, message);
                return Err(RequestError::Books(error.to_string()));
            }
            announced = true;
        }
        if announced && let Some(record) = self.log.running_mut() {
            let since = record.since_accepted(self.clock.now_ns());
            record.shown.timeline.announced_ns = Some(since);
        }
        Ok(())
    }

    /// Ends the running operation if every window has what is requested.
    /// `answered` says that it was an answer to the guest that may have got
    /// there.
    fn complete(&mut self, answered: bool) {
        if !self.windows.iter().all(Window::settled) {
            return;
        }
        if self.log.running().is_none() {
            self.stamp_plugged_at_boot();
            return;
        }
        let plugged_bytes = self.total_bytes();
        let last_answer = self
            .windows
            .iter()
            .filter_map(Window::last_answer)
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
        self.log.end(OperationState::Done, plugged_bytes, None);
    }

    /// A guest that was started with memory requested has it all.
    fn stamp_plugged_at_boot(&mut self) {
        let answered = self
            .windows
            .iter()
            .filter_map(Window::last_answer)
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
        self.windows
            .iter_mut()
            .filter(|window| !window.settled())
            .for_each(Window::request_what_is_plugged);
        self.tell_agent(self.sizes().requested_lmbs);
        let plugged_bytes = self.total_bytes();
        let message = format!(
            "cancelled with {} of the {} wanted; the target is now what the guest has",
            Bytes::new(plugged_bytes),
            Bytes::new(target_bytes)
        );
        self.log
            .end(OperationState::Cancelled, plugged_bytes, Some(message));
        self.operation(id).ok_or(CancelError::Unknown(id))
    }

    fn sizes(&self) -> Sizes {
        let sum = |lmbs: fn(&Window) -> LmbCount| {
            self.windows
                .iter()
                .fold(0_u64, |sum, window| sum.saturating_add(lmbs(window).get()))
        };
        Sizes {
            lmb_bytes: self.fixed.lmb_bytes,
            boot_lmbs: self.fixed.boot_lmbs,
            window_lmbs: sum(|window| window.ledger().total_lmbs()),
            requested_lmbs: sum(|window| window.ledger().requested_lmbs()),
        }
    }

    /// Boot memory and what is plugged.
    fn total_bytes(&self) -> u64 {
        self.windows
            .iter()
            .fold(self.fixed.boot_bytes, |sum, window| {
                sum.saturating_add(window.ledger().config().plugged_size)
            })
    }
}

/// Total and requested LMBs of a window.
fn window_limits(window: &Window) -> (u64, u64) {
    let ledger = window.ledger();
    (ledger.total_lmbs().get(), ledger.requested_lmbs().get())
}

/// Whether requesting `share` LMBs of a window gives its driver work or, as
/// much, takes work from it.
fn has_work(window: &Window, share: u64) -> bool {
    !window.settled() || window.ledger().requested_lmbs().get() != share
}
