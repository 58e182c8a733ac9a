//! KVM memory slots: which host memory KVM shows the guest where.
//!
//! Boot pieces get one slot each for the machine's life. A window is cut into
//! slots of `slot_size`; a slot exists while at least one of its LMBs is
//! plugged, so that a large, empty window costs KVM nothing.
//!
//! Order of effects, the same as in QEMU's and Firecracker's hard-won fixes:
//! plug = host memory accessible → slot; unplug = host memory out of reach →
//! slot (with its last LMB) → discard. A step that fails is undone before the
//! error is returned, so that KVM, mappings and the caller's book agree.
//!
//! Owner: the effect worker of the hotplug coordinator. This is one of the
//! files where unsafe code is allowed (`set_user_memory_region`).
#![allow(unsafe_code)]

use std::sync::Arc;

use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::VmFd;
use lmb_memory::Layout;
use lmb_memory::{HostMemoryError, HostRegion, WindowMemory};
use lmb_memory::{LmbIndex, LmbRange};

use crate::coordinator::{EffectError, WindowEffects};

/// KVM's view of one slot is set here, and only here.
///
/// # Errors
/// KVM's reason (ENOMEM, EEXIST for overlaps, EINVAL).
fn set_slot(
    vm: &VmFd,
    slot: u32,
    guest_address: u64,
    size_bytes: u64,
    host_address: u64,
) -> Result<(), kvm_ioctls::Error> {
    let region = kvm_userspace_memory_region {
        slot,
        flags: 0,
        guest_phys_addr: guest_address,
        memory_size: size_bytes,
        userspace_addr: host_address,
    };
    // SAFETY: `host_address..+size_bytes` is a boot region or a slot of a
    // window. lmb_memory::host mapped both and unmaps them only when
    // `Machine` and the coordinator drop them, which they do after the vCPUs
    // have stopped (`Machine::stop`); without a vCPU nothing reaches memory
    // through a slot. Parts of a window that are not plugged are PROT_NONE,
    // which KVM reports as a fault.
    unsafe { vm.set_user_memory_region(region) }
}

/// The slots of a VM, as a window sees them: KVM's, or a double in tests.
pub trait MemorySlots: Send {
    /// Makes slot `slot` show `size_bytes` of host memory at `host_address` to
    /// the guest at `guest_address`; a size of 0 deletes it.
    ///
    /// # Errors
    /// The kernel's reason; the slot is as it was.
    fn set(
        &mut self,
        slot: u32,
        guest_address: u64,
        size_bytes: u64,
        host_address: u64,
    ) -> std::io::Result<()>;
}

impl MemorySlots for Arc<VmFd> {
    fn set(
        &mut self,
        slot: u32,
        guest_address: u64,
        size_bytes: u64,
        host_address: u64,
    ) -> std::io::Result<()> {
        set_slot(self, slot, guest_address, size_bytes, host_address).map_err(Into::into)
    }
}

/// Gives KVM the boot memory, in slots from 0. Returns how many.
///
/// # Errors
/// KVM's reason.
pub fn add_boot_memory(vm: &VmFd, regions: &[HostRegion]) -> Result<u32, kvm_ioctls::Error> {
    let mut slot = 0;
    for region in regions {
        set_slot(
            vm,
            slot,
            region.range.start().get(),
            region.range.len().get(),
            region.host_address,
        )?;
        slot += 1;
    }
    Ok(slot)
}

/// A window's host memory and KVM slots as one effect.
pub struct KvmWindow<S, M> {
    slots: S,
    memory: M,
    first_slot: u32,
    window_start: u64,
    window_bytes: u64,
    lmb_bytes: u64,
    slot_bytes: u64,
    /// Plugged LMBs in each slot.
    plugged: Vec<u32>,
    in_use: u64,
}

impl<S: MemorySlots, M: WindowMemory> KvmWindow<S, M> {
    /// A window without slots yet; its slots are numbered from `first_slot`.
    /// `None` when the layout has no window.
    pub fn new(slots: S, memory: M, layout: &Layout, first_slot: u32) -> Option<Self> {
        let window = layout.window.as_ref()?;
        let count = layout.window_slots();
        Some(Self {
            slots,
            memory,
            first_slot,
            window_start: window.range.start().get(),
            window_bytes: window.range.len().get(),
            lmb_bytes: layout.lmb_size.bytes().get(),
            slot_bytes: layout.slot_size.get(),
            plugged: vec![0; usize::try_from(count).ok()?],
            in_use: 0,
        })
    }

    fn slot_of(&self, lmb: u64) -> usize {
        // The table was sized from the same numbers, so the index fits.
        usize::try_from(lmb * self.lmb_bytes / self.slot_bytes).unwrap_or(usize::MAX)
    }

    /// Cuts a range at slot borders: (slot, LMBs of the range in it).
    fn by_slot(&self, range: LmbRange) -> Vec<(usize, u32)> {
        let per_slot = self.slot_bytes / self.lmb_bytes;
        let (mut lmb, end) = (range.first().get(), range.end().get());
        let mut parts = Vec::new();
        while lmb < end {
            let slot = self.slot_of(lmb);
            let next = ((lmb / per_slot) + 1).saturating_mul(per_slot).min(end);
            parts.push((slot, u32::try_from(next - lmb).unwrap_or(u32::MAX)));
            lmb = next;
        }
        parts
    }

