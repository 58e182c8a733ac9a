//! The register side of a virtio-mmio driver.

use std::sync::Arc;

use vm_memory::GuestMemory;

use super::ring::Ring;
use crate::bus::BusDevice;
use crate::mmio::registers::*;

/// The device did not keep FEATURES_OK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeaturesRefused;

/// A driver of one virtio-mmio device.
pub struct MmioDriver {
    bus: Arc<dyn BusDevice>,
}

impl MmioDriver {
    /// A driver that has not touched the device.
    #[must_use]
    pub fn new(bus: Arc<dyn BusDevice>) -> Self {
        Self { bus }
    }

    /// The device's bus side.
    #[must_use]
    pub fn bus(&self) -> &dyn BusDevice {
        &*self.bus
    }

    /// Reads a register.
    #[must_use]
    pub fn read(&self, register: u64) -> u32 {
        let mut word = [0xaa; 4];
        self.bus.read(register, &mut word);
        u32::from_le_bytes(word)
    }

    /// Writes a register.
    pub fn write(&self, register: u64, value: u32) {
        self.bus.write(register, &value.to_le_bytes());
    }

    /// Adds a bit to the status, keeping the others.
    pub fn add_status(&self, bit: u32) {
        self.write(STATUS, self.read(STATUS) | bit);
    }

    /// Identifies the device, resets it, and goes up to DRIVER.
    pub fn begin(&self, device_id: u32) {
        assert_eq!(self.read(MAGIC_VALUE), MAGIC);
        assert_eq!(self.read(VERSION), VERSION_2);
        assert_eq!(self.read(DEVICE_ID), device_id);
        self.write(STATUS, 0);
        assert_eq!(self.read(STATUS), 0, "a reset device has status 0");
        self.add_status(STATUS_ACKNOWLEDGE);
        self.add_status(STATUS_DRIVER);
    }

    /// What the device offers.
    #[must_use]
    pub fn offered_features(&self) -> u64 {
        self.write(DEVICE_FEATURES_SEL, 1);
        let high = self.read(DEVICE_FEATURES);
        self.write(DEVICE_FEATURES_SEL, 0);
        (u64::from(high) << 32) | u64::from(self.read(DEVICE_FEATURES))
    }

    /// Accepts exactly `features`.
    ///
    /// # Errors
    /// If the device refuses them.
    pub fn accept_features(&self, features: u64) -> Result<(), FeaturesRefused> {
        let [a, b, c, d, e, f, g, h] = features.to_le_bytes();
        self.write(DRIVER_FEATURES_SEL, 1);
        self.write(DRIVER_FEATURES, u32::from_le_bytes([e, f, g, h]));
        self.write(DRIVER_FEATURES_SEL, 0);
        self.write(DRIVER_FEATURES, u32::from_le_bytes([a, b, c, d]));
        self.add_status(STATUS_FEATURES_OK);
        if self.read(STATUS) & STATUS_FEATURES_OK == 0 {
            return Err(FeaturesRefused);
        }
        Ok(())
    }

    /// Hands the rings of queue `index` to the device. Returns whether it took
    /// them.
    #[must_use]
    pub fn set_up_queue<M: GuestMemory>(&self, index: u32, ring: &Ring<'_, M>) -> bool {
        self.write(QUEUE_SEL, index);
        assert_eq!(self.read(QUEUE_READY), 0, "queue is set up already");
        assert!(self.read(QUEUE_NUM_MAX) >= u32::from(ring.size()));
        self.write(QUEUE_NUM, u32::from(ring.size()));
        for (low, high, address) in [
            (QUEUE_DESC_LOW, QUEUE_DESC_HIGH, ring.descriptor_table()),
            (QUEUE_DRIVER_LOW, QUEUE_DRIVER_HIGH, ring.available_ring()),
            (QUEUE_DEVICE_LOW, QUEUE_DEVICE_HIGH, ring.used_ring()),
        ] {
            let [a, b, c, d, e, f, g, h] = address.to_le_bytes();
            self.write(low, u32::from_le_bytes([a, b, c, d]));
            self.write(high, u32::from_le_bytes([e, f, g, h]));
        }
        self.write(QUEUE_READY, 1);
        self.read(QUEUE_READY) == 1
    }

    /// Notifies the device of new buffers in queue `index`.
    pub fn notify(&self, index: u32) {
        self.write(QUEUE_NOTIFY, index);
    }

    /// Handles an interrupt: returns its causes and acknowledges them.
    #[must_use]
    pub fn handle_interrupt(&self) -> u32 {
        let causes = self.read(INTERRUPT_STATUS);
        self.write(INTERRUPT_ACK, causes);
        causes
    }

    /// Reads eight bytes of the configuration in two words, again until its
    /// generation stays the same, as Linux's virtio_cread does.
    #[must_use]
    pub fn config_u64(&self, offset: u64) -> u64 {
        loop {
            let before = self.read(CONFIG_GENERATION);
            let low = self.read(CONFIG + offset);
            let high = self.read(CONFIG + offset + 4);
            if self.read(CONFIG_GENERATION) == before {
                return (u64::from(high) << 32) | u64::from(low);
            }
        }
    }
}
