//! Requests of guests.

use lmb_devices::MemRequest;
use lmb_memory::{FaultKind, WindowOp};

use super::rig::{LMB_BYTES, Rig, WINDOW_LMBS};
use crate::protocol::OperationState;

const ACK: Option<u16> = Some(0);
const NACK: Option<u16> = Some(1);
const BUSY: Option<u16> = Some(2);
const ERROR: Option<u16> = Some(3);

/// Sends a raw request and returns the answer's type and state.
fn ask(rig: &mut Rig, request: MemRequest) -> (Option<u16>, Option<u16>) {
    rig.guest().driver.send(request);
    rig.coordinator.on_device_wake();
    rig.await_effect();
    let answer = rig.guest().driver.take_answer().expect("an answer");
    (answer.response_type, answer.state)
}

fn plug(rig: &mut Rig, lmb: u64, nb_blocks: u16) -> MemRequest {
    let addr = rig.guest().address_of(lmb);
    MemRequest::Plug { addr, nb_blocks }
}

#[test]
fn a_target_lowered_in_mid_plug_is_nacked_and_the_device_lives_on() {
    let mut rig = Rig::new();
    rig.add(4);
    rig.host.gate.shut(true);
    rig.guest().step();
    let second = plug(&mut rig, 1, 1);
    rig.guest().driver.send(second);
    rig.coordinator.on_device_wake();
    assert!(rig.busy());
    let id = rig.remove(3);
    rig.host.gate.shut(false);
    rig.await_effect();
    let guest = rig.guest();
    assert!(guest.step(), "the first is answered");
    assert_eq!(guest.driver.take_answer().unwrap().response_type, NACK);
    rig.run();
    rig.assert_agreement();
    assert_eq!(rig.operation(id).state, OperationState::Done);
    let counts = rig.coordinator.memory_info().windows[0].requests;
    assert_eq!((counts.nack, counts.error), (1, 0));
    rig.add(3);
    rig.run();
    assert_eq!(rig.plugged_lmbs(), 4);
}

#[test]
fn plugged_past_a_lowered_target_is_unplugged_again() {
    let mut rig = Rig::new();
    rig.add(1);
    rig.host.gate.shut(true);
    rig.guest().step();
    rig.coordinator.on_device_wake();
    let id = rig.remove(1);
    assert_eq!(
        rig.operation(id).state,
        OperationState::Running,
        "an effect is in flight"
    );
    rig.host.gate.shut(false);
    rig.run();
    assert_eq!(rig.operation(id).state, OperationState::Done);
    assert_eq!(rig.plugged_lmbs(), 0);
}

#[test]
fn a_failed_effect_is_busy_and_a_reminder_cuts_the_wait_short() {
    for op in [WindowOp::Open, WindowOp::Close, WindowOp::Discard] {
        let mut rig = Rig::new();
        let id = if op == WindowOp::Open {
            rig.faults.fail(op, 1, FaultKind::MappingLimit);
            rig.faults.fail(op, 2, FaultKind::MappingLimit);
            rig.add(2)
        } else {
            rig.add(2);
            rig.run();
            rig.faults.fail(op, 1, FaultKind::OutOfMemory);
            rig.faults.fail(op, 2, FaultKind::OutOfMemory);
            rig.remove(2)
        };
        rig.run();
        rig.assert_agreement();
        assert_eq!(rig.guest().busys, 1, "{op:?}");
        let due_ns = rig.coordinator.next_deadline_ns().unwrap();
        rig.pass_ms(900);
        rig.run();
        assert_eq!(rig.guest().busys, 1, "no reminder before its time");
        rig.pass_ms(101);
        assert!(rig.coordinator.next_deadline_ns() > Some(due_ns));
        rig.run();
        assert_eq!(rig.guest().busys, 2, "reminded once, and failed again");
        rig.pass_ms(1_001);
        rig.run();
        assert_eq!(rig.guest().busys, 2, "the second pause is longer");
        rig.pass_ms(1_000);
        rig.run();
        rig.assert_agreement();
        let operation = rig.operation(id);
        assert_eq!(operation.state, OperationState::Done, "{op:?}");
        assert_eq!(operation.requests.busy, 2);
        assert_eq!(operation.requests.error, 0);
        assert_eq!(
            rig.coordinator.next_deadline_ns(),
            None,
            "no reminder is left"
        );
    }
}

