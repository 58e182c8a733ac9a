//! The port device.

use std::sync::{Arc, Mutex};

use super::wire::PowerRequest;
use crate::bus::{BusDevice, OwnerWake, lock};

/// The power device.
pub struct PowerDevice {
    pending: Mutex<Option<PowerRequest>>,
    wake: Arc<dyn OwnerWake>,
}

impl PowerDevice {
    /// A device without a request.
    #[must_use]
    pub fn new(wake: Arc<dyn OwnerWake>) -> Self {
        Self {
            pending: Mutex::new(None),
            wake,
        }
    }

    /// The guest's request since the last call.
    #[must_use]
    pub fn take_request(&self) -> Option<PowerRequest> {
        lock(&self.pending).take()
    }
}

impl BusDevice for PowerDevice {
    fn read(&self, _offset: u64, data: &mut [u8]) {
        data.fill(0);
    }

    fn write(&self, offset: u64, data: &[u8]) {
        let [value] = data else {
            return;
        };
        if let Some(request) = PowerRequest::decode(offset, *value) {
            lock(&self.pending).get_or_insert(request);
            self.wake.wake();
        }
    }
}
