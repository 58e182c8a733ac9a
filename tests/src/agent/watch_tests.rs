//! Tests of the watch against a model of a guest: memory blocks with bytes
//! plugged in them, and the events that Linux sends when they change.

use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};

const BLOCK: u64 = 128 << 20;
const BASELINE: u64 = 200 << 20;
const BOOT_BLOCKS: u64 = 2;

#[derive(Default)]
struct Model {
    target: Option<u64>,
    /// Bytes managed in each hotplugged block, and whether it is online.
    blocks: BTreeMap<u64, (u64, bool)>,
    events: VecDeque<BlockEvent>,
    marks: Vec<(Mark, u64)>,
    target_reads: u32,
    /// Becomes the target once a mark was sent.
    next_target: Option<u64>,
}

impl Guest for Model {
    fn target_bytes(&mut self) -> Option<u64> {
        self.target_reads += 1;
        self.target
    }
    fn total_bytes(&mut self) -> Option<u64> {
        Some(BASELINE + self.online_bytes())
    }
    fn blocks(&mut self) -> Option<Blocks> {
        let mut blocks = boot();
        for (block, (_, online)) in &self.blocks {
            blocks.present.insert(*block);
            if *online {
                blocks.online.insert(*block);
            }
        }
        Some(blocks)
    }
    fn mark(&mut self, mark: Mark, value: u64) {
        self.marks.push((mark, value));
        if let Some(next) = self.next_target.take() {
            self.target = Some(next);
        }
    }
}

impl Model {
    fn online_bytes(&self) -> u64 {
        self.blocks
            .values()
            .filter(|(_, online)| *online)
            .map(|(bytes, _)| bytes)
            .sum()
    }
    fn send(&mut self, block: u64, action: BlockAction) {
        self.events.push_back(BlockEvent { block, action });
    }
    /// Adds an empty-handed block and puts it online, as the driver does.
    fn plug_block(&mut self, block: u64, bytes: u64) {
        self.blocks.insert(block, (bytes, false));
        self.send(block, BlockAction::Add);
        self.blocks.insert(block, (bytes, true));
        self.send(block, BlockAction::Online);
    }
    fn unplug_block(&mut self, block: u64) {
        self.blocks.remove(&block);
        self.send(block, BlockAction::Offline);
        self.send(block, BlockAction::Remove);
    }
}

fn boot() -> Blocks {
    Blocks {
        present: (0..BOOT_BLOCKS).collect(),
        online: (0..BOOT_BLOCKS).collect(),
    }
}

fn watch() -> Watch {
    Watch::new(BLOCK, BASELINE, boot())
}

fn model(target: u64) -> Model {
    Model {
        target: Some(target),
        ..Model::default()
    }
}

fn drain(watch: &mut Watch, model: &mut Model) {
    while let Some(event) = model.events.pop_front() {
        watch.event(model, event);
    }
}

#[test]
fn an_add_is_marked_at_the_last_online_event_and_no_sooner() {
    let (mut watch, mut model) = (watch(), model(4 * BLOCK));
    for block in 32..36 {
        assert!(model.marks.is_empty());
        model.plug_block(block, BLOCK);
        drain(&mut watch, &mut model);
    }
    assert_eq!(model.marks, [(Mark::Usable, 4 * BLOCK)]);
}

#[test]
fn the_target_is_read_once_at_the_start_and_once_at_the_end() {
    let (mut watch, mut model) = (watch(), model(1000 * BLOCK));
    for block in 32..1032 {
        model.plug_block(block, BLOCK);
        drain(&mut watch, &mut model);
    }
    assert_eq!(model.marks.len(), 1);
    assert_eq!(model.target_reads, 2);
}

#[test]
fn a_removal_is_marked_when_the_last_block_is_gone() {
    let (mut watch, mut model) = (watch(), model(2 * BLOCK));
    model.plug_block(40, BLOCK);
    model.plug_block(41, BLOCK);
    drain(&mut watch, &mut model);
    model.marks.clear();
    model.target = Some(0);
    model.unplug_block(41);
    drain(&mut watch, &mut model);
    // The last block's pages are taken away before its events come.
    model.blocks.insert(40, (0, true));
    watch.look(&mut model);
    assert_eq!(model.marks, []);
    model.unplug_block(40);
    let remove = model.events.pop_back().unwrap();
    drain(&mut watch, &mut model);
    assert_eq!(model.marks, [], "still present, only offline");
    watch.event(&mut model, remove);
    assert_eq!(model.marks, [(Mark::Usable, 0)]);
}

