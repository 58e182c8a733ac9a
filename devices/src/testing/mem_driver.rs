//! A virtio-mem driver.

use std::collections::HashMap;
use std::sync::Arc;

use vm_memory::{Bytes, GuestAddress, GuestMemory};
use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::mmio_driver::{FeaturesRefused, MmioDriver};
use super::ring::{Buffer, RING_AREA_BYTES, Ring};
use crate::bus::BusDevice;
use crate::mem::wire::{
    REQUEST_BYTES, RESPONSE_BYTES, TYPE_PLUG, TYPE_STATE, TYPE_UNPLUG, TYPE_UNPLUG_ALL,
    WireRequest, WireResponse,
};
use crate::mem::{DEVICE_ID, MemConfig, MemRequest, QUEUE_SIZE};
use crate::mmio::registers::{STATUS, STATUS_DRIVER_OK};

/// Guest memory that a driver takes from its base: rings, then a slot of 64
/// bytes for each descriptor head.
pub const REQUEST_AREA_BYTES: u64 = RING_AREA_BYTES + 64 * QUEUE_SIZE as u64;

const SLOT_BYTES: u64 = 64;
const RESPONSE_OFFSET: u64 = 32;
const EVENT_IDX: u32 = 29;
/// What a slot is filled with, to see what the device leaves alone.
const FILL: u8 = 0xee;

/// A used chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Head of the chain.
    pub head: u16,
    /// Bytes the device says it wrote.
    pub written_bytes: u32,
    /// Response type, if all of a response was written.
    pub response_type: Option<u16>,
    /// Response state, likewise.
    pub state: Option<u16>,
}

/// A driver with a live device.
pub struct MemDriver<'m, M> {
    /// The registers.
    pub mmio: MmioDriver,
    /// The request queue.
    pub ring: Ring<'m, M>,
    mem: &'m M,
    slots: u64,
    next_slot: u64,
    responses: HashMap<u16, u64>,
}

impl<'m, M: GuestMemory> MemDriver<'m, M> {
    /// Resets and sets up the device as Linux does, accepting all it offers,
    /// with rings and buffers at `base` ([`REQUEST_AREA_BYTES`] long).
    #[must_use]
    pub fn probe(bus: Arc<dyn BusDevice>, mem: &'m M, base: u64) -> Self {
        match Self::probe_with(bus, mem, base, u64::MAX) {
            Ok(driver) => driver,
            Err(FeaturesRefused) => panic!("device refused the features it offers"),
        }
    }

    /// The same, accepting of the offered features only those in `wanted`.
    ///
    /// # Errors
    /// If the device refuses that.
    pub fn probe_with(
        bus: Arc<dyn BusDevice>,
        mem: &'m M,
        base: u64,
        wanted: u64,
    ) -> Result<Self, FeaturesRefused> {
        let mmio = MmioDriver::new(bus);
        mmio.begin(DEVICE_ID);
        let features = mmio.offered_features() & wanted;
        mmio.accept_features(features)?;
        let event_idx = features & (1 << EVENT_IDX) != 0;
        let ring = Ring::new(mem, base, QUEUE_SIZE, event_idx);
        assert!(mmio.set_up_queue(0, &ring), "device refused its queue");
        mmio.add_status(STATUS_DRIVER_OK);
        assert!(mmio.read(STATUS) & STATUS_DRIVER_OK != 0);
        Ok(Self {
            mmio,
            ring,
            mem,
            slots: base + RING_AREA_BYTES,
            next_slot: 0,
            responses: HashMap::new(),
        })
    }

    /// Sends a request as Linux does and notifies if the device wants it.
    /// Returns the chain's head.
    pub fn send(&mut self, request: MemRequest) -> u16 {
        let head = self.queue(request);
        self.notify();
        head
    }

    /// Queues a request without notifying.
    pub fn queue(&mut self, request: MemRequest) -> u16 {
        self.queue_bytes(encode_request(request, 0).as_bytes())
    }

