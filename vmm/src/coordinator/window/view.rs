//! A window as others see it: its guest, its clients and the coordinator.
//! Computed from the book and the machine's half at the moment of asking.

use lmb_devices::{MemConfig, Stamp};
use lmb_memory::{Ledger, PlanKind};

use super::Window;
use crate::protocol::WindowInfo;

impl Window {
    /// What the device's configuration space is to show: the book, and what is
    /// about to be plugged as if it were. A driver that waits for an answer
    /// does not look before it has it.
    pub(in crate::coordinator) fn config(&self) -> MemConfig {
        let view = self.ledger.config();
        let coming = self
            .machine
            .as_ref()
            .and_then(|machine| machine.in_flight.as_ref())
            .filter(|in_flight| in_flight.plan.kind() == PlanKind::Plug)
            .map_or(0, |in_flight| in_flight.plan.lmbs().get());
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

    pub(in crate::coordinator) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    pub(in crate::coordinator) fn attached(&self) -> bool {
        self.machine.is_some()
    }

    pub(in crate::coordinator) fn driver_active(&self) -> bool {
        self.machine
            .as_ref()
            .is_some_and(|machine| machine.device.driver_active())
    }

    /// Whether an effect runs.
    pub(in crate::coordinator) fn busy(&self) -> bool {
        self.machine
            .as_ref()
            .is_some_and(|machine| machine.in_flight.is_some())
    }

    /// Whether the guest has what is requested, and nothing is about to
    /// change that.
    pub(in crate::coordinator) fn settled(&self) -> bool {
        self.ledger.plugged_lmbs() == self.ledger.requested_lmbs() && !self.busy()
    }

    pub(in crate::coordinator) fn last_answer(&self) -> Option<Stamp> {
        self.last_answer
    }

    /// Why the window takes no changes until a reset, if so, for people.
    pub(in crate::coordinator) fn failure(&self) -> Option<String> {
        let failed = self.failed.as_ref()?;
        Some(format!("window {} takes no changes: {failed}", self.id))
    }

    /// Why the guest may not get on, for people.
    pub(in crate::coordinator) fn trouble(&self) -> Option<String> {
        if let Some(failure) = self.failure() {
            return Some(failure);
        }
        if !self.driver_active() {
            return Some("the guest's driver is not active".to_owned());
        }
        let trouble = self.last_trouble.as_ref()?;
        Some(format!("the last change failed on the host: {trouble}"))
    }

    /// The window as clients see it.
    pub(in crate::coordinator) fn info(&self) -> WindowInfo {
        let view = self.ledger.config();
        WindowInfo {
            id: self.id,
            node: self.node,
            start_address: view.addr,
            size_bytes: view.region_size,
            usable_bytes: view.usable_region_size,
            requested_bytes: view.requested_size,
            plugged_bytes: view.plugged_size,
            total_lmbs: self.ledger.total_lmbs().get(),
            requested_lmbs: self.ledger.requested_lmbs().get(),
            plugged_lmbs: self.ledger.plugged_lmbs().get(),
            first_lmb: self.first_lmb,
            driver_active: self.driver_active(),
            slots: self.machine.as_ref().map_or(0, |machine| machine.slots),
            requests: self.counts,
            acpi: None,
            error: self.failed.clone(),
        }
    }
}
