//! The devices of lmb-vmm: a virtio-mmio transport, virtio-mem on top of it,
//! ACPI memory devices, a serial port, boot marks, and power control.
//!
//! Two parties use a device. vCPU threads reach it through [`BusDevice`], at
//! any time and from several threads at once; such a call holds a lock for
//! microseconds and never waits for the other party. The *owner* (the VMM's
//! event loop) takes requests out and publishes what the guest may read; it is
//! woken through [`OwnerWake`] and interrupts the guest through
//! [`InterruptLine`] or [`LevelLine`]. This crate knows neither KVM nor sockets nor how sizes
//! arise, and holds no unsafe code.
//!
//! Everything a guest writes is taken as hostile: a wrong access is ignored
//! and counted, a wrong request is answered and counted, and no guest input
//! may panic or loop.

#![forbid(unsafe_code)]

pub mod acpi_mem;
mod bus;
pub mod marks;
pub mod mem;
pub mod mmio;
pub mod power;
pub mod serial;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use acpi_mem::{
    AcpiMem, AcpiMemCounters, AcpiMemEvent, Notice, OstSource, OstStatus, StatusTable,
};
pub use bus::{BusDevice, InterruptLine, LevelLine, OwnerWake, Stamp, StampClock};
pub use marks::{BootMarks, Mark, MarkKind};
pub use mem::{
    MemConfig, MemCounters, MemFeatures, MemRequest, MemResponse, RangeState, Ticket, VirtioMem,
};
pub use mmio::{Completion, DriverEvents, MMIO_WINDOW_BYTES};
pub use power::{PowerDevice, PowerRequest};
pub use serial::Serial;
