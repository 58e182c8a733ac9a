//! The virtio-mmio transport, version 2 (virtio 1.2, section 4.2), written
//! once for all devices.
//!
//! # States
//!
//! ```text
//!            ACKNOWLEDGE    DRIVER          FEATURES_OK         DRIVER_OK
//!   reset ──────────────▶ ────────▶ features ─────────▶ queues ─────────▶ live
//!     ▲                                 (refused: the bit is not kept)     │
//!     │ status = 0, from every state                                       │ a queue broke
//!     └──────────────────────────────────────────────────── needs reset ◀──┘
//! ```
//!
//! Feature registers are writable between DRIVER and FEATURES_OK, queue
//! registers between FEATURES_OK and DRIVER_OK while the queue is not ready,
//! and notifications count only when live. A write at another time, of a wrong
//! width or to no register is ignored and counted.
//!
//! # Ownership
//!
//! Registers and queues sit behind one mutex, held for microseconds by vCPU
//! threads (register accesses) and by the owner (one chain popped or
//! completed, the configuration replaced). The owner works on a popped chain
//! without the lock. A reset moves the *epoch* on, under the lock, so that a
//! chain popped before it can no longer be completed: its memory belongs to
//! another driver by then.
//!
//! A queue is used only after its rings were found inside guest memory, at the
//! owner's first look. Rings that are not, or that later turn out unreadable
//! or inconsistent, break the queue: DEVICE_NEEDS_RESET is set and announced
//! by a configuration interrupt, and nothing of the queue is touched again
//! before a reset.

mod chain;
mod queue;
mod register_file;
pub mod registers;
#[cfg(test)]
mod tests;
mod transport;

pub use chain::{Chain, ChainDefect, Segment};
pub use queue::QueueFault;
pub use register_file::{DriverEvents, TransportCounters};
pub use transport::{Completion, MmioTransport, PoppedChain, TransportConfig};

/// Bytes of MMIO space a device answers to: registers, then up to 0x100 bytes
/// of configuration space.
pub const MMIO_WINDOW_BYTES: u64 = 0x200;
