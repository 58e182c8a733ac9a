//! Operations: what clients asked for, how far it got, and when.
//!
//! States of one: running → done, incomplete, superseded, cancelled or
//! aborted; none is left again. At most one runs, and it is the newest. The
//! coordinator owns the log; ids count from 1 and are never used again in one
//! process. Ended operations beyond [`HISTORY`] are forgotten, oldest first.

use std::collections::VecDeque;

use lmb_devices::Stamp;

use crate::protocol::{
    MemoryAction, MemoryRequest, Operation, OperationState, OperationTimeline, RequestCounts,
};

/// How many operations are remembered.
pub const HISTORY: usize = 64;

/// Number of an operation, from 1.
pub type OperationId = u64;

/// Why an operation was not cancelled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CancelError {
    /// No such operation, or one that is forgotten.
    #[error("there is no operation {0} (the last {HISTORY} are remembered)")]
    Unknown(OperationId),
    /// It runs no more.
    #[error("operation {0} has ended already ({1:?}); only a running one can be cancelled")]
    Ended(OperationId, OperationState),
}

/// One operation with what only the coordinator needs to know of it.
#[derive(Clone, Debug)]
pub(super) struct Record {
    /// As clients see it.
    pub(super) shown: Operation,
    /// CPU time of the process when it was accepted.
    pub(super) accepted_cpu_ns: u64,
    /// When it ends as incomplete, on the monotonic clock.
    pub(super) deadline_ns: u64,
    /// Bytes of hotplug memory that the guest reports when all is usable.
    pub(super) usable_bytes: u64,
    /// Whether the guest can still report that.
    pub(super) usable_expected: bool,
}

impl Record {
    pub(super) fn running(&self) -> bool {
        self.shown.state == OperationState::Running
    }

    /// CPU time from acceptance to `at`, nanoseconds.
    pub(super) fn cpu_since_accepted(&self, at: Stamp) -> u64 {
        at.cpu_ns.saturating_sub(self.accepted_cpu_ns)
    }

    /// Nanoseconds from acceptance to `at_ns`.
    pub(super) fn since_accepted(&self, at_ns: u64) -> u64 {
        at_ns.saturating_sub(self.shown.timeline.accepted_ns)
    }
}

/// Operations ended so far, by how they ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OperationCounts {
    /// Reached their target.
    pub done: u64,
    /// Ended by their deadline.
    pub incomplete: u64,
    /// Replaced by a later one.
    pub superseded: u64,
    /// Cancelled by a client.
    pub cancelled: u64,
    /// Ended by a reset or by the VM's end.
    pub aborted: u64,
}

/// The last operations, newest last.
#[derive(Debug)]
pub(super) struct OperationLog {
    records: VecDeque<Record>,
    next_id: OperationId,
    counts: OperationCounts,
}

impl OperationLog {
    pub(super) fn new() -> Self {
        Self {
            records: VecDeque::with_capacity(HISTORY),
            next_id: 1,
            counts: OperationCounts::default(),
        }
    }

    /// Opens an operation that runs. One that ran before must have ended.
    pub(super) fn open(
        &mut self,
        request: &MemoryRequest,
        accepted: Stamp,
        sizes: OpeningSizes,
    ) -> OperationId {
        let id = self.next_id;
        self.next_id = self.next_id.saturating_add(1);
        while self.records.len() >= HISTORY {
            self.records.pop_front();
        }
        let shown = Operation {
            id,
            action: request.action,
            state: OperationState::Running,
            from_bytes: sizes.from_bytes,
            target_bytes: sizes.target_bytes,
            plugged_bytes: sizes.from_bytes,
            lmb_size_bytes: sizes.lmb_bytes,
            timeout_ms: request.timeout_ms,
            timeline: OperationTimeline {
                accepted_ns: accepted.monotonic_ns,
                ..OperationTimeline::default()
            },
            requests: RequestCounts::default(),
            acpi: None,
            changes: Vec::new(),
            message: None,
        };
        let timeout_ns = request.timeout_ms.saturating_mul(1_000_000);
        self.records.push_back(Record {
            shown,
            accepted_cpu_ns: accepted.cpu_ns,
            deadline_ns: accepted.monotonic_ns.saturating_add(timeout_ns),
            usable_bytes: sizes.usable_bytes,
            usable_expected: true,
        });
        id
    }

