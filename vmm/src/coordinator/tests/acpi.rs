//! Windows of ACPI devices: each way an LMB can come, go, or stay.

use lmb_memory::{FaultKind, WindowOp};
use proptest::prelude::*;

use super::acpi_rig::{AcpiRig, outcomes};
use super::rig::{BOOT_LMBS, LMB_BYTES, WINDOW_LMBS};
use crate::coordinator::RequestError;
use crate::protocol::LmbOutcome::{Added, Pending, Refused, Removed, Restored};
use crate::protocol::MemoryAction::{Add, Remove, Set};
use crate::protocol::{LmbSpan, LmbState, MemoryAction, MemoryRequest, OperationState};

#[test]
fn an_add_takes_the_lowest_and_a_removal_the_highest() {
    let mut rig = AcpiRig::new();
    let add = rig.start(Add, 5);
    rig.run();
    rig.assert_agreement();
    let operation = rig.operation(add);
    assert_eq!(operation.state, OperationState::Done);
    assert_eq!(outcomes(&operation.changes), [(0, 5, Added)]);
    let counts = operation.acpi.unwrap();
    assert_eq!(
        (counts.add_requests, counts.added, counts.refused),
        (5, 5, 0)
    );
    assert_eq!(operation.requests.blocks, 5);
    let timeline = &operation.timeline;
    assert!(timeline.announced_ns < timeline.first_request_ns);
    assert!(timeline.last_answer_ns.is_some());
    let remove = rig.start(Remove, 2);
    rig.run();
    rig.assert_agreement();
    let operation = rig.operation(remove);
    assert_eq!(operation.state, OperationState::Done);
    assert_eq!(outcomes(&operation.changes), [(3, 2, Removed)]);
    assert_eq!(rig.plugged(), [0, 1, 2]);
    assert!(rig.guest.has.iter().eq(&[0, 1, 2]));
    assert!(operation.timeline.last_answer_ns.is_some());
}

#[test]
fn named_lmbs_come_and_go_and_no_others() {
    let mut rig = AcpiRig::new();
    let add = rig.listed(Add, &[(9, 2), (3, 1)], false).unwrap();
    rig.run();
    assert_eq!(rig.operation(add).state, OperationState::Done);
    assert_eq!(rig.plugged(), [3, 9, 10]);
    let remove = rig.listed(Remove, &[(9, 1)], false).unwrap();
    rig.run();
    assert_eq!(rig.operation(remove).state, OperationState::Done);
    assert_eq!((rig.plugged(), rig.requested()), (vec![3, 10], 2));
    rig.assert_agreement();
}

#[test]
fn what_cannot_be_named_is_refused_and_changes_nothing() {
    let mut rig = AcpiRig::new();
    rig.added(2);
    let mut code = |action, runs: &[(u64, u64)]| {
        let error = rig.listed(action, runs, false).unwrap_err();
        (error.code(), error.to_string())
    };
    assert_eq!(code(Add, &[]).0, "bad_indices");
    assert_eq!(code(Add, &[(4, 0)]).0, "bad_indices");
    assert_eq!(code(Add, &[(4, 2), (5, 1)]).0, "bad_indices");
    assert_eq!(code(Set, &[(4, 2)]).0, "bad_option");
    let (word, text) = code(Add, &[(1, 1)]);
    assert_eq!(word, "lmb_state");
    assert!(text.contains("LMB 0x21 is there already"), "{text}");
    let (word, text) = code(Remove, &[(0, 3)]);
    assert_eq!(word, "lmb_state");
    assert!(text.contains("LMB 0x22 is not there"), "{text}");
    let (word, text) = code(Remove, &[(WINDOW_LMBS - 1, 2)]);
    assert_eq!(word, "no_such_lmb");
    assert!(
        text.contains("no LMB 0x30") && text.contains("to 0x2f"),
        "{text}"
    );
    let named = |first, count| MemoryRequest {
        indices: Some(vec![LmbSpan { first, count }]),
        ..MemoryRequest::new(Remove)
    };
    let error = rig.ask(&named(BOOT_LMBS - 1, 1)).unwrap_err();
    assert_eq!(error, RequestError::BootLmb(BOOT_LMBS - 1, BOOT_LMBS));
    let error = rig.ask(&named(u64::MAX, u64::MAX)).unwrap_err();
    assert_eq!(error.code(), "no_such_lmb");
    let both = MemoryRequest {
        lmbs: Some(1),
        ..named(BOOT_LMBS, 1)
    };
    assert_eq!(rig.ask(&both).unwrap_err().code(), "bad_amount");
    let whole_add = MemoryRequest {
        lmbs: Some(1),
        all_or_nothing: true,
        ..MemoryRequest::new(Add)
    };
    assert_eq!(rig.ask(&whole_add).unwrap_err().code(), "bad_option");
    assert_eq!((rig.plugged(), rig.requested()), (vec![0, 1], 2));
    rig.assert_agreement();
}

