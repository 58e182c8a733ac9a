//! A window's memory and slots against a naive model, with failures injected
//! at every step.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use lmb_memory::{
    BackingOptions, Bytes, FaultKind, FaultyWindow, GuestBlock, Hotplug, Layout, LmbCount,
    LmbIndex, LmbRange, LmbSize, MemoryRequest, MmapWindow, PageSize, WindowOp, create,
};
use proptest::prelude::*;

use super::*;

const LMBS: u64 = 30;
const LMB_BYTES: u64 = 2 << 20;
const LMBS_PER_SLOT: u64 = 4;
const FIRST_SLOT: u32 = 3;

/// Guest address, size and host address of a slot.
type Place = (u64, u64, u64);

/// Slots as KVM would hold them; fails at the chosen call.
#[derive(Clone, Default)]
struct Recorded {
    present: Arc<Mutex<BTreeMap<u32, Place>>>,
    fail_in: Arc<Mutex<Option<u32>>>,
}

impl MemorySlots for Recorded {
    fn set(
        &mut self,
        slot: u32,
        guest_address: u64,
        size_bytes: u64,
        host_address: u64,
    ) -> std::io::Result<()> {
        let mut present = self.present.lock().unwrap();
        // Deleting does not allocate, so KVM does not fail at it.
        if size_bytes == 0 {
            assert!(present.remove(&slot).is_some(), "slot {slot} is not there");
            return Ok(());
        }
        if let Some(left) = self.fail_in.lock().unwrap().as_mut() {
            if *left == 0 {
                *left = u32::MAX;
                return Err(std::io::Error::from_raw_os_error(libc::ENOMEM));
            }
            *left -= 1;
        }
        let old = present.insert(slot, (guest_address, size_bytes, host_address));
        assert_eq!(old, None, "slot {slot} is there already");
        Ok(())
    }
}

fn layout() -> Layout {
    Layout::compute(&MemoryRequest {
        memory: Bytes::new(LMB_BYTES),
        max_memory: Some(Bytes::new(LMB_BYTES * (LMBS + 1))),
        lmb_size: LmbSize::new(Bytes::new(LMB_BYTES)).unwrap(),
        guest_block: GuestBlock::Follow,
        slot_size: Some(Bytes::new(LMB_BYTES * LMBS_PER_SLOT)),
        page_size: PageSize::Small,
        hotplug: Hotplug::VirtioMem,
        phys_bits: 46,
        kernel_reach: None,
        max_map_count: None,
        max_slots: 1000,
    })
    .unwrap()
}

fn range(first: u64, count: u64) -> LmbRange {
    LmbRange::new(LmbIndex::new(first), LmbCount::new(count)).unwrap()
}

/// The slots that must exist for what is plugged.
fn expected(plugged: &BTreeSet<u64>) -> BTreeSet<u32> {
    plugged
        .iter()
        .map(|lmb| FIRST_SLOT + u32::try_from(lmb / LMBS_PER_SLOT).unwrap())
        .collect()
}

struct Rig {
    window: KvmWindow<Recorded, FaultyWindow<MmapWindow>>,
    slots: Recorded,
    faults: lmb_memory::host::fault::FaultControl,
    plugged: BTreeSet<u64>,
    layout: Layout,
}

impl Rig {
    fn new() -> Self {
        let layout = layout();
        let memory = create(&layout, &BackingOptions::default()).unwrap();
        let (memory, faults) = FaultyWindow::new(memory.window.unwrap());
        let slots = Recorded::default();
        let window = KvmWindow::new(slots.clone(), memory, &layout, FIRST_SLOT).unwrap();
        Self {
            window,
            slots,
            faults,
            plugged: BTreeSet::new(),
            layout,
        }
    }

