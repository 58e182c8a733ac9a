//! ACPI memory devices: the register block through which a guest learns that
//! LMBs come and go, gives them back, and says how it went.
//!
//! The guest's side is AML (ACPI 6.5): a generic event device (5.6.9) whose
//! \_EVT reads notices and passes each on with Notify, and one memory device
//! (9.11) for each LMB with \_STA, \_EJ0 and \_OST (6.3). This module knows
//! LMBs as numbers from 0 within the window and nothing of addresses.
//!
//! # Registers
//!
//! Sixteen I/O ports from [`PORT_BASE`]. Only aligned 32-bit accesses at these
//! offsets are registers; other reads give ones, other writes are ignored, and
//! both are counted.
//!
//! | offset | access | meaning |
//! |---|---|---|
//! | +0 NEXT | read | takes the oldest notice: LMB in bits 0..=15, notify value in bits 16..=31 (1 device check, 3 eject request); [`NO_NOTICE`] when there is none |
//! | +4 EJECT | write | gives back the LMB with this number (\_EJ0) |
//! | +8 OST | write | LMB in bits 0..=15, low byte of \_OST's source event in bits 16..=23, low byte of its status in bits 24..=31 |
//! | +12 | | reserved |
//!
//! The interrupt is a level: high while notices are pending, and once from
//! power-on as a greeting. The first read of NEXT ends the greeting and tells
//! the owner that the guest's event device works. A level stays until the
//! guest has looked, also where its driver was not yet there or had the
//! interrupt masked.
//!
//! \_STA is no register. It is a byte for each LMB in a [`StatusTable`] in
//! guest memory, so that a boot with thousands of empty LMBs costs no exit. The
//! VMM writes the table and never reads it: a guest that overwrites it deceives
//! nobody but itself.
//!
//! # States of an LMB
//!
//! absent → (the owner's [`AcpiMem::show`]) present → absent, by the guest's
//! EJECT or by the owner. EJECT clears the status before the write returns,
//! since Linux reads \_STA right after \_EJ0; the owner learns of it as
//! [`AcpiMemEvent::Ejected`]. Until it has taken that event, `show` does not
//! make the LMB present again. At most one notice of an LMB is pending; it goes
//! with its LMB.
//!
//! # Bounds
//!
//! For each LMB one eject and the latest \_OST wait for the owner. A guest that
//! writes more overwrites its own.

mod device;
#[cfg(test)]
mod tests;
mod wire;

pub use device::{AcpiMem, AcpiMemCounters, AcpiMemEvent, StatusTable};
pub use wire::{Notice, OstSource, OstStatus};

/// First I/O port.
pub const PORT_BASE: u16 = 0x620;
/// Number of I/O ports.
pub const PORT_COUNT: u16 = 16;
/// Offset of NEXT.
pub const NEXT: u16 = 0;
/// Offset of EJECT.
pub const EJECT: u16 = 4;
/// Offset of OST.
pub const OST: u16 = 8;
/// What NEXT reads as when no notice is pending.
pub const NO_NOTICE: u32 = u32::MAX;
/// Most LMBs of a device.
pub const MAX_LMBS: u32 = 4096;
/// \_STA of an LMB that the guest has or may take: present, enabled, shown,
/// functioning (ACPI 6.5, 6.3.7).
pub const STATUS_PRESENT: u8 = 0x0f;
/// \_STA of an LMB that is not there.
pub const STATUS_ABSENT: u8 = 0;