#[test]
fn a_guest_that_is_not_up_is_told_so_at_once() {
    let mut rig = AcpiRig::booting(0, false);
    let request = MemoryRequest {
        lmbs: Some(1),
        ..MemoryRequest::new(Add)
    };
    assert_eq!(rig.ask(&request), Err(RequestError::GuestNotUp));
    rig.run();
    assert!(rig.ask(&request).is_ok());
}

#[test]
fn a_removal_by_count_goes_on_with_others_in_place_of_refused_ones() {
    let mut rig = AcpiRig::new();
    rig.added(6);
    rig.guest.unmovable.extend([5, 3]);
    let id = rig.start(Remove, 3);
    rig.run();
    rig.assert_agreement();
    let operation = rig.operation(id);
    assert_eq!(operation.state, OperationState::Done);
    let expected = [
        (1, 2, Removed),
        (3, 1, Refused),
        (4, 1, Removed),
        (5, 1, Refused),
    ];
    assert_eq!(outcomes(&operation.changes), expected);
    let reason = operation.changes.last().unwrap().reason.clone();
    assert_eq!(reason.as_deref(), Some("device busy"));
    assert_eq!(rig.plugged(), [0, 3, 5]);
    let list = rig.coordinator.lmb_list();
    let failure = list.lmbs.iter().find_map(|run| run.last_failure.clone());
    let failure = failure.unwrap();
    assert_eq!((failure.action, failure.ost_status), (Remove, 0x82));
}

#[test]
fn a_removal_that_nothing_is_left_for_ends_at_once_and_stays_in_part() {
    let mut rig = AcpiRig::new();
    rig.added(4);
    rig.guest.unmovable.extend([0, 1, 3]);
    let id = rig.start(Remove, 2);
    rig.run();
    rig.assert_agreement();
    let operation = rig.operation(id);
    assert_eq!(operation.state, OperationState::Incomplete);
    let message = operation.message.unwrap();
    assert!(
        message.contains("refused LMBs 0x20, 0x21, 0x23 (device busy)"),
        "{message}"
    );
    assert_eq!((rig.plugged(), rig.requested()), (vec![0, 1, 3], 3));
    // The next request starts from what there is.
    rig.guest.unmovable.clear();
    let id = rig.start(Remove, 1);
    rig.run();
    assert_eq!(rig.operation(id).state, OperationState::Done);
    assert_eq!(rig.plugged(), [0, 1]);
}

#[test]
fn named_lmbs_that_are_refused_stay_and_the_others_go() {
    let mut rig = AcpiRig::new();
    rig.added(6);
    rig.guest.unmovable.insert(2);
    let id = rig.listed(Remove, &[(1, 3)], false).unwrap();
    rig.run();
    rig.assert_agreement();
    let operation = rig.operation(id);
    assert_eq!(operation.state, OperationState::Incomplete);
    let expected = [(1, 1, Removed), (2, 1, Refused), (3, 1, Removed)];
    assert_eq!(outcomes(&operation.changes), expected);
    assert_eq!((rig.plugged(), rig.requested()), (vec![0, 2, 4, 5], 4));
}

#[test]
fn all_or_nothing_adds_again_what_was_removed() {
    let mut rig = AcpiRig::new();
    rig.added(6);
    rig.guest.unmovable.insert(2);
    let id = rig.listed(Remove, &[(1, 3)], true).unwrap();
    rig.run();
    rig.assert_agreement();
    let operation = rig.operation(id);
    assert_eq!(operation.state, OperationState::Incomplete);
    let expected = [(1, 1, Restored), (2, 1, Refused), (3, 1, Restored)];
    assert_eq!(outcomes(&operation.changes), expected);
    let message = operation.message.unwrap();
    assert!(message.contains("added again"), "{message}");
    assert_eq!(rig.plugged(), [0, 1, 2, 3, 4, 5]);
    assert_eq!(rig.requested(), 6);
    // A whole removal is left alone.
    rig.guest.unmovable.clear();
    let id = rig.listed(Remove, &[(1, 3)], true).unwrap();
    rig.run();
    assert_eq!(rig.operation(id).state, OperationState::Done);
    assert_eq!(rig.plugged(), [0, 4, 5]);
}