#[test]
fn a_success_ends_reminders_and_shortens_the_next() {
    let mut rig = Rig::new();
    rig.faults.fail(WindowOp::Open, 1, FaultKind::OutOfMemory);
    rig.add(1);
    rig.run();
    let again = plug(&mut rig, 0, 1);
    assert_eq!(
        ask(&mut rig, again).0,
        ACK,
        "the driver tried again by itself"
    );
    assert_eq!(rig.coordinator.next_deadline_ns(), None);
    rig.probe();
    assert_eq!(ask(&mut rig, MemRequest::UnplugAll).0, ACK);
    rig.start(crate::protocol::MemoryAction::Add, 2, 60_000)
        .unwrap();
    rig.faults.fail(WindowOp::Open, 1, FaultKind::OutOfMemory);
    rig.run();
    rig.pass_ms(1_001);
    rig.run();
    assert_eq!(
        rig.plugged_lmbs(),
        3,
        "after the first pause, not the second"
    );
}

#[test]
fn a_driver_with_nothing_to_do_is_not_reminded() {
    let mut rig = Rig::new();
    rig.faults.fail(WindowOp::Open, 1, FaultKind::OutOfMemory);
    let id = rig.add(1);
    rig.run();
    rig.coordinator.cancel(id).unwrap();
    rig.guest().take_interrupts();
    rig.pass_ms(1_001);
    assert_eq!(rig.guest().take_interrupts(), 0);
    assert_eq!(rig.coordinator.next_deadline_ns(), None);
}

#[test]
fn an_incomplete_operation_says_what_the_host_lacked() {
    let mut rig = Rig::new();
    rig.faults.fail(WindowOp::Open, 1, FaultKind::MappingLimit);
    let id = rig
        .start(crate::protocol::MemoryAction::Add, 1, 500)
        .unwrap();
    rig.run();
    rig.pass_ms(501);
    let message = rig.operation(id).message.unwrap();
    assert!(message.contains("max_map_count"), "{message}");
}

#[test]
fn a_window_that_could_not_be_undone_answers_busy_until_a_reset() {
    let mut rig = Rig::new();
    rig.add(2);
    rig.run();
    rig.faults
        .fail(WindowOp::Discard, 1, FaultKind::OutOfMemory);
    rig.faults.fail(WindowOp::Reopen, 1, FaultKind::OutOfMemory);
    let id = rig
        .start(crate::protocol::MemoryAction::Remove, 1, 500)
        .unwrap();
    rig.run();
    assert_eq!(rig.guest().busys, 1);
    let refused = rig.start(crate::protocol::MemoryAction::Add, 8, 500);
    let error = refused.expect_err("nobody could carry it out");
    assert_eq!(error.code(), "window_failed");
    let text = error.to_string();
    assert!(
        text.contains("takes no changes") && text.contains("reset"),
        "{text}"
    );
    let request = plug(&mut rig, 5, 1);
    assert_eq!(ask(&mut rig, request).0, NACK);
    let base = rig.guest().address_of(0);
    let unplug = MemRequest::Unplug {
        addr: base,
        nb_blocks: 1,
    };
    assert_eq!(ask(&mut rig, unplug).0, BUSY);
    rig.pass_ms(501);
    let operation = rig.operation(id);
    assert_eq!(operation.state, OperationState::Incomplete, "still its own");
    let message = operation.message.unwrap();
    assert!(message.contains("takes no changes"), "{message}");
    assert_eq!(
        rig.coordinator.next_deadline_ns(),
        None,
        "reminders are of no use"
    );
    rig.reboot();
    rig.probe();
    rig.run();
    rig.assert_agreement();
    assert_eq!(rig.plugged_lmbs(), 1);
    let id = rig.add(1);
    rig.run();
    assert_eq!(rig.operation(id).state, OperationState::Done);
}

