//! The device: chains to requests, answers to chains, the snapshot that the
//! guest reads. The owner alone calls it.

use std::sync::Arc;

use vm_memory::GuestMemory;
use zerocopy::{FromBytes, IntoBytes};

use super::config::MemConfig;
use super::wire::{
    MemRequest, MemResponse, REQUEST_BYTES, RESPONSE_BYTES, WireRequest, WireResponse,
};
use super::{DEVICE_ID, FEATURE_ACPI_PXM, FEATURE_UNPLUGGED_INACCESSIBLE, QUEUE_SIZE};
use crate::bus::{BusDevice, InterruptLine, OwnerWake};
use crate::mmio::{
    Chain, ChainDefect, Completion, DriverEvents, MmioTransport, PoppedChain, TransportConfig,
    TransportCounters,
};

const REQUEST_QUEUE: usize = 0;

/// Which optional features a device offers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemFeatures {
    /// ACPI proximity domain of the window: offers ACPI_PXM and stands in the
    /// configuration's `node_id`.
    pub acpi_pxm: Option<u16>,
}

/// The right to answer one request, once.
#[derive(Debug)]
#[must_use]
pub struct Ticket(PoppedChain);

/// Counts since the device was made; all stay 0 with a well-behaved driver,
/// but for `transport.stale_completions`, which a reset at a bad time causes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemCounters {
    /// Chains that were no legal request.
    pub malformed: u64,
    /// The transport's counts.
    pub transport: TransportCounters,
}

/// Why a chain is no request.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum Malformed {
    #[error(transparent)]
    Chain(#[from] ChainDefect),
    #[error("{0} readable bytes where a request has {REQUEST_BYTES}")]
    Truncated(u64),
    #[error("request does not lie in guest memory")]
    Unreadable,
    #[error("no room in guest memory for a response of {RESPONSE_BYTES} bytes")]
    NoRoom,
    #[error("unknown request type {0}")]
    UnknownType(u16),
}

/// A virtio-mem device.
pub struct VirtioMem {
    transport: Arc<MmioTransport>,
    node_id: u16,
    malformed: u64,
}

impl VirtioMem {
    /// A device without a driver, whose configuration space shows `config`.
    #[must_use]
    pub fn new(
        config: MemConfig,
        features: MemFeatures,
        line: Arc<dyn InterruptLine>,
        wake: Arc<dyn OwnerWake>,
    ) -> Self {
        let node_id = features.acpi_pxm.unwrap_or(0);
        let pxm = u64::from(features.acpi_pxm.is_some()) << FEATURE_ACPI_PXM;
        let transport = MmioTransport::new(
            &TransportConfig {
                device_id: DEVICE_ID,
                features: pxm,
                required_features: 1 << FEATURE_UNPLUGGED_INACCESSIBLE,
                queue_sizes: vec![QUEUE_SIZE],
                config_space: config.to_wire(node_id).to_vec(),
            },
            line,
            wake,
        );
        Self {
            transport: Arc::new(transport),
            node_id,
            malformed: 0,
        }
    }

    /// The device as the MMIO bus sees it, [`crate::MMIO_WINDOW_BYTES`] long.
    #[must_use]
    pub fn bus_device(&self) -> Arc<dyn BusDevice> {
        self.transport.clone()
    }

    /// Replaces what the guest reads, as one. Does not tell the guest.
    pub fn publish(&self, config: MemConfig) {
        self.transport.publish_config(&config.to_wire(self.node_id));
    }

    /// Tells the driver that usable or requested size changed, or asks it to
    /// look again (a spare interrupt cuts Linux's wait after BUSY short). A
    /// driver that is still setting up is told when it becomes active; without
    /// a driver nothing happens.
    pub fn config_interrupt(&self) {
        self.transport.announce_config();
    }

    /// Whether a driver is active (DRIVER_OK, and neither failed nor broken).
    #[must_use]
    pub fn driver_active(&self) -> bool {
        self.transport.driver_active()
    }

    /// What drivers did since the last call.
    #[must_use]
    pub fn take_events(&self) -> DriverEvents {
        self.transport.take_events()
    }

    /// What was wrong so far.
    #[must_use]
    pub fn counters(&self) -> MemCounters {
        MemCounters {
            malformed: self.malformed,
            transport: self.transport.counters(),
        }
    }

    /// The next request. `None` when there is none, or no driver is active;
    /// the owner is woken when that changes.
    ///
    /// To be called after each wake-up and each answer, until it gives `None`:
    /// a driver need not notify of a request while earlier ones are out.
    /// Malformed chains in between are answered here, at most a queue's worth
    /// in one call.
    pub fn next_request<M: GuestMemory>(&mut self, mem: &M) -> Option<(Ticket, MemRequest)> {
        for _ in 0..QUEUE_SIZE {
            let popped = self.transport.pop(REQUEST_QUEUE, mem)?;
            match parse(mem, popped.chain()) {
                Ok(request) => return Some((Ticket(popped), request)),
                Err(reason) => self.refuse(mem, popped, &reason),
            }
        }
        // Others may want the owner's time; the rest comes with its next round.
        self.transport.wake_owner();
        None
    }

    /// Whether an answer to the request of `ticket` would reach the driver: the
    /// device was not reset since.
    #[must_use]
    pub fn awaits(&self, ticket: &Ticket) -> bool {
        self.transport.awaits(&ticket.0)
    }

    /// Answers the request of `ticket`, and interrupts the driver if it wants
    /// that. Tells what became of the answer: one to a device that was reset
    /// since is dropped.
    pub fn answer<M: GuestMemory>(
        &mut self,
        mem: &M,
        ticket: Ticket,
        response: MemResponse,
    ) -> Completion {
        let wire = WireResponse::from(response);
        self.transport.complete(mem, ticket.0, wire.as_bytes())
    }

    fn refuse<M: GuestMemory>(&mut self, mem: &M, popped: PoppedChain, reason: &Malformed) {
        tracing::debug!(%reason, "malformed virtio-mem request");
        self.malformed = self.malformed.saturating_add(1);
        if popped.chain().can_write(mem, RESPONSE_BYTES) {
            self.answer(mem, Ticket(popped), MemResponse::Error);
        } else {
            self.transport.complete(mem, popped, &[]);
        }
    }
}

/// The request in `chain`. Room for the answer is checked first, so that
/// nothing is done whose outcome could not be told.
fn parse<M: GuestMemory>(mem: &M, chain: &Chain) -> Result<MemRequest, Malformed> {
    if let Some(defect) = chain.defect() {
        return Err(defect.into());
    }
    if !chain.can_write(mem, RESPONSE_BYTES) {
        return Err(Malformed::NoRoom);
    }
    if chain.readable_bytes() < REQUEST_BYTES as u64 {
        return Err(Malformed::Truncated(chain.readable_bytes()));
    }
    let mut bytes = [0; REQUEST_BYTES];
    chain
        .read(mem, &mut bytes)
        .map_err(|_| Malformed::Unreadable)?;
    let request = WireRequest::read_from_bytes(&bytes).map_err(|_| Malformed::Unreadable)?;
    request
        .decode()
        .ok_or(Malformed::UnknownType(request.request_type.get()))
}
