//! LMBs one by one: the list of them, and what became of them in an operation.

use std::fmt::Write as _;

use lmb_vmm::protocol::{
    AcpiCounts, AddressRange, LmbChange, LmbList, LmbOutcome, LmbRun, LmbState,
};

use super::{ABSENT, action, align_right, columns, printable, push_table};
use crate::lmbs::format_span;
use crate::units::format_size;

/// `lmb mem show --lmbs`.
#[must_use]
pub fn list(list: &LmbList) -> String {
    let mut text = format!("LMB size {}\n\n", format_size(list.lmb_size_bytes));
    let mut table = columns(&[
        "LMB",
        "count",
        "state",
        "node",
        "guest-physical range",
        "guest has it",
        "last failure",
    ]);
    align_right(&mut table, 1..=1);
    align_right(&mut table, 3..=3);
    for run in &list.lmbs {
        table.add_row([
            format_span(run.first, run.count),
            run.count.to_string(),
            state(run.state).to_owned(),
            run.node.to_string(),
            ranges(&run.ranges),
            has(run).to_owned(),
            failure(run),
        ]);
    }
    push_table(&mut text, &table);
    text
}

/// The same LMBs, each a run of its own. Those whose addresses the reply does
/// not tell stay together.
#[must_use]
pub fn each(list: &LmbList) -> LmbList {
    let mut lmbs = Vec::new();
    for run in &list.lmbs {
        split(run, list.lmb_size_bytes, &mut lmbs);
    }
    LmbList {
        lmb_size_bytes: list.lmb_size_bytes,
        lmbs,
    }
}

fn split(run: &LmbRun, lmb_size_bytes: u64, lmbs: &mut Vec<LmbRun>) {
    let mut rest = run.clone();
    while rest.count > 1 {
        let Some(ranges) = take(&mut rest.ranges, lmb_size_bytes) else {
            break;
        };
        lmbs.push(LmbRun {
            count: 1,
            ranges,
            ..rest.clone()
        });
        rest.first = rest.first.saturating_add(1);
        rest.count = rest.count.saturating_sub(1);
    }
    lmbs.push(rest);
}

/// Takes the first `bytes` of these ranges away; `None`, and all of them stay,
/// where there is not more than that.
fn take(ranges: &mut Vec<AddressRange>, bytes: u64) -> Option<Vec<AddressRange>> {
    let all: u128 = ranges.iter().map(|r| u128::from(r.size_bytes)).sum();
    if bytes == 0 || all <= u128::from(bytes) {
        return None;
    }
    let mut taken = Vec::new();
    let mut left = bytes;
    while left > 0 {
        let first = ranges.first_mut()?;
        let size_bytes = first.size_bytes.min(left);
        taken.push(AddressRange {
            start_address: first.start_address,
            size_bytes,
        });
        left = left.saturating_sub(size_bytes);
        first.start_address = first.start_address.saturating_add(size_bytes);
        first.size_bytes = first.size_bytes.saturating_sub(size_bytes);
        if first.size_bytes == 0 {
            ranges.remove(0);
        }
    }
    Some(taken)
}

/// What became of an operation's LMBs: how many of each outcome, then which.
#[must_use]
pub fn changes(changes: &[LmbChange]) -> String {
    let counts: Vec<String> = OUTCOMES
        .iter()
        .filter_map(|of| {
            let alike = changes.iter().filter(|change| change.outcome == *of);
            let count = alike.fold(0u64, |sum, change| sum.saturating_add(change.count));
            (count > 0).then(|| format!("{count} {}", outcome(*of)))
        })
        .collect();
    let mut text = format!("LMBs: {}\n\n", counts.join(", "));
    let mut table = columns(&["LMB", "count", "outcome", "reason"]);
    align_right(&mut table, 1..=1);
    for change in changes {
        table.add_row([
            format_span(change.first, change.count),
            change.count.to_string(),
            outcome(change.outcome).to_owned(),
            printable(change.reason.as_deref().unwrap_or_default()),
        ]);
    }
    push_table(&mut text, &table);
    text
}

/// What VMM and guest said to each other about a window.
#[must_use]
pub fn counts(counts: &AcpiCounts) -> String {
    let mut text = format!(
        "adds asked for {}, done {}; removals asked for {}, done {}; refused by the guest {}",
        counts.add_requests, counts.added, counts.eject_requests, counts.ejected, counts.refused,
    );
    if counts.ejected_unasked > 0 {
        let _ = write!(text, "; removed unasked {}", counts.ejected_unasked);
    }
    text
}

const OUTCOMES: [LmbOutcome; 5] = [
    LmbOutcome::Added,
    LmbOutcome::Removed,
    LmbOutcome::Restored,
    LmbOutcome::Refused,
    LmbOutcome::Pending,
];

fn outcome(outcome: LmbOutcome) -> &'static str {
    match outcome {
        LmbOutcome::Pending => "still with the guest",
        LmbOutcome::Added => "added",
        LmbOutcome::Removed => "removed",
        LmbOutcome::Refused => "refused",
        LmbOutcome::Restored => "restored",
    }
}

fn state(state: LmbState) -> &'static str {
    match state {
        LmbState::Boot => "boot",
        LmbState::Unplugged => "unplugged",
        LmbState::Adding => "adding",
        LmbState::Plugged => "plugged",
        LmbState::Removing => "removing",
        LmbState::Leaving => "leaving",
    }
}

fn has(run: &LmbRun) -> &'static str {
    match run.guest_has {
        Some(true) => "yes",
        Some(false) => "no",
        None => "not told",
    }
}