#[test]
fn a_guest_that_keeps_trying_ends_by_the_deadline_and_is_booked_late() {
    let mut rig = AcpiRig::new();
    rig.added(4);
    rig.guest.pinned.insert(3);
    let first = rig.start(Remove, 2);
    rig.run();
    assert_eq!(rig.operation(first).state, OperationState::Running);
    assert_eq!(rig.state(3), LmbState::Removing);
    rig.pass_ms(60_001);
    let operation = rig.operation(first);
    assert_eq!(operation.state, OperationState::Incomplete);
    // The guest has read both notices and works on the first, the higher one.
    let message = operation.message.unwrap();
    assert!(message.contains("0x23"), "{message}");
    assert_eq!(outcomes(&operation.changes), [(2, 2, Pending)]);
    // Both are still on their way out.
    assert_eq!(rig.requested(), 2);
    let later = rig.start(Add, 1);
    rig.run();
    let running = rig.operation(later);
    assert_eq!(running.state, OperationState::Running);
    let message = running.message.unwrap();
    assert!(
        message.contains("waits behind") && message.contains("0x23"),
        "{message}"
    );
    rig.guest.pinned.clear();
    rig.run();
    rig.assert_agreement();
    assert_eq!(rig.operation(later).state, OperationState::Done);
    assert_eq!(rig.operation(first).state, OperationState::Incomplete);
    assert_eq!((rig.plugged().len(), rig.requested()), (3, 3));
}

#[test]
fn a_late_refusal_leaves_the_lmb_and_what_is_requested_follows() {
    let mut rig = AcpiRig::new();
    rig.added(3);
    rig.guest.pinned.insert(2);
    let id = rig.start(Remove, 1);
    rig.run();
    rig.pass_ms(60_001);
    assert_eq!(rig.operation(id).state, OperationState::Incomplete);
    assert_eq!(rig.requested(), 2);
    rig.guest.scribble(u32::MAX, 3, 0x82, false);
    rig.guest.scribble(2, 3, 0x82, false);
    rig.coordinator.on_device_wake();
    assert_eq!((rig.state(2), rig.requested()), (LmbState::Plugged, 3));
}

#[test]
fn the_guests_own_eject_is_booked_and_followed() {
    let mut rig = AcpiRig::new();
    rig.added(3);
    rig.guest.give_back(1);
    rig.run();
    rig.assert_agreement();
    assert_eq!((rig.plugged(), rig.requested()), (vec![0, 2], 2));
    let info = rig.coordinator.memory_info();
    let counts = info.windows[0].acpi.unwrap();
    assert_eq!((counts.ejected, counts.ejected_unasked), (1, 1));
}

#[test]
fn an_lmb_that_the_guest_cannot_add_is_asked_back() {
    let mut rig = AcpiRig::new();
    rig.guest.unaddable.insert(1);
    let id = rig.start(Add, 3);
    rig.run();
    rig.assert_agreement();
    let operation = rig.operation(id);
    assert_eq!(operation.state, OperationState::Incomplete);
    let message = operation.message.unwrap();
    assert!(
        message.contains("refused LMB 0x21 (non-specific failure)"),
        "{message}"
    );
    assert_eq!((rig.plugged(), rig.requested()), (vec![0, 2], 2));
}

#[test]
fn an_opposite_request_takes_back_what_the_guest_has_not_read() {
    let mut rig = AcpiRig::new();
    rig.added(4);
    rig.start(Remove, 4);
    let id = rig.start(Add, 4);
    assert_eq!(rig.operation(id).state, OperationState::Done);
    rig.run();
    rig.assert_agreement();
    assert_eq!(rig.plugged(), [0, 1, 2, 3]);
    rig.start(Add, 3);
    rig.await_effect();
    let id = rig.start(Remove, 3);
    rig.run();
    rig.assert_agreement();
    assert_eq!(rig.operation(id).state, OperationState::Done);
    assert_eq!(rig.plugged(), [0, 1, 2, 3]);
    assert_eq!(rig.operation(id).acpi, None, "the guest heard of nothing");
}

#[test]
fn a_cancelled_removal_keeps_what_the_guest_has_not_read_of() {
    let mut rig = AcpiRig::new();
    rig.added(4);
    let id = rig.start(Remove, 2);
    let cancelled = rig.coordinator.cancel(id).unwrap();
    assert_eq!(cancelled.state, OperationState::Cancelled);
    rig.run();
    rig.assert_agreement();
    assert_eq!((rig.plugged().len(), rig.requested()), (4, 4));
}

