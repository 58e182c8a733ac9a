//! A 16550 serial port on eight I/O ports, by vm-superio.
//!
//! What the guest writes goes to a sink at once; bytes the sink does not take
//! are lost and counted, as on a line without a listener. What the guest is to
//! read goes into a FIFO of 64 bytes: [`Serial::enqueue`] takes what fits, and
//! when it could not take all, the owner is woken once the guest has read the
//! FIFO empty.

mod device;

pub use device::Serial;

/// I/O ports of COM1.
pub const COM1_PORT_BASE: u16 = 0x3f8;
/// Interrupt of COM1.
pub const COM1_IRQ: u32 = 4;
/// Number of I/O ports.
pub const PORT_COUNT: u16 = 8;
