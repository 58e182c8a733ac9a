//! Driver-side doubles: what a guest does with the devices, for tests here and
//! above and for fuzzing.
//!
//! [`MmioDriver`] drives a transport's registers in the order Linux does
//! (drivers/virtio/virtio_mmio.c), [`Ring`] is the driver's half of a split
//! virtqueue in real guest memory, and [`MemDriver`] puts both together to a
//! virtio-mem driver. [`AcpiGuest`] does what the AML of an ACPI memory device
//! does; [`Level`] and [`Statuses`] stand for what such a device drives. They speak to the device by its bus, its memory and its
//! interrupt alone. They panic where the device does what no device may.

// A double that cannot go on has found a failure of the test that uses it.
#![allow(clippy::expect_used, clippy::panic)]

mod acpi;
mod mem_driver;
mod mmio_driver;
mod ring;

use std::sync::atomic::{AtomicU64, Ordering};

pub use acpi::{AcpiGuest, Level, Statuses};
pub use mem_driver::{Answer, MemDriver, REQUEST_AREA_BYTES, encode_request};
pub use mmio_driver::{FeaturesRefused, MmioDriver};
pub use ring::{Buffer, RING_AREA_BYTES, Ring};

use crate::bus::{InterruptLine, OwnerWake};

/// Counts interrupts or wake-ups.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// How many there were since the last call.
    pub fn take(&self) -> u64 {
        self.0.swap(0, Ordering::Relaxed)
    }
}

impl InterruptLine for Counter {
    fn trigger(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl OwnerWake for Counter {
    fn wake(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}
