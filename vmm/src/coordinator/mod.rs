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

mod begin;
mod end;
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
use lmb_memory::{Layout, LmbCount};
use vmm_sys_util::eventfd::EventFd;

use self::operation::OperationLog;
use self::target::Sizes;
use self::window::{AttachError, Observer, Window};
use crate::protocol::{Hotplug, LmbRun, OperationState};
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
    /// The builder and the configuration disagree.
    #[error(
        "the machine has another memory device than was configured; this is a fault of the VMM"
    )]
    OtherDevice,
    /// A thread could not be started.
    #[error("the effect worker of a window could not be started: {0}; check the limit of threads")]
    Worker(#[source] io::Error),
}

/// Sizes of the layout that never change while the process lives.
#[derive(Clone, Copy, Debug)]
struct Fixed {
    hotplug: Hotplug,
    lmb_bytes: u64,
    boot_lmbs: u64,
    boot_bytes: u64,
    guest_block_bytes: u64,
    slot_bytes: u64,
}

/// See the module's head.
pub struct Coordinator {
    fixed: Fixed,
    windows: Vec<Box<dyn Window>>,
    /// Boot LMBs, as clients see them.
    boot_lmbs: Vec<LmbRun>,
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
        let clock = Arc::new(MonotonicClock);
        Self::with_clock(layout, start_ns, effect_done, clock)
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
            windows.push(window::new(
                layout.hotplug,
                id,
                window,
                layout.lmb_size,
                first_lmb,
            ));
            first_lmb = first_lmb.saturating_add(window.lmbs.get());
        }
        Self {
            fixed: Fixed {
                hotplug: layout.hotplug,
                lmb_bytes: layout.lmb_size.bytes().get(),
                boot_lmbs: layout.boot_lmbs.get(),
                boot_bytes: layout.boot_bytes.get(),
                guest_block_bytes: layout.guest_block.get(),
                slot_bytes: layout.slot_size.get(),
            },
            windows,
            boot_lmbs: report::boot_lmbs(layout),
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
            .attach(parts, Arc::clone(&self.effect_done), &*self.clock)
            .map_err(|error| match error {
                AttachError::OtherDevice => CoordinatorError::OtherDevice,
                AttachError::Worker(error) => CoordinatorError::Worker(error),
            })
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
        for window in &mut self.windows {
            window.reset();
        }
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
            self.follow_windows();
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
        self.follow_windows();
    }

    /// Windows have moved on: what is requested may follow what is plugged, and
    /// an operation may have reached its end.
    fn follow_windows(&mut self) {
        self.tell_agent(self.sizes().requested_lmbs);
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

    /// Whether an effect is in flight, so that [`Coordinator::on_effect_done`]
    /// will have something to do.
    #[cfg(feature = "fuzzing")]
    #[must_use]
    pub fn effect_in_flight(&self) -> bool {
        self.windows.iter().any(|window| window.busy())
    }

    /// When [`Coordinator::on_deadline`] is next to be called, on the clock.
    #[must_use]
    pub fn next_deadline_ns(&self) -> Option<u64> {
        let operation = self.log.running().map(|record| record.deadline_ns);
        let reminders = self
            .windows
            .iter()
            .filter_map(|window| window.reminder_ns());
        reminders.chain(operation).min()
    }

    /// Ends the operation whose deadline has passed and reminds drivers.
    pub fn on_deadline(&mut self, now_ns: u64) {
        let mut observer = Observer {
            log: &mut self.log,
            clock: &*self.clock,
        };
        for window in &mut self.windows {
            if window.reminder_ns().is_some_and(|due_ns| due_ns <= now_ns) {
                window.remind(&mut observer);
            }
        }
        let late = self
            .log
            .running()
            .is_some_and(|record| record.deadline_ns <= now_ns);
        if late {
            let message = self.incomplete_message();
            self.end_operation(OperationState::Incomplete, message);
            self.leave_alone();
        }
    }

    fn sizes(&self) -> Sizes {
        let sum = |lmbs: fn(&dyn Window) -> LmbCount| {
            self.windows.iter().fold(0_u64, |sum, window| {
                sum.saturating_add(lmbs(&**window).get())
            })
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
