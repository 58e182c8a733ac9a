//! What clients are told: computed from the books at the moment of asking.

use lmb_memory::{GuestRange, Layout, LmbIndex};

use super::Coordinator;
use super::operation::{OperationCounts, OperationId, Record};
use crate::protocol::{
    AddressRange, LmbList, LmbRun, LmbState, MemoryInfo, Operation, OperationState,
};

impl Coordinator {
    /// Whether the reply of a call that waits for operation `id` is due.
    #[must_use]
    pub fn reply_due(&self, id: OperationId, wait_usable: bool, now_ns: u64) -> bool {
        let Some(record) = self.log.get(id) else {
            return true;
        };
        let newest = self
            .log
            .newest()
            .is_some_and(|newest| newest.shown.id == id);
        let usable_may_come = wait_usable
            && newest
            && record.usable_expected
            && record.shown.state == OperationState::Done
            && record.shown.timeline.usable_ns.is_none()
            && now_ns < record.deadline_ns;
        !record.running() && !usable_may_come
    }

    /// The latest time at which the reply of a call that waits for operation
    /// `id` falls due.
    #[must_use]
    pub fn reply_deadline_ns(&self, id: OperationId) -> Option<u64> {
        self.log.get(id).map(|record| record.deadline_ns)
    }

    /// Operation `id`, stamped as told to the client that waited for it.
    pub fn reply(&mut self, id: OperationId) -> Option<Operation> {
        let now_ns = self.clock.now_ns();
        if let Some(record) = self.log.get_mut(id) {
            let since = record.since_accepted(now_ns);
            record.shown.timeline.replied_ns.get_or_insert(since);
        }
        self.operation(id)
    }

    /// Operation `id`, if it is remembered.
    #[must_use]
    pub fn operation(&self, id: OperationId) -> Option<Operation> {
        self.log.get(id).map(|record| self.show(record))
    }

    /// The operations remembered, oldest first.
    #[must_use]
    pub fn operations(&self) -> Vec<Operation> {
        self.log.iter().map(|record| self.show(record)).collect()
    }

    /// How many operations have ended, by how.
    #[must_use]
    pub fn operation_counts(&self) -> OperationCounts {
        self.log.counts()
    }

    /// The VM's memory as it stands.
    #[must_use]
    pub fn memory_info(&self) -> MemoryInfo {
        let sizes = self.sizes();
        let bytes = |lmbs: u64| lmbs.saturating_mul(self.fixed.lmb_bytes);
        let boot_bytes = self.fixed.boot_bytes;
        MemoryInfo {
            hotplug: self.fixed.hotplug,
            lmb_size_bytes: self.fixed.lmb_bytes,
            guest_block_size_bytes: self.fixed.guest_block_bytes,
            slot_size_bytes: self.fixed.slot_bytes,
            boot_bytes,
            boot_lmbs: self.fixed.boot_lmbs,
            max_bytes: boot_bytes.saturating_add(bytes(sizes.window_lmbs)),
            total_bytes: self.total_bytes(),
            target_bytes: boot_bytes.saturating_add(bytes(sizes.requested_lmbs)),
            windows: self.windows.iter().map(|window| window.info()).collect(),
            operation: self.log.newest().map(|record| self.show(record)),
        }
    }

    fn show(&self, record: &Record) -> Operation {
        let mut shown = record.shown.clone();
        if record.running() {
            shown.plugged_bytes = self.total_bytes();
            let windows = self.windows.iter();
            shown.changes = windows.flat_map(|window| window.changes()).collect();
            shown.message = self.windows.iter().find_map(|window| window.waits_behind());
        }
        shown
    }

    /// How the VM's LMBs stand.
    #[must_use]
    pub fn lmb_list(&self) -> LmbList {
        let windows = self.windows.iter().flat_map(|window| window.lmbs());
        LmbList {
            lmb_size_bytes: self.fixed.lmb_bytes,
            lmbs: self.boot_lmbs.iter().cloned().chain(windows).collect(),
        }
    }
}

/// Boot LMBs: a run for those that each lie whole in one piece of memory, and
/// one for each that does not.
pub(super) fn boot_lmbs(layout: &Layout) -> Vec<LmbRun> {
    let lmb_bytes = layout.lmb_size.bytes().get();
    let mut runs: Vec<LmbRun> = Vec::new();
    let mut offset = 0_u64;
    for piece in &layout.boot {
        let (start, end) = (offset, offset.saturating_add(piece.range.len().get()));
        let (first, last) = (start.div_ceil(lmb_bytes), end / lmb_bytes);
        if !start.is_multiple_of(lmb_bytes) {
            let broken = LmbIndex::new(start / lmb_bytes);
            if runs.last().is_none_or(|run| run.first != broken.get()) {
                let ranges = layout.boot_lmb_pieces(broken);
                runs.push(boot_run(
                    broken.get(),
                    1,
                    ranges.into_iter().map(range).collect(),
                ));
            }
        }
        if last > first {
            let start_address = piece
                .range
                .start()
                .get()
                .saturating_add(first * lmb_bytes - start);
            let count = last - first;
            runs.push(boot_run(
                first,
                count,
                vec![AddressRange {
                    start_address,
                    size_bytes: count.saturating_mul(lmb_bytes),
                }],
            ));
        }
        offset = end;
    }
    runs
}

fn boot_run(first: u64, count: u64, ranges: Vec<AddressRange>) -> LmbRun {
    LmbRun {
        first,
        count,
        state: LmbState::Boot,
        node: 0,
        ranges,
        guest_has: Some(true),
        last_failure: None,
    }
}

fn range(range: GuestRange) -> AddressRange {
    AddressRange {
        start_address: range.start().get(),
        size_bytes: range.len().get(),
    }
}
