//! Boot marks: a guest says "I am here now" and is stamped by the host's
//! clock; it also reads here how much hotplug memory it should have.
//!
//! # Ports
//!
//! Sixteen I/O ports from [`PORT_BASE`], bytes each; wider accesses count as
//! the bytes they consist of, so that one `pwrite` or `pread` of nine bytes on
//! Linux's /dev/port makes or reads a whole record.
//!
//! | port | write | read |
//! |---|---|---|
//! | +0 | code of a mark; the stamp is taken now | 0x4C ("L": the device is here); latches the target |
//! | +1 … +8 | value, u64 little-endian; +8 completes the mark | latched target, u64 little-endian |
//! | +9 … +15 | ignored and counted | 0 |
//!
//! | code | mark | value |
//! |---|---|---|
//! | 1 | kernel entry | unused |
//! | 2 | init runs | unused |
//! | 3 | hotplug driver loaded | unused |
//! | 4 | hotplugged memory usable, seen by event | bytes online |
//! | 5 | the same, found by looking (late) | bytes online |
//!
//! # States
//!
//! idle → (write of +0) open, expecting +1 → … → expecting +8 → queued, idle.
//! A byte out of order drops the open mark and is counted; writing +0 always
//! opens a new one. Complete marks wait in a bounded queue for the owner; one
//! that does not fit is lost and counted. Two writers at once spoil each
//! other's marks, so a guest has one.

mod device;
mod wire;

pub use device::{BootMarks, MarkCounters};
pub use wire::{Mark, MarkKind};

/// First I/O port.
pub const PORT_BASE: u16 = 0x520;
/// Number of I/O ports.
pub const PORT_COUNT: u16 = 16;
/// What port +0 reads as.
pub const PRESENCE: u8 = b'L';
/// Complete marks that wait for the owner at most.
pub const QUEUE_CAPACITY: usize = 1024;