    /// Everything that is free, or taken, in `first..first+count`, as runs.
    fn runs(&self, plugged: bool, first: u64, count: u64) -> Vec<LmbRange> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for lmb in first..(first + count).min(LMBS) {
            if self.plugged.contains(&lmb) != plugged {
                continue;
            }
            match runs.last_mut() {
                Some((start, len)) if *start + *len == lmb => *len += 1,
                _ => runs.push((lmb, 1)),
            }
        }
        runs.into_iter()
            .map(|(first, count)| range(first, count))
            .collect()
    }

    fn check(&self) {
        let present = self.slots.present.lock().unwrap();
        let numbers: BTreeSet<u32> = present.keys().copied().collect();
        assert_eq!(numbers, expected(&self.plugged));
        assert_eq!(self.window.slots_in_use(), numbers.len() as u64);
        let start = self.layout.window.unwrap().range.start().get();
        let slot_bytes = LMB_BYTES * LMBS_PER_SLOT;
        for (&slot, &(guest, size, host)) in present.iter() {
            let offset = u64::from(slot - FIRST_SLOT) * slot_bytes;
            assert_eq!(guest, start + offset);
            assert_eq!(size, slot_bytes.min(LMBS * LMB_BYTES - offset));
            let lmb = LmbIndex::new(offset / LMB_BYTES);
            assert_eq!(host, self.window.memory.host_address(lmb));
        }
    }
}

#[derive(Clone, Debug)]
struct Step {
    plug: bool,
    first: u64,
    count: u64,
    memory_fault: Option<(u8, u64)>,
    slot_fault: Option<u32>,
}

fn step() -> impl Strategy<Value = Step> {
    (
        any::<bool>(),
        0..LMBS,
        1..=LMBS,
        prop::option::weighted(0.4, (0_u8..4, 1_u64..3)),
        prop::option::weighted(0.3, 0_u32..4),
    )
        .prop_map(|(plug, first, count, memory_fault, slot_fault)| Step {
            plug,
            first,
            count,
            memory_fault,
            slot_fault,
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn memory_and_slots_follow_each_effect_or_are_as_before(
        steps in prop::collection::vec(step(), 1..24)
    ) {
        let mut rig = Rig::new();
        for step in steps {
            let runs = rig.runs(!step.plug, step.first, step.count);
            if let Some((op, nth)) = step.memory_fault {
                let op = [WindowOp::Open, WindowOp::Close, WindowOp::Discard, WindowOp::Reopen]
                    [usize::from(op)];
                rig.faults.fail(op, nth, FaultKind::OutOfMemory);
            }
            *rig.slots.fail_in.lock().unwrap() = step.slot_fault;
            let result = if step.plug {
                rig.window.plug(&runs)
            } else {
                rig.window.unplug(&runs)
            };
            *rig.slots.fail_in.lock().unwrap() = None;
            match result {
                Ok(()) => {
                    for run in &runs {
                        for lmb in run.first().get()..run.end().get() {
                            if step.plug {
                                rig.plugged.insert(lmb);
                            } else {
                                rig.plugged.remove(&lmb);
                            }
                        }
                    }
                    rig.check();
                }
                Err(EffectError::Undone(_)) => rig.check(),
                // Undoing failed as well: nothing is claimed, and the
                // coordinator tries no further effect.
                Err(EffectError::Inconsistent(_)) => break,
            }
        }
    }
}

#[test]
fn a_block_smaller_than_its_slot_and_one_across_two_slots_are_both_seen() {
    let mut rig = Rig::new();
    rig.window.plug(&[range(3, 2)]).unwrap();
    rig.plugged.extend([3, 4]);
    rig.check();
    assert_eq!(rig.window.slots_in_use(), 2);
    rig.window.unplug(&[range(3, 1)]).unwrap();
    rig.plugged.remove(&3);
    rig.check();
    assert_eq!(rig.window.slots_in_use(), 1);
}

#[test]
fn a_slot_that_kvm_refuses_leaves_nothing_behind() {
    let mut rig = Rig::new();
    *rig.slots.fail_in.lock().unwrap() = Some(1);
    let error = rig.window.plug(&[range(0, 8)]).unwrap_err();
    assert!(matches!(error, EffectError::Undone(_)), "{error}");
    rig.check();
    *rig.slots.fail_in.lock().unwrap() = None;
    rig.window.plug(&[range(0, 8)]).unwrap();
    rig.plugged.extend(0..8);
    rig.check();
}
