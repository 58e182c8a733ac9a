//! Where a vCPU's port and MMIO accesses go.
//!
//! Built once with the machine and never changed while vCPUs run, so that they
//! look devices up without a lock. An access that meets no device reads as all
//! ones and is dropped when written, as on a PC.

use std::sync::Arc;

use lmb_devices::BusDevice;

/// A device and the addresses it answers.
struct Slot {
    start: u64,
    end: u64,
    device: Arc<dyn BusDevice>,
}

/// The devices of one machine by address.
#[derive(Default)]
pub struct Bus {
    io: Vec<Slot>,
    mmio: Vec<Slot>,
}

impl Bus {
    /// Adds a device on `count` I/O ports from `port`.
    pub fn add_io(&mut self, port: u16, count: u16, device: Arc<dyn BusDevice>) {
        self.io.push(Slot {
            start: u64::from(port),
            end: u64::from(port) + u64::from(count),
            device,
        });
    }

    /// Adds a device on `size_bytes` of guest-physical space from `address`.
    pub fn add_mmio(&mut self, address: u64, size_bytes: u64, device: Arc<dyn BusDevice>) {
        self.mmio.push(Slot {
            start: address,
            end: address.saturating_add(size_bytes),
            device,
        });
    }

    /// A guest's OUT. The device sees the access as the guest made it; it takes
    /// the widths it knows and ignores others.
    pub fn io_write(&self, port: u16, data: &[u8]) {
        if let Some(slot) = find(&self.io, u64::from(port)) {
            slot.device.write(u64::from(port) - slot.start, data);
        }
    }

    /// A guest's IN.
    pub fn io_read(&self, port: u16, data: &mut [u8]) {
        data.fill(0xff);
        if let Some(slot) = find(&self.io, u64::from(port)) {
            slot.device.read(u64::from(port) - slot.start, data);
        }
    }

    /// A guest's store outside RAM.
    pub fn mmio_write(&self, address: u64, data: &[u8]) {
        if let Some(slot) = find(&self.mmio, address) {
            slot.device.write(address - slot.start, data);
        }
    }

    /// A guest's load outside RAM.
    pub fn mmio_read(&self, address: u64, data: &mut [u8]) {
        data.fill(0xff);
        if let Some(slot) = find(&self.mmio, address) {
            slot.device.read(address - slot.start, data);
        }
    }
}

fn find(slots: &[Slot], address: u64) -> Option<&Slot> {
    slots
        .iter()
        .find(|slot| (slot.start..slot.end).contains(&address))
}