#[test]
fn a_block_that_stays_offline_never_counts() {
    let (mut watch, mut model) = (watch(), model(BLOCK));
    model.blocks.insert(32, (BLOCK, false));
    model.send(32, BlockAction::Add);
    drain(&mut watch, &mut model);
    for _ in 0..5 {
        watch.look(&mut model);
    }
    assert_eq!(model.marks, []);
    assert_eq!(watch.patience(), SLOWEST_LOOK, "looks become rarer");
}

#[test]
fn a_change_inside_a_block_is_found_by_looking_and_called_late() {
    let (mut watch, mut model) = (watch(), model(BLOCK / 2));
    model.plug_block(32, BLOCK / 2);
    drain(&mut watch, &mut model);
    assert_eq!(model.marks, [(Mark::Usable, BLOCK / 2)]);
    assert_eq!(watch.patience(), SLOWEST_LOOK);
    model.target = Some(BLOCK);
    model.blocks.insert(32, (BLOCK, true));
    watch.look(&mut model);
    assert_eq!(model.marks.len(), 1, "one look is not enough");
    assert_eq!(watch.patience(), FIRST_LOOK);
    watch.look(&mut model);
    assert_eq!(model.marks[1..], [(Mark::UsableLate, BLOCK)]);
}

#[test]
fn lost_events_make_the_mark_late() {
    let (mut watch, mut model) = (watch(), model(3 * BLOCK));
    model.plug_block(32, BLOCK);
    model.plug_block(33, BLOCK);
    model.events.clear();
    watch.events_lost(&mut model);
    assert_eq!(model.marks, []);
    model.plug_block(34, BLOCK);
    drain(&mut watch, &mut model);
    assert_eq!(model.marks, [(Mark::UsableLate, 3 * BLOCK)]);
}

#[test]
fn lost_events_may_have_been_the_last_ones() {
    let (mut watch, mut model) = (watch(), model(BLOCK));
    model.plug_block(32, BLOCK);
    model.events.clear();
    watch.events_lost(&mut model);
    assert_eq!(model.marks, [(Mark::UsableLate, BLOCK)]);
}

#[test]
fn a_target_set_while_the_mark_is_sent_is_worked_on() {
    let (mut watch, mut model) = (watch(), model(BLOCK));
    model.next_target = Some(2 * BLOCK);
    model.plug_block(32, BLOCK);
    model.plug_block(33, BLOCK);
    model.events.truncate(2);
    model.blocks.remove(&33);
    drain(&mut watch, &mut model);
    assert_eq!(model.marks, [(Mark::Usable, BLOCK)]);
    model.plug_block(33, BLOCK);
    drain(&mut watch, &mut model);
    assert_eq!(model.marks[1..], [(Mark::Usable, 2 * BLOCK)]);
}

#[test]
fn a_target_lowered_while_working_is_found_by_a_look() {
    let (mut watch, mut model) = (watch(), model(4 * BLOCK));
    model.plug_block(32, BLOCK);
    drain(&mut watch, &mut model);
    model.target = Some(BLOCK);
    watch.look(&mut model);
    watch.look(&mut model);
    assert_eq!(model.marks, [(Mark::UsableLate, BLOCK)]);
}

#[test]
fn boot_memory_going_offline_by_hand_is_none_of_its_business() {
    let (mut watch, mut model) = (watch(), model(0));
    model.send(1, BlockAction::Offline);
    drain(&mut watch, &mut model);
    assert_eq!(watch.patience(), SLOWEST_LOOK);
    assert_eq!(model.target_reads, 0);
}

#[test]
fn without_a_readable_target_nothing_is_marked() {
    let (mut watch, mut model) = (watch(), Model::default());
    model.plug_block(32, BLOCK);
    drain(&mut watch, &mut model);
    watch.look(&mut model);
    watch.look(&mut model);
    assert_eq!(model.marks, []);
}