fn failure(run: &LmbRun) -> String {
    match &run.last_failure {
        None => ABSENT.to_owned(),
        Some(failure) => format!(
            "{}: {} (_OST {:#x})",
            action(failure.action),
            printable(&failure.reason),
            failure.ost_status
        ),
    }
}

fn ranges(ranges: &[AddressRange]) -> String {
    if ranges.is_empty() {
        return ABSENT.to_owned();
    }
    let all: Vec<String> = ranges
        .iter()
        .map(|range| {
            let end = range.start_address.saturating_add(range.size_bytes);
            format!("{:#014x}-{end:#014x}", range.start_address)
        })
        .collect();
    all.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use lmb_vmm::protocol::{LmbFailure, MemoryAction};

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    fn run(first: u64, count: u64, state: LmbState, ranges: &[(u64, u64)]) -> LmbRun {
        LmbRun {
            first,
            count,
            state,
            node: 0,
            ranges: ranges
                .iter()
                .map(|&(start_address, size_bytes)| AddressRange {
                    start_address,
                    size_bytes,
                })
                .collect(),
            guest_has: None,
            last_failure: None,
        }
    }

    fn sample() -> LmbList {
        let mut plugged = run(4, 2, LmbState::Plugged, &[(4 * GIB, 512 * MIB)]);
        plugged.guest_has = Some(true);
        let mut stuck = run(6, 1, LmbState::Plugged, &[(4 * GIB + 512 * MIB, 256 * MIB)]);
        stuck.guest_has = Some(true);
        stuck.last_failure = Some(LmbFailure {
            action: MemoryAction::Remove,
            ost_status: 0x81,
            reason: "device in use\u{1b}[31m".to_owned(),
            at_ns: 5,
        });
        LmbList {
            lmb_size_bytes: 256 * MIB,
            lmbs: vec![
                run(0, 2, LmbState::Boot, &[(0, 512 * MIB)]),
                // The LMB whose end sets the guest's block lies in two pieces.
                run(
                    2,
                    2,
                    LmbState::Boot,
                    &[(512 * MIB, 510 * MIB), (3 * GIB, 2 * MIB)],
                ),
                plugged,
                stuck,
                run(7, 25, LmbState::Unplugged, &[(5 * GIB, 25 * 256 * MIB)]),
            ],
        }
    }

    #[test]
    fn lmbs_in_runs_line_by_line() {
        assert_eq!(
            list(&sample()),
            "LMB size 256 MiB\n\
             \n\
             LMB        count  state      node  guest-physical range                                          guest has it  last failure\n\
             0x0..0x1       2  boot          0  0x000000000000-0x000020000000                                 not told      -\n\
             0x2..0x3       2  boot          0  0x000020000000-0x00003fe00000, 0x0000c0000000-0x0000c0200000  not told      -\n\
             0x4..0x5       2  plugged       0  0x000100000000-0x000120000000                                 yes           -\n\
             0x6            1  plugged       0  0x000120000000-0x000130000000                                 yes           remove: device in use\u{fffd}[31m (_OST 0x81)\n\
             0x7..0x1f     25  unplugged     0  0x000140000000-0x0002d0000000                                 not told      -\n"
        );
    }

    #[test]
    fn each_lmb_has_its_own_addresses() {
        let all = each(&sample());
        assert_eq!(all.lmbs.len(), 32);
        assert!(all.lmbs.iter().all(|lmb| lmb.count == 1));
        assert!(
            all.lmbs
                .iter()
                .zip(0..)
                .all(|(lmb, index)| lmb.first == index)
        );
        let bytes = |lmb: &LmbRun| lmb.ranges.iter().map(|r| r.size_bytes).sum::<u64>();
        assert!(all.lmbs.iter().all(|lmb| bytes(lmb) == 256 * MIB));
        assert_eq!(all.lmbs[3].ranges.len(), 2);
        assert_eq!(all.lmbs[5].ranges[0].start_address, 4 * GIB + 256 * MIB);
        assert_eq!(all.lmbs[31].state, LmbState::Unplugged);
    }

    #[test]
    fn senseless_lists_are_printed_all_the_same() {
        let mut senseless = sample();
        senseless.lmbs = vec![
            run(u64::MAX, u64::MAX, LmbState::Leaving, &[]),
            run(0, 0, LmbState::Adding, &[(u64::MAX, u64::MAX)]),
            run(1, u64::MAX, LmbState::Removing, &[(0, GIB)]),
        ];
        assert!(list(&each(&senseless)).contains("leaving"));
        senseless.lmb_size_bytes = 0;
        assert_eq!(each(&senseless), senseless);
    }

    #[test]
    fn fates_are_counted_and_listed() {
        let change = |first, count, outcome, reason: Option<&str>| LmbChange {
            first,
            count,
            outcome,
            reason: reason.map(str::to_owned),
        };
        let text = changes(&[
            change(0x12, 3, LmbOutcome::Removed, None),
            change(0x15, 1, LmbOutcome::Refused, Some("device in use")),
            change(0x16, 2, LmbOutcome::Removed, None),
            change(0x18, 1, LmbOutcome::Pending, None),
        ]);
        assert_eq!(
            text,
            "LMBs: 5 removed, 1 refused, 1 still with the guest\n\
             \n\
             LMB         count  outcome               reason\n\
             0x12..0x14      3  removed\n\
             0x15            1  refused               device in use\n\
             0x16..0x17      2  removed\n\
             0x18            1  still with the guest\n"
        );
    }
}