    /// The newest operation, running or not.
    pub(super) fn newest(&self) -> Option<&Record> {
        self.records.back()
    }

    pub(super) fn newest_mut(&mut self) -> Option<&mut Record> {
        self.records.back_mut()
    }

    /// The operation that runs.
    pub(super) fn running(&self) -> Option<&Record> {
        self.newest().filter(|record| record.running())
    }

    pub(super) fn running_mut(&mut self) -> Option<&mut Record> {
        self.newest_mut().filter(|record| record.running())
    }

    /// Ends the operation that runs, if one does.
    pub(super) fn end(
        &mut self,
        state: OperationState,
        plugged_bytes: u64,
        message: Option<String>,
    ) {
        let counts = &mut self.counts;
        let count = match state {
            OperationState::Running => return,
            OperationState::Done => &mut counts.done,
            OperationState::Incomplete => &mut counts.incomplete,
            OperationState::Superseded => &mut counts.superseded,
            OperationState::Cancelled => &mut counts.cancelled,
            OperationState::Aborted => &mut counts.aborted,
        };
        let Some(record) = self.records.back_mut().filter(|record| record.running()) else {
            return;
        };
        *count = count.saturating_add(1);
        record.shown.state = state;
        record.shown.plugged_bytes = plugged_bytes;
        record.shown.message = message;
        tracing::info!(
            operation = record.shown.id,
            ?state,
            plugged_bytes,
            target_bytes = record.shown.target_bytes,
            "memory operation ended"
        );
    }

    pub(super) fn get(&self, id: OperationId) -> Option<&Record> {
        self.records.iter().find(|record| record.shown.id == id)
    }

    pub(super) fn get_mut(&mut self, id: OperationId) -> Option<&mut Record> {
        self.records.iter_mut().find(|record| record.shown.id == id)
    }

    /// All that are remembered, oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Record> {
        self.records.iter()
    }

    pub(super) fn counts(&self) -> OperationCounts {
        self.counts
    }
}

/// The sizes an operation starts from; bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpeningSizes {
    /// Total plugged now.
    pub(super) from_bytes: u64,
    /// Total wanted.
    pub(super) target_bytes: u64,
    /// Hotplug memory wanted.
    pub(super) usable_bytes: u64,
    /// Size of an LMB.
    pub(super) lmb_bytes: u64,
}

/// The verb of an action, for messages.
pub(super) fn verb(action: MemoryAction) -> &'static str {
    match action {
        MemoryAction::Set => "set",
        MemoryAction::Add => "add",
        MemoryAction::Remove => "remove",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(log: &mut OperationLog) -> OperationId {
        let request = MemoryRequest {
            action: MemoryAction::Add,
            size_bytes: None,
            lmbs: Some(1),
            timeout_ms: 5,
            wait: false,
            wait_usable: false,
            ..MemoryRequest::new(MemoryAction::Add)
        };
        let sizes = OpeningSizes {
            from_bytes: 1,
            target_bytes: 2,
            usable_bytes: 1,
            lmb_bytes: 1,
        };
        log.open(
            &request,
            Stamp {
                monotonic_ns: 100,
                cpu_ns: 50,
            },
            sizes,
        )
    }

    #[test]
    fn history_is_bounded_and_ids_are_never_used_again() {
        let mut log = OperationLog::new();
        for expected in 1..=200 {
            assert_eq!(open(&mut log), expected);
            log.end(OperationState::Done, 2, None);
        }
        let ids: Vec<u64> = log.iter().map(|record| record.shown.id).collect();
        assert_eq!(ids, (137..=200).collect::<Vec<u64>>());
        assert!(log.get(136).is_none() && log.get(137).is_some());
        assert_eq!(log.counts().done, 200);
    }

    #[test]
    fn an_ended_operation_keeps_its_state() {
        let mut log = OperationLog::new();
        let id = open(&mut log);
        assert_eq!(log.running().unwrap().deadline_ns, 5_000_100);
        log.end(OperationState::Incomplete, 1, Some("late".into()));
        log.end(OperationState::Done, 2, None);
        let record = log.get(id).unwrap();
        assert_eq!(record.shown.state, OperationState::Incomplete);
        assert_eq!(record.shown.plugged_bytes, 1);
        assert_eq!(log.counts().done, 0);
        assert!(log.running().is_none());
    }
}
