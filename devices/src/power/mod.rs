//! Power control of a hardware-reduced ACPI machine (ACPI 6.5, sections
//! 4.8.3.7 and 4.8.4.6): power off and reset.
//!
//! # Ports
//!
//! Three I/O ports from [`PORT_BASE`], bytes each.
//!
//! | port | FADT field | write | read |
//! |---|---|---|---|
//! | +0 | SLEEP_CONTROL_REG | bit 5 (SLP_EN) with bits 2–4 (SLP_TYP) = [`SLEEP_TYPE_S5`]: power off | 0 |
//! | +1 | SLEEP_STATUS_REG | ignored | 0 (no wake status) |
//! | +2 | RESET_REG | [`RESET_VALUE`]: reset | 0 |
//!
//! # States
//!
//! idle → request pending → (the owner takes it) idle. The first request
//! stands until it is taken; other values are ignored.

mod device;
mod wire;

pub use device::PowerDevice;
pub use wire::PowerRequest;

/// First I/O port.
pub const PORT_BASE: u16 = 0x600;
/// Number of I/O ports.
pub const PORT_COUNT: u16 = 3;
/// Offset of the sleep control register.
pub const SLEEP_CONTROL: u16 = 0;
/// Offset of the sleep status register.
pub const SLEEP_STATUS: u16 = 1;
/// Offset of the reset register.
pub const RESET: u16 = 2;
/// The sleep type that means "off", to be given as \_S5's first element.
pub const SLEEP_TYPE_S5: u8 = 5;
/// What is written to the reset register, to be given as RESET_VALUE.
pub const RESET_VALUE: u8 = 1;
