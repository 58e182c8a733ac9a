//! The ways in which a kernel reboots beside ACPI's reset register.
//!
//! Linux takes a hardware-reduced platform for one with EFI and reboots by
//! that (arch/x86/kernel/reboot.c); without EFI it falls through to the BIOS,
//! that is, it jumps to the reset vector in real mode. With `reboot=k` it
//! pulls the keyboard controller's reset line. Both end at the power device.

use std::sync::Arc;

use lmb_devices::{BusDevice, PowerDevice, power};

use crate::platform;

/// Keyboard controller command that pulses the CPU's reset line.
const PULSE_RESET: u8 = 0xfe;

/// Sixteen-bit code for the reset vector: writes the reset value to the reset
/// register and halts.
#[must_use]
pub fn stub() -> [u8; 9] {
    let [low, high] = platform::RESET_PORT.to_le_bytes();
    [
        0xba,
        low,
        high, // mov dx, RESET_PORT
        0xb0,
        platform::RESET_VALUE, // mov al, RESET_VALUE
        0xee,                  // out dx, al
        0xf4,                  // hlt
        0xeb,
        0xfd, // jmp to the hlt
    ]
}

/// What is left of a keyboard controller: its reset line.
pub struct KeyboardReset {
    power: Arc<PowerDevice>,
}

impl KeyboardReset {
    /// A line to `power`.
    #[must_use]
    pub fn new(power: Arc<PowerDevice>) -> Self {
        Self { power }
    }
}

impl BusDevice for KeyboardReset {
    /// The status register: nothing waits, so that a command may be written.
    fn read(&self, _offset: u64, data: &mut [u8]) {
        data.fill(0);
    }

    fn write(&self, _offset: u64, data: &[u8]) {
        if data == [PULSE_RESET] {
            self.power
                .write(u64::from(power::RESET), &[platform::RESET_VALUE]);
        }
    }
}

#[cfg(test)]
mod tests {
    use lmb_devices::PowerRequest;
    use lmb_devices::testing::Counter;

    use super::*;

    #[test]
    fn only_the_pulse_command_resets() {
        let power = Arc::new(PowerDevice::new(Arc::new(Counter::default())));
        let keyboard = KeyboardReset::new(Arc::clone(&power));
        for other in [&[0x60][..], &[0xff], &[PULSE_RESET, 0]] {
            keyboard.write(0, other);
            assert_eq!(power.take_request(), None);
        }
        keyboard.write(0, &[PULSE_RESET]);
        assert_eq!(power.take_request(), Some(PowerRequest::Reset));
    }

    #[test]
    fn the_stub_fits_before_the_end_of_the_first_megabyte() {
        let end = crate::boot::RESET_VECTOR + stub().len() as u64;
        assert!(end <= crate::boot::HIGH_START);
    }
}
