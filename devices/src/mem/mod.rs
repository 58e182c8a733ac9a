//! virtio-mem (device type 24; virtio 1.2, section 5.15): the guest asks for
//! memory blocks to be plugged and unplugged until it has what is requested.
//!
//! # The way of a request
//!
//! notification → [`OwnerWake`](crate::OwnerWake) → the owner calls
//! [`VirtioMem::next_request`] → it plans, acts and commits, in its own time →
//! [`VirtioMem::answer`]. The [`Ticket`] that goes with a request says which
//! chain the answer belongs to; it is void once the device was reset, since
//! the chain's memory then belongs to somebody else. A reset of the *device*
//! (driver re-probe, kexec) changes neither blocks nor configuration.
//!
//! This module turns bytes into [`MemRequest`]s and [`MemResponse`]s into
//! bytes, and knows nothing of blocks. What is no request at all (no 24
//! readable bytes, an unknown type, a broken chain) is answered ERROR here, or
//! given back empty if there is no room for an answer, and counted; the queue
//! goes on.
//!
//! # Features
//!
//! UNPLUGGED_INACCESSIBLE is offered and required: unplugged memory is out of
//! the guest's reach, and a driver that does not accept that would read it.
//! ACPI_PXM is offered if there is a proximity domain to tell.

mod config;
mod device;
#[cfg(test)]
mod tests;
pub mod wire;

pub use config::{CONFIG_BYTES, MemConfig};
pub use device::{MemCounters, MemFeatures, Ticket, VirtioMem};
pub use wire::{MemRequest, MemResponse, RangeState};

/// Virtio device type of virtio-mem.
pub const DEVICE_ID: u32 = virtio_bindings::virtio_ids::VIRTIO_ID_MEM;
/// Largest size of the request queue.
pub const QUEUE_SIZE: u16 = 128;
/// Feature bit: the configuration names an ACPI proximity domain.
pub const FEATURE_ACPI_PXM: u32 = 0;
/// Feature bit: the guest must not touch unplugged memory.
pub const FEATURE_UNPLUGGED_INACCESSIBLE: u32 = 1;