/// A guest whose blocks hold their own description, as memmap_on_memory has
/// it: MemTotal grows by 63/64 of a block.
fn plug_device(model: &mut Model, block: u64) {
    model.plug_block(block, BLOCK / 64 * 63);
}

fn device_watch(model: &mut Model) -> Watch {
    let blocks = model.blocks().unwrap();
    let total = model.total_bytes().unwrap();
    Watch::of_devices(BLOCK, total, blocks, |block| block >= 32)
}

#[test]
fn blocks_that_describe_themselves_are_usable_when_all_are_online() {
    let mut model = model(64 * BLOCK);
    let mut watch = device_watch(&mut model);
    for block in 32..96 {
        assert_eq!(model.marks, []);
        plug_device(&mut model, block);
        drain(&mut watch, &mut model);
    }
    assert_eq!(model.marks, [(Mark::Usable, 64 * BLOCK)]);
    // What 64 such blocks give is what 63 others would: no reason to call a
    // removal of one block done before it is gone.
    model.target = Some(63 * BLOCK);
    model.send(40, BlockAction::Offline);
    drain(&mut watch, &mut model);
    watch.look(&mut model);
    watch.look(&mut model);
    assert_eq!(model.marks.len(), 1);
    model.unplug_block(40);
    drain(&mut watch, &mut model);
    assert_eq!(model.marks[1..], [(Mark::Usable, 63 * BLOCK)]);
}

#[test]
fn the_same_memory_is_not_enough_of_a_virtio_mem_device() {
    let (mut watch, mut model) = (watch(), model(64 * BLOCK));
    for block in 32..96 {
        plug_device(&mut model, block);
    }
    drain(&mut watch, &mut model);
    for _ in 0..5 {
        watch.look(&mut model);
    }
    assert_eq!(model.marks, []);
}

#[test]
fn devices_that_were_there_at_boot_count_at_once() {
    let mut model = model(2 * BLOCK);
    plug_device(&mut model, 32);
    plug_device(&mut model, 33);
    model.events.clear();
    let mut watch = device_watch(&mut model);
    watch.begin(&mut model);
    assert_eq!(model.marks, [(Mark::Usable, 2 * BLOCK)]);
    model.target = Some(BLOCK);
    model.unplug_block(33);
    drain(&mut watch, &mut model);
    assert_eq!(model.marks[1..], [(Mark::Usable, BLOCK)]);
}

#[test]
fn without_devices_at_boot_nothing_begins() {
    let mut model = model(0);
    let mut watch = device_watch(&mut model);
    watch.begin(&mut model);
    assert_eq!((model.marks.len(), model.target_reads), (0, 0));
}

proptest! {
    /// However blocks come and go, how events batch up and where they are
    /// lost: once all is quiet, the target is marked reached exactly if the
    /// memory is what was wanted, and no mark ever names a size that was not
    /// online when it was sent.
    #[test]
    fn quiet_ends_in_one_true_mark(
        steps in proptest::collection::vec((0_u64..12, 0_u8..8), 1..60),
        goal in 1_u64..12,
    ) {
        let (mut watch, mut model) = (watch(), model(goal * BLOCK));
        for (block, what) in steps {
            let block = 32 + block;
            match what {
                0..=2 if !model.blocks.contains_key(&block) => model.plug_block(block, BLOCK),
                3 if model.blocks.contains_key(&block) => model.unplug_block(block),
                4 => { model.events.clear(); watch.events_lost(&mut model); }
                5 => watch.look(&mut model),
                _ => drain(&mut watch, &mut model),
            }
            for (_, value) in &model.marks {
                prop_assert_eq!(*value, goal * BLOCK);
            }
        }
        // The driver goes on until the target is met.
        drain(&mut watch, &mut model);
        model.marks.clear();
        for block in 32..44 {
            let online = model.online_bytes();
            if online < goal * BLOCK && !model.blocks.contains_key(&block) {
                model.plug_block(block, BLOCK);
            } else if online > goal * BLOCK && model.blocks.contains_key(&block) {
                model.unplug_block(block);
            }
            drain(&mut watch, &mut model);
        }
        prop_assert_eq!(model.online_bytes(), goal * BLOCK);
        for _ in 0..3 {
            watch.look(&mut model);
        }
        prop_assert!(model.marks.len() <= 1);
        prop_assert_eq!(watch.state, State::Idle);
    }
}