#[test]
fn requested_memory_is_present_when_the_guest_boots_and_again_after_a_reset() {
    let mut rig = AcpiRig::booting(3, false);
    assert!(rig.guest.has.iter().eq(&[0, 1, 2]));
    rig.run();
    rig.assert_agreement();
    assert!(rig.coordinator.boot().timeline().plugged_ns.is_some());
    rig.added(2);
    rig.reboot();
    assert_eq!(rig.guest.has.len(), 5);
    rig.run();
    rig.assert_agreement();
    assert_eq!((rig.plugged().len(), rig.requested()), (5, 5));
    let id = rig.start(Remove, 5);
    rig.run();
    assert_eq!(rig.operation(id).state, OperationState::Done);
    rig.assert_agreement();
}

#[test]
fn requested_memory_that_is_short_at_boot_comes_when_there_is_room() {
    let mut rig = AcpiRig::booting(3, true);
    assert!(rig.guest.has.is_empty());
    rig.run();
    assert!(rig.plugged().is_empty());
    rig.pass_ms(1_100);
    rig.run();
    rig.assert_agreement();
    assert_eq!(rig.plugged(), [0, 1, 2]);
    assert_eq!(rig.guest.has.len(), 3);
}

#[test]
fn a_failing_plug_is_tried_again_in_single_lmbs_and_then_after_a_pause() {
    let mut rig = AcpiRig::new();
    let id = rig.start(Add, 3);
    // Held back by nothing: the effect runs already, so the next one fails.
    rig.run();
    assert_eq!(rig.operation(id).state, OperationState::Done);
    rig.host.gate.shut(true);
    let id = rig.start(Add, 3);
    rig.faults.fail(WindowOp::Open, 1, FaultKind::OutOfMemory);
    rig.faults.fail(WindowOp::Open, 2, FaultKind::OutOfMemory);
    rig.host.gate.shut(false);
    rig.run();
    let running = rig.operation(id);
    assert_eq!(running.state, OperationState::Running);
    assert_eq!(rig.plugged().len(), 3);
    rig.pass_ms(1_100);
    rig.run();
    rig.assert_agreement();
    assert_eq!(rig.operation(id).state, OperationState::Done);
    assert_eq!(rig.plugged().len(), 6);
}

#[test]
fn memory_given_back_stays_given_back_until_the_host_has_it() {
    let mut rig = AcpiRig::new();
    rig.added(2);
    rig.faults
        .fail(WindowOp::Discard, 1, FaultKind::OutOfMemory);
    let id = rig.start(Remove, 1);
    rig.run();
    assert_eq!(rig.operation(id).state, OperationState::Running);
    assert_eq!(rig.state(1), LmbState::Leaving);
    assert_eq!(rig.plugged(), [0, 1]);
    // Not shown again, however long that takes.
    rig.guest.scribble(1, 3, 0, true);
    rig.run();
    rig.pass_ms(1_100);
    rig.run();
    rig.assert_agreement();
    assert_eq!(rig.operation(id).state, OperationState::Done);
    assert_eq!(rig.plugged(), [0]);
}

#[test]
fn a_worker_that_dies_ends_the_operation_and_takes_no_other() {
    let mut rig = AcpiRig::new();
    rig.added(2);
    *rig.host.bomb.lock().unwrap() = true;
    let id = rig.start(Add, 1);
    rig.run();
    let operation = rig.operation(id);
    assert_eq!(operation.state, OperationState::Incomplete);
    let message = operation.message.unwrap();
    assert!(message.contains("worker died"), "{message}");
    let request = MemoryRequest {
        lmbs: Some(1),
        ..MemoryRequest::new(Remove)
    };
    let error = rig.ask(&request).unwrap_err();
    assert_eq!(error.code(), "window_failed");
    rig.reboot();
    rig.run();
    rig.assert_agreement();
    // What was wanted is there after the reset.
    assert_eq!((rig.plugged().len(), rig.requested()), (3, 3));
}

#[derive(Clone, Debug)]
enum Event {
    Start(MemoryAction, u64),
    Listed(MemoryAction, u64, u64, bool),
    Cancel,
    Guest(u8, bool),
    Unmovable(u32),
    Pinned(u32),
    Unaddable(u32),
    Heal,
    Eject(u32),
    Scribble(u32, u8, u8, bool),
    Fault(WindowOp),
    Pass(u64),
    Reboot,
}

