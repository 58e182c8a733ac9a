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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Counter;

    fn power() -> (PowerDevice, Arc<Counter>) {
        let wake = Arc::new(Counter::default());
        (PowerDevice::new(wake.clone()), wake)
    }

    #[test]
    fn sleep_type_five_with_the_enable_bit_is_off() {
        for value in 0..=u8::MAX {
            let (power, wake) = power();
            power.write(0, &[value]);
            // Bits 0, 1, 6 and 7 are reserved and mean nothing.
            let off = value & 0b0011_1100 == 0b0011_0100;
            let expected = off.then_some(PowerRequest::Off);
            assert_eq!(power.take_request(), expected, "{value:#x}");
            assert_eq!(wake.take(), u64::from(off));
        }
    }

    #[test]
    fn one_in_the_reset_register_is_reset() {
        for value in 0..=u8::MAX {
            let (power, _) = power();
            power.write(2, &[value]);
            let expected = (value == 1).then_some(PowerRequest::Reset);
            assert_eq!(power.take_request(), expected, "{value:#x}");
        }
    }

    #[test]
    fn the_first_request_stands_until_taken() {
        let (power, wake) = power();
        power.write(2, &[1]);
        power.write(0, &[0x34]);
        assert_eq!(wake.take(), 2);
        assert_eq!(power.take_request(), Some(PowerRequest::Reset));
        assert_eq!(power.take_request(), None);
        power.write(0, &[0x34]);
        assert_eq!(power.take_request(), Some(PowerRequest::Off));
    }

    #[test]
    fn other_ports_and_widths_do_nothing() {
        let (power, wake) = power();
        power.write(1, &[0x34]);
        power.write(3, &[1]);
        power.write(u64::MAX, &[1]);
        power.write(0, &[0x34, 0]);
        power.write(2, &[1, 0, 0, 0]);
        power.write(0, &[]);
        assert_eq!(power.take_request(), None);
        assert_eq!(wake.take(), 0);
        for port in 0..3 {
            let mut data = [0xaa; 2];
            power.read(port, &mut data);
            assert_eq!(data, [0, 0]);
        }
    }
}