#[test]
fn a_worker_that_dies_leaves_the_vm_alive() {
    let mut rig = Rig::new();
    rig.add(1);
    rig.run();
    let id = rig
        .start(crate::protocol::MemoryAction::Add, 1, 500)
        .unwrap();
    *rig.host.bomb.lock().unwrap() = true;
    rig.run();
    assert_eq!(rig.guest().busys, 1);
    // Nothing would come of waiting for the deadline.
    let operation = rig.operation(id);
    assert_eq!(operation.state, OperationState::Incomplete);
    let request = plug(&mut rig, 5, 1);
    assert_eq!(ask(&mut rig, request).0, BUSY);
    let message = operation.message.unwrap();
    assert!(message.contains("worker died"), "{message}");
    assert_eq!(rig.plugged_lmbs(), 1);
    rig.reboot();
    rig.probe();
    rig.run();
    assert_eq!(rig.plugged_lmbs(), 2);
}

#[test]
fn wrong_requests_are_errors_and_state_is_told() {
    let mut rig = Rig::new();
    rig.add(4);
    rig.run();
    let base = rig.guest().address_of(0);
    let state = |lmb: u64, nb_blocks| MemRequest::State {
        addr: base + lmb * LMB_BYTES,
        nb_blocks,
    };
    assert_eq!(ask(&mut rig, state(0, 4)), (ACK, Some(0)));
    assert_eq!(ask(&mut rig, state(4, 3)), (ACK, Some(1)));
    assert_eq!(ask(&mut rig, state(3, 2)), (ACK, Some(2)));
    let past_the_end = u16::try_from(WINDOW_LMBS).unwrap();
    let wrong = [
        state(0, 0),
        state(1, past_the_end),
        MemRequest::Unplug {
            addr: base,
            nb_blocks: 5,
        },
        MemRequest::Plug {
            addr: base + 1,
            nb_blocks: 1,
        },
        MemRequest::Plug {
            addr: u64::MAX - 4095,
            nb_blocks: u16::MAX,
        },
        MemRequest::Plug {
            addr: 0,
            nb_blocks: 1,
        },
    ];
    for request in wrong {
        assert_eq!(ask(&mut rig, request).0, ERROR, "{request:?}");
    }
    let over = plug(&mut rig, 3, 1);
    assert_eq!(
        ask(&mut rig, over).0,
        NACK,
        "over the request comes before wrong state"
    );
    rig.assert_agreement();
    assert_eq!(rig.plugged_lmbs(), 4);
}

#[test]
fn a_malformed_chain_is_counted_and_the_queue_goes_on() {
    let mut rig = Rig::new();
    let id = rig.add(1);
    rig.guest().driver.queue_bytes(&[1, 2, 3]);
    let good = plug(&mut rig, 0, 1);
    rig.guest().driver.send(good);
    rig.coordinator.on_device_wake();
    rig.await_effect();
    let first = rig.guest().driver.take_answer().unwrap();
    let second = rig.guest().driver.take_answer().unwrap();
    assert_eq!((first.response_type, second.response_type), (ERROR, ACK));
    let requests = rig.operation(id).requests;
    assert_eq!((requests.malformed, requests.plug), (1, 1));
    assert_eq!(rig.operation(id).state, OperationState::Done);
}

#[test]
fn a_new_driver_unplugs_all_and_starts_over() {
    let mut rig = Rig::new();
    rig.add(5);
    rig.run();
    rig.probe();
    assert_eq!(rig.plugged_lmbs(), 5, "a device reset changes no block");
    assert_eq!(rig.guest().config().plugged_size, 5 * LMB_BYTES);
    assert_eq!(ask(&mut rig, MemRequest::UnplugAll).0, ACK);
    rig.assert_agreement();
    assert_eq!((rig.plugged_lmbs(), rig.requested_lmbs()), (0, 5));
    assert_eq!(
        ask(&mut rig, MemRequest::UnplugAll).0,
        ACK,
        "of nothing, too"
    );
    rig.run();
    rig.assert_agreement();
    assert_eq!(rig.plugged_lmbs(), 5);
    let requests = rig.coordinator.memory_info().windows[0].requests;
    assert_eq!(
        (requests.unplug_all, requests.plug),
        (2, 5),
        "since the driver's start"
    );
}

