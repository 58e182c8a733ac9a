//! The guest of an ACPI memory device, and what the device drives: an interrupt
//! level and a status table.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::acpi_mem::{EJECT, NEXT, NO_NOTICE, OST, StatusTable};
use crate::bus::{BusDevice, LevelLine, lock};

/// An interrupt level.
#[derive(Debug, Default)]
pub struct Level(AtomicBool);

impl Level {
    /// Whether it is high.
    pub fn is_high(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl LevelLine for Level {
    fn set(&self, high: bool) {
        self.0.store(high, Ordering::Relaxed);
    }
}

/// A status table outside of guest memory, all absent at first.
#[derive(Debug)]
pub struct Statuses(Mutex<Vec<u8>>);

impl Statuses {
    /// A table of `lmbs` LMBs.
    pub fn new(lmbs: usize) -> Self {
        Self(Mutex::new(vec![0; lmbs]))
    }

    /// The table as it is.
    pub fn all(&self) -> Vec<u8> {
        lock(&self.0).clone()
    }

    /// The status of one LMB, as \_STA gives it.
    ///
    /// # Panics
    /// When there is no such LMB.
    pub fn get(&self, lmb: u32) -> u8 {
        lock(&self.0)[lmb as usize]
    }
}

impl StatusTable for Statuses {
    fn set(&self, lmb: u32, status: u8) {
        lock(&self.0)[lmb as usize] = status;
    }
}

/// What the guest's AML does with the registers.
pub struct AcpiGuest(Arc<dyn BusDevice>);

impl AcpiGuest {
    /// A guest of this device.
    pub fn new(device: Arc<dyn BusDevice>) -> Self {
        Self(device)
    }

    /// Reads NEXT once: LMB and notify value, if a notice was pending.
    pub fn next(&self) -> Option<(u32, u32)> {
        let mut data = [0; 4];
        self.0.read(NEXT.into(), &mut data);
        let value = u32::from_le_bytes(data);
        (value != NO_NOTICE).then_some((value & 0xffff, value >> 16))
    }

    /// Reads NEXT until no notice is left, as \_EVT does.
    pub fn drain(&self) -> Vec<(u32, u32)> {
        std::iter::from_fn(|| self.next()).collect()
    }

    /// Gives an LMB back, as \_EJ0 does.
    pub fn eject(&self, lmb: u32) {
        self.0.write(EJECT.into(), &lmb.to_le_bytes());
    }

    /// Reports, as \_OST does: low bytes of source event and status.
    pub fn ost(&self, lmb: u32, source: u8, status: u8) {
        let value = (lmb & 0xffff) | u32::from_le_bytes([0, 0, source, status]);
        self.0.write(OST.into(), &value.to_le_bytes());
    }
}
