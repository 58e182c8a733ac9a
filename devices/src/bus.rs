//! How devices meet the rest of the VMM: the bus towards vCPUs, the interrupt
//! towards the guest, the wake-up towards the owner, and the clock.
//!
//! All are given from outside, so that this crate needs no KVM and no
//! system calls.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// An interrupt of the guest.
///
/// Called without any device lock held, from vCPU threads and the owner.
pub trait InterruptLine: Send + Sync {
    /// Raises the interrupt once (an edge).
    fn trigger(&self);
}

/// A level-triggered interrupt of the guest.
///
/// A level stays until the device lowers it, so a guest that had it masked or
/// had no driver yet still gets it; an edge would be lost.
pub trait LevelLine: Send + Sync {
    /// Sets the level; setting the one it has changes nothing. Called under
    /// the device's lock, so that levels arrive in order; must not call back
    /// into the device.
    fn set(&self, high: bool);
}

/// Wakes the owner of a device, which then looks for what happened.
///
/// Wake-ups may coalesce and may be spurious; the owner looks at all sources.
pub trait OwnerWake: Send + Sync {
    /// Wakes the owner; never blocks.
    fn wake(&self);
}

/// A device on the MMIO or port bus. Called on vCPU threads.
pub trait BusDevice: Send + Sync {
    /// Reads `data.len()` bytes at `offset` bytes from the device's base. The
    /// whole of `data` is filled, with zeros where nothing can be read.
    fn read(&self, offset: u64, data: &mut [u8]);

    /// Writes `data` at `offset` bytes from the device's base.
    fn write(&self, offset: u64, data: &[u8]);
}

/// A moment as the VMM's two clocks tell it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// Nanoseconds of the host's CLOCK_MONOTONIC.
    pub monotonic_ns: u64,
    /// CPU time that the VMM's process, its guest included, has used so far,
    /// nanoseconds. What lies between two moments and is not CPU time was
    /// spent waiting.
    pub cpu_ns: u64,
}

/// Tells the moment. Given by the VMM, since both clocks need system calls.
pub type StampClock = fn() -> Stamp;

/// Locks `mutex`, also after a thread panicked while it held the lock: device
/// state is consistent at every point where a panic could be caught.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
