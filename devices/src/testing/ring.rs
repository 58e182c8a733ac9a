//! The driver's half of a split virtqueue (virtio 1.2, section 2.7), in guest
//! memory.

use std::sync::atomic::Ordering;

use vm_memory::{Bytes, GuestAddress, GuestMemory};

/// Guest memory that a ring of 128 takes from its base.
pub const RING_AREA_BYTES: u64 = 0x2000;

const AVAILABLE_OFFSET: u64 = 0x1000;
const USED_OFFSET: u64 = 0x1800;
const MAX_SIZE: u16 = 128;

const DESC_NEXT: u16 = 1;
const DESC_WRITE: u16 = 2;
const DESC_INDIRECT: u16 = 4;
const AVAIL_NO_INTERRUPT: u16 = 1;

/// One buffer of a chain, or one raw descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Buffer {
    /// Guest-physical address.
    pub address: u64,
    /// Length.
    pub len_bytes: u32,
    /// Whether the device may write it (else it may read it).
    pub writable: bool,
}

impl Buffer {
    /// A buffer the device reads.
    #[must_use]
    pub fn readable(address: u64, len_bytes: u32) -> Self {
        Self {
            address,
            len_bytes,
            writable: false,
        }
    }

    /// A buffer the device writes.
    #[must_use]
    pub fn writable(address: u64, len_bytes: u32) -> Self {
        Self {
            address,
            len_bytes,
            writable: true,
        }
    }
}

/// A driver's ring.
pub struct Ring<'m, M> {
    mem: &'m M,
    base: u64,
    size: u16,
    event_idx: bool,
    interrupts: bool,
    next_descriptor: u16,
    available: u16,
    notified: u16,
    used: u16,
}

impl<'m, M: GuestMemory> Ring<'m, M> {
    /// A zeroed ring of `size` (at most 128) at `base`, which is aligned to
    /// 4 KiB and has [`RING_AREA_BYTES`] of memory.
    #[must_use]
    pub fn new(mem: &'m M, base: u64, size: u16, event_idx: bool) -> Self {
        assert!(size <= MAX_SIZE && size.is_power_of_two() && base.is_multiple_of(0x1000));
        let len = usize::try_from(RING_AREA_BYTES).expect("small");
        mem.write_slice(&vec![0; len], GuestAddress(base))
            .expect("ring lies in guest memory");
        Self {
            mem,
            base,
            size,
            event_idx,
            interrupts: true,
            next_descriptor: 0,
            available: 0,
            notified: 0,
            used: 0,
        }
    }

    /// Number of descriptors.
    #[must_use]
    pub fn size(&self) -> u16 {
        self.size
    }

    /// Address of the descriptor table.
    #[must_use]
    pub fn descriptor_table(&self) -> u64 {
        self.base
    }

    /// Address of the available ring.
    #[must_use]
    pub fn available_ring(&self) -> u64 {
        self.base + AVAILABLE_OFFSET
    }

    /// Address of the used ring.
    #[must_use]
    pub fn used_ring(&self) -> u64 {
        self.base + USED_OFFSET
    }

    /// Writes one descriptor as it is.
    pub fn write_descriptor(&self, index: u16, buffer: Buffer, next: Option<u16>) {
        let address = self.descriptor_table() + 16 * u64::from(index);
        self.write(address, &descriptor(buffer, next, 0));
    }

    /// Writes one descriptor whose buffer is a table of descriptors, as a
    /// driver may not unless that was negotiated.
    pub fn write_indirect(&self, index: u16, table: &[Buffer], at: u64) {
        for (n, buffer) in (0_u16..).zip(table) {
            let next = (usize::from(n) + 1 < table.len()).then_some(n + 1);
            self.write(at + 16 * u64::from(n), &descriptor(*buffer, next, 0));
        }
        let len_bytes = u32::try_from(16 * table.len()).expect("small");
        let whole = Buffer::readable(at, len_bytes);
        let address = self.descriptor_table() + 16 * u64::from(index);
        self.write(address, &descriptor(whole, None, DESC_INDIRECT));
    }

    /// Makes the chain that starts at `head` available.
    pub fn make_available(&mut self, head: u16) {
        let slot = u64::from(self.available % self.size);
        self.write(self.available_ring() + 4 + 2 * slot, &head.to_le_bytes());
        self.available = self.available.wrapping_add(1);
        self.set_available_index(self.available);
    }

