//! Registers, status and queues of one device, without locks or interrupts:
//! each operation returns what the transport has to do outside of the lock.

use virtio_bindings::bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;

use super::queue::{Area, QueueFault, VirtQueue};
use super::registers::*;
use super::transport::TransportConfig;

const DRIVER_STATUS_BITS: u32 = STATUS_ACKNOWLEDGE
    | STATUS_DRIVER
    | STATUS_DRIVER_OK
    | STATUS_FEATURES_OK
    | STATUS_NEEDS_RESET
    | STATUS_FAILED;

/// What drivers did since the owner last looked. Several may have happened; the
/// order is always reset (if any), then activation, then failure, of the
/// newest driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriverEvents {
    /// The device was reset: chains popped before are void.
    pub reset: bool,
    /// A driver became active. Whether it still is tells `driver_active`.
    pub activated: bool,
    /// The driver gave up (status FAILED).
    pub failed: bool,
    /// A queue broke; the driver has to reset the device.
    pub needs_reset: bool,
}

impl DriverEvents {
    /// Whether anything happened.
    #[must_use]
    pub fn any(self) -> bool {
        self.reset || self.activated || self.failed || self.needs_reset
    }
}

/// Counts of what a well-behaved driver never causes, since the device was
/// made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransportCounters {
    /// Ignored register accesses: of a wrong width, to no register, or at a
    /// time that the state does not allow.
    pub ignored_accesses: u64,
    /// FEATURES_OK refused.
    pub refused_features: u64,
    /// Queues that broke.
    pub broken_queues: u64,
    /// Completions dropped, since the device was reset in between.
    pub stale_completions: u64,
}

/// What is to be done after an operation, without the lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub(super) struct Effects {
    /// Wake the owner.
    pub(super) wake: bool,
    /// Interrupt the guest.
    pub(super) interrupt: bool,
}

const NOTHING: Effects = Effects {
    wake: false,
    interrupt: false,
};
const WAKE: Effects = Effects {
    wake: true,
    interrupt: false,
};

#[derive(Debug)]
pub(super) struct RegisterFile {
    device_id: u32,
    offered: u64,
    required: u64,
    status: u32,
    device_features_sel: u32,
    driver_features_sel: u32,
    driver_features: u64,
    queue_sel: u32,
    queues: Vec<VirtQueue>,
    interrupt_status: u32,
    config: Vec<u8>,
    config_generation: u32,
    /// The configuration changed while a driver was setting up: told to it when
    /// it becomes active.
    config_pending: bool,
    epoch: u64,
    events: DriverEvents,
    counters: TransportCounters,
}

