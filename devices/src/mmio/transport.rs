//! The transport as its two users see it: a [`BusDevice`] for vCPUs, and pop,
//! complete and publish for the owner.

use std::sync::{Arc, Mutex};

use vm_memory::GuestMemory;

use super::chain::Chain;
use super::register_file::{DriverEvents, Effects, RegisterFile, TransportCounters};
use super::registers::{CONFIG, INTERRUPT_USED};
use crate::bus::{BusDevice, InterruptLine, OwnerWake, lock};

/// What a device tells the transport about itself.
#[derive(Clone, Debug)]
pub struct TransportConfig {
    /// Virtio device type (virtio 1.2, section 5).
    pub device_id: u32,
    /// Feature bits of the device type that are offered. VERSION_1 and
    /// EVENT_IDX are always offered too.
    pub features: u64,
    /// Feature bits without which the device refuses FEATURES_OK (offered too,
    /// as is VERSION_1, which is always required).
    pub required_features: u64,
    /// Largest size of each queue: powers of two up to 32768. A queue of
    /// another size is never ready.
    pub queue_sizes: Vec<u16>,
    /// First content of the configuration space, at most 256 bytes.
    pub config_space: Vec<u8>,
}

/// A chain taken out of a queue, and the right to complete it, once. Dropping
/// it leaves the chain with the device until a reset.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct PoppedChain {
    epoch: u64,
    queue: usize,
    head: u16,
    chain: Chain,
}

impl PoppedChain {
    /// The chain.
    #[must_use]
    pub fn chain(&self) -> &Chain {
        &self.chain
    }
}

/// What became of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// The driver has its buffers back.
    Delivered,
    /// The device was reset or its queue taken down since the chain was
    /// popped; nothing was written.
    Stale,
    /// The queue broke; the device needs a reset.
    Broken,
}

/// One virtio-mmio device.
pub struct MmioTransport {
    registers: Mutex<RegisterFile>,
    line: Arc<dyn InterruptLine>,
    wake: Arc<dyn OwnerWake>,
}

impl MmioTransport {
    /// A device in its reset state.
    #[must_use]
    pub fn new(
        config: &TransportConfig,
        line: Arc<dyn InterruptLine>,
        wake: Arc<dyn OwnerWake>,
    ) -> Self {
        Self {
            registers: Mutex::new(RegisterFile::new(config)),
            line,
            wake,
        }
    }

    /// Whether a driver is active: DRIVER_OK is set, and neither FAILED nor
    /// DEVICE_NEEDS_RESET.
    #[must_use]
    pub fn driver_active(&self) -> bool {
        lock(&self.registers).is_live()
    }

    /// What drivers did since the last call.
    #[must_use]
    pub fn take_events(&self) -> DriverEvents {
        lock(&self.registers).take_events()
    }

    /// Counts of what was wrong so far.
    #[must_use]
    pub fn counters(&self) -> TransportCounters {
        lock(&self.registers).counters()
    }

    /// Replaces the configuration space as one; a driver that reads it in
    /// parts sees its generation change.
    pub fn publish_config(&self, config: &[u8]) {
        lock(&self.registers).set_config(config);
    }

    /// Sends a configuration interrupt, if there is a driver to receive it; to
    /// one that is still setting up, as soon as it is active.
    pub fn announce_config(&self) {
        let effects = lock(&self.registers).announce_config();
        self.carry_out(effects);
    }

    /// Wakes the owner, to be called again.
    pub(crate) fn wake_owner(&self) {
        self.wake.wake();
    }

    /// Takes the next chain of `queue`. `None` means that there is none, and
    /// that the owner is woken when there is; or that no driver is active.
    pub fn pop<M: GuestMemory>(&self, queue: usize, mem: &M) -> Option<PoppedChain> {
        let mut registers = lock(&self.registers);
        if !registers.is_live() {
            return None;
        }
        let epoch = registers.epoch();
        match registers.queue_mut(queue)?.pop(mem) {
            Ok(popped) => popped.map(|(head, chain)| PoppedChain {
                epoch,
                queue,
                head,
                chain,
            }),
            Err(fault) => {
                let effects = registers.break_queue(&fault);
                drop(registers);
                self.carry_out(effects);
                None
            }
        }
    }

    /// Whether the driver still waits for the chain: neither reset nor queue
    /// taken down since it was popped.
    #[must_use]
    pub fn awaits(&self, popped: &PoppedChain) -> bool {
        let registers = lock(&self.registers);
        popped.epoch == registers.epoch() && registers.is_live()
    }

    /// Writes `data` to the start of the chain's writable part and gives the
    /// chain back, with an interrupt if the driver wants one. If the data
    /// cannot be written, the chain is given back with no bytes written.
    pub fn complete<M: GuestMemory>(
        &self,
        mem: &M,
        popped: PoppedChain,
        data: &[u8],
    ) -> Completion {
        let mut registers = lock(&self.registers);
        if popped.epoch != registers.epoch() || !registers.is_live() {
            registers.count_stale();
            return Completion::Stale;
        }
        let written = match u32::try_from(data.len()) {
            Ok(len) if len > 0 && popped.chain.write(mem, data).is_ok() => len,
            _ => 0,
        };
        let Some(queue) = registers.queue_mut(popped.queue) else {
            return Completion::Stale;
        };
        let (effects, completion) = match queue.complete(mem, popped.head, written) {
            Ok(true) => (
                registers.add_interrupt(INTERRUPT_USED),
                Completion::Delivered,
            ),
            Ok(false) => (Effects::default(), Completion::Delivered),
            Err(fault) => (registers.break_queue(&fault), Completion::Broken),
        };
        drop(registers);
        self.carry_out(effects);
        completion
    }

    fn carry_out(&self, effects: Effects) {
        if effects.interrupt {
            self.line.trigger();
        }
        if effects.wake {
            self.wake.wake();
        }
    }
}

impl BusDevice for MmioTransport {
    fn read(&self, offset: u64, data: &mut [u8]) {
        let mut registers = lock(&self.registers);
        if let Some(at) = offset.checked_sub(CONFIG) {
            if matches!(data.len(), 1 | 2 | 4 | 8) {
                registers.read_config(at, data);
                return;
            }
        } else if let Ok(word) = <&mut [u8; 4]>::try_from(&mut *data)
            && let Some(value) = registers.read(offset)
        {
            *word = value.to_le_bytes();
            return;
        }
        data.fill(0);
        registers.count_ignored();
    }

    fn write(&self, offset: u64, data: &[u8]) {
        let mut registers = lock(&self.registers);
        // The configuration space of all devices here is read-only to drivers.
        let written = <[u8; 4]>::try_from(data)
            .ok()
            .and_then(|word| registers.write(offset, u32::from_le_bytes(word)));
        let Some(effects) = written else {
            registers.count_ignored();
            return;
        };
        drop(registers);
        self.carry_out(effects);
    }
}