fn event() -> impl Strategy<Value = Event> {
    let action = || prop_oneof![Just(Add), Just(Remove), Just(Set)];
    let lmb = || 0_u32..u32::try_from(WINDOW_LMBS).unwrap();
    let op = prop_oneof![
        Just(WindowOp::Open),
        Just(WindowOp::Close),
        Just(WindowOp::Discard)
    ];
    prop_oneof![
        5 => (action(), 0..BOOT_LMBS + WINDOW_LMBS + 1).prop_map(|(a, l)| Event::Start(a, l)),
        4 => (action(), 0..WINDOW_LMBS, 1_u64..4, any::<bool>())
            .prop_map(|(a, f, c, all)| Event::Listed(a, f, c, all)),
        1 => Just(Event::Cancel),
        8 => (0_u8..12, any::<bool>()).prop_map(|(steps, settle)| Event::Guest(steps, settle)),
        1 => lmb().prop_map(Event::Unmovable),
        1 => lmb().prop_map(Event::Pinned),
        1 => lmb().prop_map(Event::Unaddable),
        2 => Just(Event::Heal),
        1 => lmb().prop_map(Event::Eject),
        1 => (0_u32..20, any::<u8>(), any::<u8>()).prop_map(|(l, n, s)| Event::Scribble(l, n, s, false)),
        1 => op.prop_map(Event::Fault),
        2 => (1_u64..70_000).prop_map(Event::Pass),
        1 => Just(Event::Reboot),
    ]
}

fn happen(rig: &mut AcpiRig, event: Event) {
    match event {
        Event::Start(action, lmbs) => {
            let lmbs = if action == Set {
                lmbs
            } else {
                lmbs % (WINDOW_LMBS + 1)
            };
            let request = MemoryRequest {
                lmbs: Some(lmbs),
                ..MemoryRequest::new(action)
            };
            // Refused or begun, as the sizes have it.
            let _ = rig.ask(&request);
        }
        Event::Listed(action, first, count, all) => {
            let _ = rig.listed(action, &[(first, count)], all && action == Remove);
        }
        Event::Cancel => {
            let newest = rig.coordinator.operations().last().map(|last| last.id);
            if let Some(id) = newest {
                let _ = rig.coordinator.cancel(id);
            }
        }
        Event::Guest(steps, settle) => {
            for _ in 0..steps {
                rig.guest.step();
                rig.coordinator.on_device_wake();
            }
            if settle {
                rig.await_effect();
            }
        }
        Event::Unmovable(lmb) => _ = rig.guest.unmovable.insert(lmb),
        Event::Pinned(lmb) => _ = rig.guest.pinned.insert(lmb),
        Event::Unaddable(lmb) => _ = rig.guest.unaddable.insert(lmb),
        Event::Heal => {
            rig.guest.unmovable.clear();
            rig.guest.pinned.clear();
            rig.guest.unaddable.clear();
        }
        Event::Eject(lmb) => {
            if rig.guest.has.contains(&lmb) {
                rig.guest.give_back(lmb);
            }
        }
        Event::Scribble(lmb, source, status, eject) => {
            rig.guest.scribble(lmb, source, status, eject);
        }
        Event::Fault(op) => rig.faults.fail(op, 1, FaultKind::OutOfMemory),
        Event::Pass(ms) => rig.pass_ms(ms),
        Event::Reboot => rig.reboot(),
    }
}

proptest! {
    #[test]
    fn whatever_happens_the_books_agree_and_the_guest_can_go_on(
        events in prop::collection::vec(event(), 0..40),
    ) {
        let mut rig = AcpiRig::new();
        for event in events {
            happen(&mut rig, event);
        }
        // All trouble passes, and all that is due comes due.
        happen(&mut rig, Event::Heal);
        rig.faults.disarm();
        for _ in 0..8 {
            rig.run();
            rig.pass_ms(70_000);
        }
        rig.run();
        rig.assert_agreement();
        prop_assert_eq!(rig.plugged().len() as u64, rig.requested());
        let plugged: Vec<u64> = rig.guest.has.iter().map(|lmb| u64::from(*lmb)).collect();
        prop_assert_eq!(plugged, rig.plugged());
        let total = rig.coordinator.memory_info().total_bytes;
        prop_assert_eq!(total, (BOOT_LMBS + rig.requested()) * LMB_BYTES);
        // And the VM obeys.
        let id = rig.start(Set, BOOT_LMBS + 3);
        rig.run();
        prop_assert_eq!(rig.operation(id).state, OperationState::Done);
        rig.assert_agreement();
    }
}