impl RegisterFile {
    pub(super) fn new(config: &TransportConfig) -> Self {
        let always = (1 << VIRTIO_F_VERSION_1) | (1 << VIRTIO_RING_F_EVENT_IDX);
        Self {
            device_id: config.device_id,
            offered: config.features | config.required_features | always,
            required: config.required_features | (1 << VIRTIO_F_VERSION_1),
            status: 0,
            device_features_sel: 0,
            driver_features_sel: 0,
            driver_features: 0,
            queue_sel: 0,
            queues: config
                .queue_sizes
                .iter()
                .map(|n| VirtQueue::new(*n))
                .collect(),
            interrupt_status: 0,
            config: config.config_space.clone(),
            config_generation: 0,
            config_pending: false,
            epoch: 0,
            events: DriverEvents::default(),
            counters: TransportCounters::default(),
        }
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(super) fn counters(&self) -> TransportCounters {
        self.counters
    }

    pub(super) fn count_ignored(&mut self) {
        self.counters.ignored_accesses = self.counters.ignored_accesses.saturating_add(1);
    }

    pub(super) fn count_stale(&mut self) {
        self.counters.stale_completions = self.counters.stale_completions.saturating_add(1);
    }

    pub(super) fn take_events(&mut self) -> DriverEvents {
        std::mem::take(&mut self.events)
    }

    /// A driver is live and its queues may be used.
    pub(super) fn is_live(&self) -> bool {
        self.has(STATUS_DRIVER_OK) && !self.has(STATUS_NEEDS_RESET) && !self.has(STATUS_FAILED)
    }

    pub(super) fn queue_mut(&mut self, index: usize) -> Option<&mut VirtQueue> {
        self.queues.get_mut(index)
    }

    pub(super) fn add_interrupt(&mut self, cause: u32) -> Effects {
        self.interrupt_status |= cause;
        Effects {
            wake: false,
            interrupt: true,
        }
    }

    fn has(&self, status: u32) -> bool {
        self.status & status != 0
    }

    /// Value of the register at `offset`; `None` if nothing can be read there.
    pub(super) fn read(&self, offset: u64) -> Option<u32> {
        Some(match offset {
            MAGIC_VALUE => MAGIC,
            VERSION => VERSION_2,
            DEVICE_ID => self.device_id,
            VENDOR_ID => VENDOR,
            DEVICE_FEATURES => window(self.offered, self.device_features_sel),
            QUEUE_NUM_MAX => self.selected().map_or(0, |q| u32::from(q.max_size())),
            QUEUE_READY => self.selected().map_or(0, |q| u32::from(q.is_ready())),
            INTERRUPT_STATUS => self.interrupt_status,
            STATUS => self.status,
            SHM_LEN_LOW | SHM_LEN_HIGH | SHM_BASE_LOW | SHM_BASE_HIGH => u32::MAX,
            CONFIG_GENERATION => self.config_generation,
            _ => return None,
        })
    }

    /// Bytes of the configuration space from `offset` (from its start); zeros
    /// past its end.
    pub(super) fn read_config(&self, offset: u64, data: &mut [u8]) {
        data.fill(0);
        let Some(rest) = usize::try_from(offset)
            .ok()
            .and_then(|start| self.config.get(start..))
        else {
            return;
        };
        for (to, from) in data.iter_mut().zip(rest) {
            *to = *from;
        }
    }

    /// Writes the register at `offset`; `None` if the write was ignored.
    pub(super) fn write(&mut self, offset: u64, value: u32) -> Option<Effects> {
        match offset {
            DEVICE_FEATURES_SEL => self.device_features_sel = value,
            DRIVER_FEATURES_SEL => self.driver_features_sel = value,
            DRIVER_FEATURES => return self.write_driver_features(value),
            QUEUE_SEL => self.queue_sel = value,
            QUEUE_NUM => self.configurable_queue()?.set_size(value),
            QUEUE_READY => return self.write_queue_ready(value),
            QUEUE_NOTIFY => {
                let exists = usize::try_from(value).is_ok_and(|n| n < self.queues.len());
                return (exists && self.is_live()).then_some(WAKE);
            }
            INTERRUPT_ACK => self.interrupt_status &= !value,
            STATUS => return self.write_status(value),
            QUEUE_DESC_LOW => self.set_low(Area::Descriptors, value)?,
            QUEUE_DESC_HIGH => self.set_high(Area::Descriptors, value)?,
            QUEUE_DRIVER_LOW => self.set_low(Area::Driver, value)?,
            QUEUE_DRIVER_HIGH => self.set_high(Area::Driver, value)?,
            QUEUE_DEVICE_LOW => self.set_low(Area::Device, value)?,
            QUEUE_DEVICE_HIGH => self.set_high(Area::Device, value)?,
            SHM_SEL => {}
            _ => return None,
        }
        Some(NOTHING)
    }

    fn selected(&self) -> Option<&VirtQueue> {
        self.queues.get(usize::try_from(self.queue_sel).ok()?)
    }

    fn selected_mut(&mut self) -> Option<&mut VirtQueue> {
        self.queues.get_mut(usize::try_from(self.queue_sel).ok()?)
    }

    /// The selected queue, if its registers may be written now.
    fn configurable_queue(&mut self) -> Option<&mut VirtQueue> {
        let phase = self.has(STATUS_FEATURES_OK)
            && !self.has(STATUS_DRIVER_OK | STATUS_FAILED | STATUS_NEEDS_RESET);
        self.selected_mut().filter(|q| phase && !q.is_ready())
    }

    fn set_low(&mut self, area: Area, value: u32) -> Option<()> {
        self.configurable_queue()?.set_address_low(area, value);
        Some(())
    }

    fn set_high(&mut self, area: Area, value: u32) -> Option<()> {
        self.configurable_queue()?.set_address_high(area, value);
        Some(())
    }

    fn write_driver_features(&mut self, value: u32) -> Option<Effects> {
        if !self.has(STATUS_DRIVER) || self.has(STATUS_FEATURES_OK | STATUS_FAILED) {
            return None;
        }
        let (keep, shift) = match self.driver_features_sel {
            0 => (0xffff_ffff_0000_0000, 0),
            1 => (0x0000_0000_ffff_ffff, 32),
            // There are no feature bits past 63 to accept.
            _ => return (value == 0).then_some(NOTHING),
        };
        self.driver_features = (self.driver_features & keep) | (u64::from(value) << shift);
        Some(NOTHING)
    }

    fn write_queue_ready(&mut self, value: u32) -> Option<Effects> {
        match value {
            0 => {
                // Drivers take queues down after a reset too, where there is
                // nothing to do.
                if self.selected_mut()?.disable() {
                    self.void_chains();
                }
            }
            1 => {
                let event_idx = self.driver_features & (1 << VIRTIO_RING_F_EVENT_IDX) != 0;
                let queue = self.configurable_queue()?;
                if let Err(error) = queue.enable(event_idx) {
                    tracing::debug!(%error, "virtio queue refused");
                    return None;
                }
            }
            _ => return None,
        }
        Some(NOTHING)
    }

    fn write_status(&mut self, value: u32) -> Option<Effects> {
        if value == 0 {
            return Some(self.reset());
        }
        // A driver adds bits, and never takes one back but by a reset.
        let added = value & !self.status;
        if self.status & !value != 0
            || value & !DRIVER_STATUS_BITS != 0
            || added & STATUS_NEEDS_RESET != 0
        {
            return None;
        }
        // Several bits at once count as one after the other: those before one
        // that is out of order stand.
        let mut effects = NOTHING;
        for (bit, needs) in [
            (STATUS_ACKNOWLEDGE, 0),
            (STATUS_DRIVER, STATUS_ACKNOWLEDGE),
            (STATUS_FEATURES_OK, STATUS_DRIVER),
            (STATUS_DRIVER_OK, STATUS_FEATURES_OK),
        ] {
            if added & bit == 0 {
                continue;
            }
            if self.status & needs != needs || self.has(STATUS_FAILED) {
                return None;
            }
            match bit {
                STATUS_FEATURES_OK if !self.features_acceptable() => {
                    self.counters.refused_features =
                        self.counters.refused_features.saturating_add(1);
                    tracing::debug!(
                        accepted = self.driver_features,
                        required = self.required,
                        offered = self.offered,
                        "virtio features refused"
                    );
                    return Some(effects);
                }
                STATUS_DRIVER_OK => effects = self.activate(),
                _ => self.status |= bit,
            }
        }
        if added & STATUS_FAILED != 0 {
            self.status |= STATUS_FAILED;
            self.events.failed = true;
            effects.wake = true;
        }
        Some(effects)
    }

    fn features_acceptable(&self) -> bool {
        self.driver_features & !self.offered == 0
            && self.driver_features & self.required == self.required
    }

    fn activate(&mut self) -> Effects {
        self.status |= STATUS_DRIVER_OK;
        self.events.activated = true;
        let mut effects = WAKE;
        if std::mem::take(&mut self.config_pending) {
            effects.interrupt = self.add_interrupt(INTERRUPT_CONFIG).interrupt;
        }
        effects
    }

    fn reset(&mut self) -> Effects {
        let had_driver = self.status != 0;
        self.status = 0;
        self.device_features_sel = 0;
        self.driver_features_sel = 0;
        self.driver_features = 0;
        self.queue_sel = 0;
        self.interrupt_status = 0;
        self.config_pending = false;
        self.queues.iter_mut().for_each(VirtQueue::reset);
        self.void_chains();
        if !had_driver {
            // Drivers reset a device before they touch it; nobody cares.
            return NOTHING;
        }
        self.events = DriverEvents {
            reset: true,
            ..DriverEvents::default()
        };
        WAKE
    }

    fn void_chains(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
    }

    /// Gives up on the queues until the driver resets the device (virtio 1.2,
    /// section 2.1.2).
    pub(super) fn break_queue(&mut self, fault: &QueueFault) -> Effects {
        // A hostile guest can come here at will: one warning a device.
        if self.counters.broken_queues == 0 {
            tracing::warn!(%fault, "virtio device needs reset");
        } else {
            tracing::debug!(%fault, "virtio device needs reset");
        }
        self.counters.broken_queues = self.counters.broken_queues.saturating_add(1);
        self.status |= STATUS_NEEDS_RESET;
        self.events.needs_reset = true;
        self.void_chains();
        let mut effects = self.add_interrupt(INTERRUPT_CONFIG);
        effects.wake = true;
        effects
    }

    /// Replaces the configuration space. Its generation moves on if anything
    /// is different.
    pub(super) fn set_config(&mut self, config: &[u8]) {
        if self.config != config {
            self.config.clear();
            self.config.extend_from_slice(config);
            self.config_generation = self.config_generation.wrapping_add(1);
        }
    }

    /// Tells the driver that the configuration changed: now if it is active,
    /// once it is if it is on its way, and not at all without a driver, since
    /// one that comes reads the configuration anyway.
    pub(super) fn announce_config(&mut self) -> Effects {
        if self.is_live() {
            return self.add_interrupt(INTERRUPT_CONFIG);
        }
        self.config_pending = self.has(STATUS_DRIVER) && !self.has(STATUS_DRIVER_OK);
        NOTHING
    }
}

/// The 32 bits of `features` that selector `sel` shows.
fn window(features: u64, sel: u32) -> u32 {
    let bytes = features.to_le_bytes();
    let [a, b, c, d, e, f, g, h] = bytes;
    match sel {
        0 => u32::from_le_bytes([a, b, c, d]),
        1 => u32::from_le_bytes([e, f, g, h]),
        _ => 0,
    }
}
