//! One window: its book, its host memory and its guest's half brought
//! together, behind one interface for both ways of hotplug.
//!
//! [`body`] is what every window has. [`virtio`] follows a virtio-mem driver,
//! which chooses the LMBs itself; [`acpi`] chooses them, and follows what the
//! guest answers for each. The coordinator knows windows by [`Window`] alone.

pub(super) mod acpi;
mod body;
pub(super) mod virtio;

use std::io;
use std::sync::Arc;

use lmb_devices::{AcpiMem, Stamp, VirtioMem};
use lmb_memory::{
    AccessMap, Change, GuestRam, Ledger, LedgerError, LmbCount, LmbRange, LmbSize, WindowLayout,
};
use vmm_sys_util::eventfd::EventFd;

use self::body::Body;
use super::operation::OperationLog;
use super::worker::WindowEffects;
use crate::protocol::{Hotplug, LmbChange, LmbRun, LmbState, WindowInfo};
use crate::sandbox::Sandbox;
use crate::timeline::Clock;

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
    /// Confines the thread of the effects.
    pub sandbox: Sandbox,
}

/// Why a window did not take its machine's half.
#[derive(Debug, thiserror::Error)]
pub(super) enum AttachError {
    /// The builder and the configuration disagree.
    #[error("the machine's memory device is of the other kind")]
    OtherDevice,
    /// A thread could not be started.
    #[error(transparent)]
    Worker(#[from] io::Error),
}

/// What the coordinator lends a window while it works.
pub(super) struct Observer<'a> {
    pub(super) log: &'a mut OperationLog,
    pub(super) clock: &'a dyn Clock,
}

impl Observer<'_> {
    /// The guest has been told what the running operation wants of it.
    fn note_announced(&mut self) {
        let now_ns = self.clock.now_ns();
        if let Some(record) = self.log.running_mut() {
            let since = record.since_accepted(now_ns);
            record.shown.timeline.announced_ns.get_or_insert(since);
        }
    }

    /// The guest began to act on the running operation at `at_ns`.
    fn note_request(&mut self, at_ns: u64) {
        if let Some(record) = self.log.running_mut()
            && at_ns >= record.shown.timeline.accepted_ns
        {
            let since = record.since_accepted(at_ns);
            record.shown.timeline.first_request_ns.get_or_insert(since);
        }
    }

    /// LMBs that changed in the running operation.
    fn note_blocks(&mut self, lmbs: u64) {
        if let Some(record) = self.log.running_mut() {
            let blocks = &mut record.shown.requests.blocks;
            *blocks = blocks.saturating_add(lmbs);
        }
    }
}

/// What an operation wants of a window.
#[derive(Clone, Debug, Default)]
pub(super) struct Wish {
    /// LMBs that are to be requested.
    pub(super) lmbs: LmbCount,
    /// The LMBs that are to come or go, if they were named: runs of the
    /// window, ascending.
    pub(super) listed: Option<(Change, Vec<LmbRange>)>,
    /// Whether a removal that cannot be done whole is to be taken back.
    pub(super) all_or_nothing: bool,
}

/// A window, as the coordinator knows it.
pub(super) trait Window {
    /// Its book and host's half.
    fn body(&self) -> &Body;

    /// Takes the machine's half; the book must show nothing plugged.
    fn attach(
        &mut self,
        parts: WindowParts,
        done: Arc<EventFd>,
        clock: &dyn Clock,
    ) -> Result<(), AttachError>;

    /// Lets go of the machine's half and resets the book; what is requested
    /// stays. Waits for an effect in flight, so that host memory and slots are
    /// free afterwards.
    fn reset(&mut self);

    /// Changes what is requested and tells the guest. Without a change the
    /// guest is told to look again, where that starts a driver that waits.
    fn request(&mut self, wish: &Wish, observer: &mut Observer<'_>) -> Result<(), LedgerError>;

    /// Makes the target what is plugged, now and again when the effect in
    /// flight has ended.
    fn request_what_is_plugged(&mut self);

    /// Looks at what the guest did. Returns whether some of that is left over.
    fn serve(&mut self, observer: &mut Observer<'_>) -> bool;

    /// Takes the end of the effect in flight, if it has come. Returns whether
    /// it has.
    fn finish(&mut self, observer: &mut Observer<'_>) -> bool;

    /// When [`Window::remind`] is to be called, if at all.
    fn reminder_ns(&self) -> Option<u64>;

    /// Tries again, or reminds the guest, if that is due and of use.
    fn remind(&mut self, observer: &mut Observer<'_>);

    /// The operation that ran has ended short of its target, and nothing but
    /// the guest works on that any more.
    fn left_alone(&mut self) {}

    /// Whether the guest would act on a request.
    fn driver_active(&self) -> bool;

    /// Whether the guest has what is requested, and nothing is about to change
    /// that.
    fn settled(&self) -> bool;

    /// Whether nothing is under way any more though the guest has not what is
    /// requested, and why, for people.
    fn stalled(&self) -> Option<String> {
        self.failure()
    }

    /// What the guest still works on from before, for people.
    fn waits_behind(&self) -> Option<String> {
        None
    }

    /// Why the guest may not get on, for people.
    fn trouble(&self) -> Option<String>;

    /// The window as clients see it.
    fn info(&self) -> WindowInfo;

    /// What became of each LMB in the running operation, or the last one.
    fn changes(&self) -> Vec<LmbChange> {
        Vec::new()
    }

    /// Whether these LMBs, runs of the window, can come or go by name; else
    /// the first that cannot and how it stands.
    fn check_listed(&self, change: Change, runs: &[LmbRange]) -> Result<(), (u64, LmbState)>;

    /// How its LMBs stand, ascending, runs of equal ones.
    fn lmbs(&self) -> Vec<LmbRun>;

    /// Index of its first LMB in the VM.
    fn first_lmb(&self) -> u64 {
        self.body().first_lmb
    }

    /// Whether an effect runs.
    #[cfg(any(test, feature = "fuzzing"))]
    fn busy(&self) -> bool {
        self.body().busy()
    }

    /// The window as what it is.
    #[cfg(test)]
    fn as_any(&self) -> &dyn std::any::Any;

    /// The same, to be changed.
    #[cfg(test)]
    fn as_any_mut(&mut self) -> &mut dyn std::any::Any;

    /// Its book.
    fn ledger(&self) -> &Ledger {
        &self.body().ledger
    }

    /// Whether it has its machine's half.
    fn attached(&self) -> bool {
        self.body().attached()
    }

    /// Why the window takes no changes until a reset, if so, for people.
    fn failure(&self) -> Option<String> {
        self.body().failure()
    }

    /// When the guest was last answered, or last answered.
    fn last_answer(&self) -> Option<Stamp> {
        self.body().last_answer
    }
}

/// A window of the kind asked for, without its machine's half.
pub(super) fn new(
    hotplug: Hotplug,
    id: u32,
    layout: &WindowLayout,
    lmb: LmbSize,
    first_lmb: u64,
) -> Box<dyn Window> {
    let body = Body::new(id, layout, lmb, first_lmb);
    match hotplug {
        Hotplug::VirtioMem => Box::new(virtio::VirtioWindow::new(body)),
        Hotplug::Acpi => Box::new(acpi::AcpiWindow::new(body)),
    }
}
