//! One virtqueue: what the driver wrote into its registers, and once it is
//! ready, the ring itself.
//!
//! States: configurable → ready (rings not looked at) → ready (rings found
//! valid). Back to configurable by QueueReady = 0 or a reset. Whether a fault
//! breaks the device is for the register file to say.

use std::sync::atomic::Ordering;

use virtio_bindings::bindings::virtio_ring::VRING_AVAIL_F_NO_INTERRUPT;
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemory};

use super::chain::Chain;

/// Why a queue cannot be used, or not any longer.
#[derive(Debug, thiserror::Error)]
pub enum QueueFault {
    /// A ring lies outside of guest memory.
    #[error(
        "queue rings are not in guest memory: size {size}, descriptors {desc:#x}, \
         available {avail:#x}, used {used:#x}"
    )]
    OutsideMemory {
        /// Queue size.
        size: u16,
        /// Descriptor table.
        desc: u64,
        /// Available ring.
        avail: u64,
        /// Used ring.
        used: u64,
    },
    /// The available ring names a descriptor that does not exist.
    #[error("available ring names descriptor {head} of a queue of {size}")]
    HeadOutOfRange {
        /// Index found.
        head: u16,
        /// Queue size.
        size: u16,
    },
    /// An entry of the available ring cannot be read, or its index went back.
    #[error("available ring changes under the device or cannot be read")]
    AvailableRing,
    /// Reading or writing a ring failed, or its indices make no sense.
    #[error("queue is unusable: {0}")]
    Ring(#[from] virtio_queue::Error),
}

/// One of the three areas of a queue.
#[derive(Clone, Copy, Debug)]
pub(super) enum Area {
    /// Descriptor table.
    Descriptors,
    /// Available ring.
    Driver,
    /// Used ring.
    Device,
}

/// A queue and its registers.
#[derive(Debug)]
pub(super) struct VirtQueue {
    max_size: u16,
    size: u32,
    descriptors: u64,
    driver: u64,
    device: u64,
    ready: Option<ReadyQueue>,
}

#[derive(Debug)]
struct ReadyQueue {
    ring: Queue,
    /// The rings were found to lie within guest memory.
    checked: bool,
}

impl VirtQueue {
    pub(super) fn new(max_size: u16) -> Self {
        Self {
            max_size,
            size: u32::from(max_size),
            descriptors: 0,
            driver: 0,
            device: 0,
            ready: None,
        }
    }

    pub(super) fn reset(&mut self) {
        *self = Self::new(self.max_size);
    }

    pub(super) fn max_size(&self) -> u16 {
        self.max_size
    }

    pub(super) fn is_ready(&self) -> bool {
        self.ready.is_some()
    }

    /// Takes the driver's size as it is; [`Self::enable`] judges it.
    pub(super) fn set_size(&mut self, size: u32) {
        self.size = size;
    }

    pub(super) fn set_address_low(&mut self, area: Area, low: u32) {
        let address = self.area(area);
        *address = (*address & !0xffff_ffff) | u64::from(low);
    }

    pub(super) fn set_address_high(&mut self, area: Area, high: u32) {
        let address = self.area(area);
        *address = (*address & 0xffff_ffff) | (u64::from(high) << 32);
    }

    fn area(&mut self, area: Area) -> &mut u64 {
        match area {
            Area::Descriptors => &mut self.descriptors,
            Area::Driver => &mut self.driver,
            Area::Device => &mut self.device,
        }
    }

    /// Puts the queue to use with the registers as they are. Whether the rings
    /// lie in guest memory is seen at the first pop, since vCPU threads have
    /// no guest memory at hand.
    ///
    /// # Errors
    /// If size or alignment are not legal; the queue stays configurable.
    pub(super) fn enable(&mut self, event_idx: bool) -> Result<(), virtio_queue::Error> {
        let size = u16::try_from(self.size).map_err(|_| virtio_queue::Error::InvalidSize)?;
        let mut ring = Queue::new(self.max_size)?;
        ring.try_set_size(size)?;
        ring.try_set_desc_table_address(GuestAddress(self.descriptors))?;
        ring.try_set_avail_ring_address(GuestAddress(self.driver))?;
        ring.try_set_used_ring_address(GuestAddress(self.device))?;
        ring.set_event_idx(event_idx);
        ring.set_ready(true);
        self.ready = Some(ReadyQueue {
            ring,
            checked: false,
        });
        Ok(())
    }

    /// Takes the queue out of use. Returns whether it was in use.
    pub(super) fn disable(&mut self) -> bool {
        self.ready.take().is_some()
    }

    /// Takes the next chain, or arranges to be notified of the next one and
    /// returns `None`.
    pub(super) fn pop<M: GuestMemory>(
        &mut self,
        mem: &M,
    ) -> Result<Option<(u16, Chain)>, QueueFault> {
        let Some(queue) = self.ready.as_mut() else {
            return Ok(None);
        };
        queue.check(mem)?;
        // A chain may appear between finding the ring empty and asking to be
        // notified, so the second look is needed, and decides.
        for _ in 0..2 {
            let next = queue.ring.iter(mem)?.next();
            if let Some(descriptors) = next {
                let (head, size) = (descriptors.head_index(), queue.ring.size());
                if head >= size {
                    return Err(QueueFault::HeadOutOfRange { head, size });
                }
                let table = GuestAddress(queue.ring.desc_table());
                return Ok(Some((head, Chain::collect(mem, table, size, head))));
            }
            if !queue.ring.enable_notification(mem)? {
                return Ok(None);
            }
        }
        Err(QueueFault::AvailableRing)
    }

    /// Gives the chain at `head` back with `len_bytes` bytes written. Returns
    /// whether the driver wants an interrupt.
    pub(super) fn complete<M: GuestMemory>(
        &mut self,
        mem: &M,
        head: u16,
        len_bytes: u32,
    ) -> Result<bool, QueueFault> {
        let Some(queue) = self.ready.as_mut() else {
            return Ok(false);
        };
        queue.ring.add_used(mem, head, len_bytes)?;
        // Also orders the used index before the flags read below.
        let wanted = queue.ring.needs_notification(mem)?;
        if queue.ring.event_idx_enabled() {
            return Ok(wanted);
        }
        // virtio-queue leaves the driver's flag to its user (virtio 1.2,
        // section 2.7.7.2).
        let flags = mem
            .load(GuestAddress(queue.ring.avail_ring()), Ordering::Relaxed)
            .map(u16::from_le)
            .map_err(virtio_queue::Error::GuestMemory)?;
        Ok(u32::from(flags) & VRING_AVAIL_F_NO_INTERRUPT == 0)
    }
}

impl ReadyQueue {
    fn check<M: GuestMemory>(&mut self, mem: &M) -> Result<(), QueueFault> {
        if !self.checked {
            if !self.ring.is_valid(mem) {
                return Err(QueueFault::OutsideMemory {
                    size: self.ring.size(),
                    desc: self.ring.desc_table(),
                    avail: self.ring.avail_ring(),
                    used: self.ring.used_ring(),
                });
            }
            self.checked = true;
        }
        Ok(())
    }
}