    fn set(&mut self, slot: usize, present: bool) -> std::io::Result<()> {
        let offset = slot as u64 * self.slot_bytes;
        let size = if present {
            self.slot_bytes.min(self.window_bytes - offset)
        } else {
            0
        };
        let host = self
            .memory
            .host_address(LmbIndex::new(offset / self.lmb_bytes));
        let number = self
            .first_slot
            .saturating_add(u32::try_from(slot).unwrap_or(u32::MAX));
        self.slots
            .set(number, self.window_start + offset, size, host)?;
        if present {
            self.in_use += 1;
        } else {
            self.in_use = self.in_use.saturating_sub(1);
        }
        Ok(())
    }

    /// Adds the LMBs of `range` to their slots, creating those that were
    /// empty.
    fn add_to_slots(&mut self, range: LmbRange) -> Result<(), EffectError> {
        let parts = self.by_slot(range);
        for (done, &(slot, lmbs)) in parts.iter().enumerate() {
            if self.plugged[slot] == 0
                && let Err(error) = self.set(slot, true)
            {
                let undo = self.take_from_slots(&parts[..done]);
                let failure = EffectError::Undone(slot_failure("adding", slot, error));
                return Err(after_undo(failure, undo));
            }
            self.plugged[slot] += lmbs;
        }
        Ok(())
    }

    /// Takes LMBs from their slots, deleting those that get empty. KVM deletes
    /// an existing slot without allocating; were it to fail all the same, the
    /// slot stays and covers memory that is out of reach.
    fn take_from_slots(&mut self, parts: &[(usize, u32)]) -> Result<(), String> {
        let mut result = Ok(());
        for &(slot, lmbs) in parts {
            self.plugged[slot] = self.plugged[slot].saturating_sub(lmbs);
            if self.plugged[slot] == 0
                && let Err(error) = self.set(slot, false)
            {
                result = Err(slot_failure("deleting", slot, error));
            }
        }
        result
    }

    fn plug_range(&mut self, range: LmbRange) -> Result<(), EffectError> {
        self.memory.open(range).map_err(|error| match error {
            // The one error of `open` after which something has changed.
            HostMemoryError::Lost { .. } => EffectError::Inconsistent(error.to_string()),
            _ => EffectError::Undone(error.to_string()),
        })?;
        self.add_to_slots(range).map_err(|error| {
            let undo = self
                .memory
                .close(range)
                .and_then(|()| self.memory.discard(range))
                .map_err(|undo| undo.to_string());
            after_undo(error, undo)
        })
    }

    fn unplug_range(&mut self, range: LmbRange) -> Result<(), EffectError> {
        self.memory
            .close(range)
            .map_err(|error| EffectError::Undone(error.to_string()))?;
        let parts = self.by_slot(range);
        self.take_from_slots(&parts)
            .map_err(EffectError::Inconsistent)?;
        self.memory.discard(range).map_err(|error| {
            let undo = self
                .memory
                .reopen(range)
                .map_err(|undo| undo.to_string())
                .and_then(|()| self.add_to_slots(range).map_err(|undo| undo.to_string()));
            after_undo(EffectError::Undone(error.to_string()), undo)
        })
    }

    /// Does `effect` on every run; when one fails, does `undo` on those before
    /// it.
    fn all_or_none(
        &mut self,
        runs: &[LmbRange],
        effect: fn(&mut Self, LmbRange) -> Result<(), EffectError>,
        undo: fn(&mut Self, LmbRange) -> Result<(), EffectError>,
    ) -> Result<(), EffectError> {
        for (done, &run) in runs.iter().enumerate() {
            if let Err(error) = effect(self, run) {
                let undone = runs[..done]
                    .iter()
                    .try_for_each(|&run| undo(self, run))
                    .map_err(|undo| undo.to_string());
                return Err(after_undo(error, undone));
            }
        }
        Ok(())
    }
}

/// The error of an effect after the rest of it was undone too. What was left
/// inconsistent on the way stays so.
fn after_undo(error: EffectError, undo: Result<(), String>) -> EffectError {
    let (EffectError::Undone(text) | EffectError::Inconsistent(text)) = &error;
    match undo {
        Ok(()) => error,
        Err(undo) => EffectError::Inconsistent(format!("{text}; {undo}")),
    }
}

fn slot_failure(what: &str, slot: usize, error: std::io::Error) -> String {
    format!("{what} KVM memory slot {slot} of the window failed: {error}")
}

impl<S: MemorySlots, M: WindowMemory> WindowEffects for KvmWindow<S, M> {
    fn plug(&mut self, runs: &[LmbRange]) -> Result<(), EffectError> {
        self.all_or_none(runs, Self::plug_range, Self::unplug_range)
    }

    /// When a later run fails, the earlier ones are given again, empty: the
    /// guest keeps the whole range, whose contents it no longer relies on.
    fn unplug(&mut self, runs: &[LmbRange]) -> Result<(), EffectError> {
        self.all_or_none(runs, Self::unplug_range, Self::plug_range)
    }

    fn slots_in_use(&self) -> u64 {
        self.in_use
    }
}

#[cfg(test)]
#[path = "slots_tests.rs"]
mod tests;