    /// Writes the available index as it is.
    pub fn set_available_index(&self, index: u16) {
        self.mem
            .store(
                index.to_le(),
                GuestAddress(self.available_ring() + 2),
                Ordering::Release,
            )
            .expect("ring lies in guest memory");
    }

    /// Adds a chain of `buffers`, using descriptors round-robin. Returns its
    /// head.
    pub fn add_chain(&mut self, buffers: &[Buffer]) -> u16 {
        let head = self.next_descriptor;
        for (n, buffer) in buffers.iter().enumerate() {
            let index = self.next_descriptor;
            self.next_descriptor = (index + 1) % self.size;
            let next = (n + 1 < buffers.len()).then_some(self.next_descriptor);
            self.write_descriptor(index, *buffer, next);
        }
        self.make_available(head);
        head
    }

    /// Whether the device wants to be notified of what was made available
    /// since the last call.
    #[must_use]
    pub fn needs_notify(&mut self) -> bool {
        std::sync::atomic::fence(Ordering::SeqCst);
        let (old, new) = (self.notified, self.available);
        self.notified = new;
        if self.event_idx {
            let event = self.read_u16(self.used_ring() + 4 + 8 * u64::from(self.size));
            new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
        } else {
            self.read_u16(self.used_ring()) & 1 == 0
        }
    }

    /// Says whether interrupts are wanted for used buffers, as they are at the
    /// start. With event indices this is kept up by [`Self::take_used`].
    pub fn set_interrupts(&mut self, wanted: bool) {
        self.interrupts = wanted;
        if self.event_idx {
            // As Linux does: an index far off means none.
            let index = if wanted {
                self.used
            } else {
                self.used.wrapping_sub(1)
            };
            self.set_used_event(index);
        } else {
            let flags = if wanted { 0 } else { AVAIL_NO_INTERRUPT };
            self.write(self.available_ring(), &u16::to_le_bytes(flags));
        }
    }

    /// With event indices: asks for an interrupt when the device has used the
    /// buffer with this index.
    pub fn set_used_event(&self, index: u16) {
        let address = self.available_ring() + 4 + 2 * u64::from(self.size);
        self.write(address, &index.to_le_bytes());
    }

    /// The device's used index.
    #[must_use]
    pub fn used_index(&self) -> u16 {
        self.read_u16(self.used_ring() + 2)
    }

    /// Takes the next used chain: its head, and how much the device wrote.
    pub fn take_used(&mut self) -> Option<(u16, u32)> {
        if self.used_index() == self.used {
            return None;
        }
        let slot = u64::from(self.used % self.size);
        self.used = self.used.wrapping_add(1);
        let mut bytes = [0; 8];
        self.mem
            .read_slice(&mut bytes, GuestAddress(self.used_ring() + 4 + 8 * slot))
            .expect("ring lies in guest memory");
        if self.event_idx && self.interrupts {
            self.set_used_event(self.used);
        }
        let [a, b, _, _, e, f, g, h] = bytes;
        Some((u16::from_le_bytes([a, b]), u32::from_le_bytes([e, f, g, h])))
    }

    fn read_u16(&self, address: u64) -> u16 {
        let value = self.mem.load(GuestAddress(address), Ordering::Acquire);
        u16::from_le(value.expect("ring lies in guest memory"))
    }

    fn write(&self, address: u64, bytes: &[u8]) {
        self.mem
            .write_slice(bytes, GuestAddress(address))
            .expect("ring lies in guest memory");
    }
}

fn descriptor(buffer: Buffer, next: Option<u16>, more_flags: u16) -> [u8; 16] {
    let mut bytes = [0; 16];
    let write = if buffer.writable { DESC_WRITE } else { 0 };
    let flags = next.map_or(0, |_| DESC_NEXT) | write | more_flags;
    bytes[0..8].copy_from_slice(&buffer.address.to_le_bytes());
    bytes[8..12].copy_from_slice(&buffer.len_bytes.to_le_bytes());
    bytes[12..14].copy_from_slice(&flags.to_le_bytes());
    bytes[14..16].copy_from_slice(&next.unwrap_or(0).to_le_bytes());
    bytes
}