#[test]
fn a_failed_unplug_all_leaves_everything_plugged() {
    let mut rig = Rig::new();
    rig.add(6);
    rig.run();
    let base = rig.guest().address_of(0);
    let hole = MemRequest::Unplug {
        addr: base + 2 * LMB_BYTES,
        nb_blocks: 1,
    };
    assert_eq!(ask(&mut rig, hole).0, ACK);
    rig.faults
        .fail(WindowOp::Discard, 2, FaultKind::OutOfMemory);
    assert_eq!(ask(&mut rig, MemRequest::UnplugAll).0, BUSY);
    rig.assert_agreement();
    assert_eq!(rig.plugged_lmbs(), 5);
}

#[test]
fn an_effect_outlives_the_driver_that_asked_for_it() {
    let mut rig = Rig::new();
    rig.add(2);
    rig.host.gate.shut(true);
    rig.guest().step();
    rig.coordinator.on_device_wake();
    rig.probe();
    assert!(rig.busy());
    rig.host.gate.shut(false);
    rig.await_effect();
    assert!(
        rig.guest().driver.take_answer().is_none(),
        "nobody to answer"
    );
    rig.assert_agreement();
    assert_eq!(rig.plugged_lmbs(), 1);
}

/// Linux, by kexec or by loading the driver again: a device that shows nothing
/// plugged at the probe is not asked to unplug all.
#[test]
fn a_driver_that_comes_in_mid_plug_sees_it_and_starts_over() {
    for fails in [false, true] {
        let mut rig = Rig::new();
        rig.add(2);
        rig.host.gate.shut(true);
        if fails {
            rig.faults.fail(WindowOp::Open, 1, FaultKind::OutOfMemory);
        }
        rig.guest().step();
        rig.coordinator.on_device_wake();
        assert!(rig.busy());
        rig.probe();
        assert_eq!(rig.guest().config().plugged_size, LMB_BYTES);
        assert_eq!(rig.plugged_lmbs(), 0, "clients see the book");
        rig.guest().driver.send(MemRequest::UnplugAll);
        rig.coordinator.on_device_wake();
        rig.host.gate.shut(false);
        rig.await_effect();
        let answer = rig.guest().driver.take_answer().expect("an answer");
        assert_eq!(answer.response_type, ACK);
        rig.assert_agreement();
        assert_eq!(rig.guest().config().plugged_size, 0);
        rig.run();
        rig.assert_agreement();
        assert_eq!((rig.plugged_lmbs(), rig.guest().busys), (2, 0));
    }
}

#[test]
fn a_plug_that_failed_is_not_shown_when_the_driver_has_its_answer() {
    let mut rig = Rig::new();
    rig.add(2);
    rig.faults.fail(WindowOp::Open, 1, FaultKind::OutOfMemory);
    rig.guest().step();
    rig.coordinator.on_device_wake();
    rig.host.line.watch();
    rig.await_effect();
    let seen = rig.host.line.seen();
    assert!(
        !seen.is_empty() && seen.iter().all(|config| config.plugged_size == 0),
        "{seen:?}"
    );
}

#[test]
fn status_answers_while_an_effect_runs() {
    let mut rig = Rig::new();
    rig.add(2);
    rig.host.gate.shut(true);
    rig.guest().step();
    rig.coordinator.on_device_wake();
    let info = rig.coordinator.memory_info();
    assert_eq!(
        (info.windows[0].plugged_lmbs, info.windows[0].requested_lmbs),
        (0, 2)
    );
    assert_eq!(info.operation.unwrap().state, OperationState::Running);
    rig.host.gate.shut(false);
    rig.run();
}