    /// Queues a request whose readable part is `bytes`, at most 32 of them.
    pub fn queue_bytes(&mut self, bytes: &[u8]) -> u16 {
        let slot = self.slot(bytes);
        let len = u32::try_from(bytes.len()).expect("small");
        self.queue_chain(
            slot,
            &[
                Buffer::readable(slot, len),
                Buffer::writable(slot + RESPONSE_OFFSET, 10),
            ],
        )
    }

    /// A fresh slot of guest memory that begins with `bytes`; a response goes
    /// 32 bytes into it.
    pub fn slot(&mut self, bytes: &[u8]) -> u64 {
        let slot = self.slots + SLOT_BYTES * (self.next_slot % u64::from(QUEUE_SIZE));
        self.next_slot += 1;
        let mut content = [FILL; 64];
        content[..bytes.len()].copy_from_slice(bytes);
        self.mem
            .write_slice(&content, GuestAddress(slot))
            .expect("slots lie in guest memory");
        slot
    }

    /// Queues any chain; its response is looked for 32 bytes into `slot`.
    pub fn queue_chain(&mut self, slot: u64, buffers: &[Buffer]) -> u16 {
        let head = self.ring.add_chain(buffers);
        self.expect_response(head, slot);
        head
    }

    /// Says that the response to the chain at `head` is found 32 bytes into
    /// `slot`.
    pub fn expect_response(&mut self, head: u16, slot: u64) {
        self.responses.insert(head, slot + RESPONSE_OFFSET);
    }

    /// Notifies the device if it wants that; returns whether it did.
    pub fn notify(&mut self) -> bool {
        let needed = self.ring.needs_notify();
        if needed {
            self.mmio.notify(0);
        }
        needed
    }

    /// Takes the next answer. Panics if it is to a chain that is not out.
    pub fn take_answer(&mut self) -> Option<Answer> {
        let (head, written_bytes) = self.ring.take_used()?;
        let address = self
            .responses
            .remove(&head)
            .expect("device used a chain that is not out");
        let mut bytes = [0; RESPONSE_BYTES];
        let whole = u64::from(written_bytes) >= RESPONSE_BYTES as u64;
        let response = whole.then(|| {
            self.mem
                .read_slice(&mut bytes, GuestAddress(address))
                .expect("responses lie in guest memory");
            WireResponse::read_from_bytes(&bytes).expect("same size")
        });
        Some(Answer {
            head,
            written_bytes,
            response_type: response.map(|r| r.response_type.get()),
            state: response.map(|r| r.state.get()),
        })
    }

    /// Reads the configuration, field by field.
    #[must_use]
    pub fn config(&self) -> MemConfig {
        MemConfig {
            block_size: self.mmio.config_u64(0),
            addr: self.mmio.config_u64(16),
            region_size: self.mmio.config_u64(24),
            usable_region_size: self.mmio.config_u64(32),
            plugged_size: self.mmio.config_u64(40),
            requested_size: self.mmio.config_u64(48),
        }
    }
}

/// A request with `padding` in all bytes that mean nothing.
#[must_use]
pub fn encode_request(request: MemRequest, padding: u8) -> WireRequest {
    let (request_type, addr, nb_blocks) = match request {
        MemRequest::Plug { addr, nb_blocks } => (TYPE_PLUG, addr, nb_blocks),
        MemRequest::Unplug { addr, nb_blocks } => (TYPE_UNPLUG, addr, nb_blocks),
        MemRequest::UnplugAll => (
            TYPE_UNPLUG_ALL,
            u64::from_le_bytes([padding; 8]),
            u16::from_le_bytes([padding; 2]),
        ),
        MemRequest::State { addr, nb_blocks } => (TYPE_STATE, addr, nb_blocks),
    };
    const { assert!(REQUEST_BYTES == 24 && RESPONSE_BYTES == 10) };
    WireRequest {
        request_type: U16::new(request_type),
        padding: [padding; 6],
        addr: U64::new(addr),
        nb_blocks: U16::new(nb_blocks),
        padding2: [padding; 6],
    }
}
