//! Operations of clients.

use std::sync::Arc;

use lmb_devices::{BootMarks, BusDevice};

use super::rig::{BOOT_LMBS, LMB_BYTES, Rig, WINDOW_LMBS};
use crate::coordinator::{CancelError, Coordinator, RequestError};
use crate::protocol::{MemoryAction, OperationState};
use lmb_memory::{Bytes, FaultKind, WindowOp};

fn state(rig: &Rig, id: u64) -> OperationState {
    rig.operation(id).state
}

#[test]
fn an_add_is_done_when_the_guest_has_it_and_its_stamps_are_in_order() {
    let mut rig = Rig::new();
    let id = rig.add(3);
    assert_eq!(state(&rig, id), OperationState::Running);
    rig.run();
    rig.assert_agreement();
    let operation = rig.operation(id);
    assert_eq!(operation.state, OperationState::Done);
    assert_eq!(operation.from_bytes, BOOT_LMBS * LMB_BYTES);
    assert_eq!(operation.target_bytes, (BOOT_LMBS + 3) * LMB_BYTES);
    assert_eq!(operation.plugged_bytes, operation.target_bytes);
    assert_eq!(operation.message, None);
    let timeline = operation.timeline;
    let stamps = [
        timeline.announced_ns,
        timeline.first_request_ns,
        timeline.last_answer_ns,
    ];
    assert!(
        stamps.iter().all(Option::is_some) && stamps.is_sorted(),
        "{timeline:?}"
    );
    assert_eq!(timeline.usable_ns, None, "absent, not guessed");
    let requests = operation.requests;
    assert_eq!((requests.plug, requests.ack, requests.blocks), (3, 3, 3));
    assert_eq!(rig.plugged_lmbs(), 3);
    let window = &rig.coordinator.memory_info().windows[0];
    assert_eq!((window.first_lmb, window.slots), (BOOT_LMBS, 1));
}

#[test]
fn a_remove_gives_the_memory_back() {
    let mut rig = Rig::new();
    rig.add(WINDOW_LMBS);
    rig.run();
    let id = rig.remove(WINDOW_LMBS - 1);
    rig.run();
    rig.assert_agreement();
    assert_eq!(state(&rig, id), OperationState::Done);
    assert_eq!(rig.operation(id).requests.unplug, WINDOW_LMBS - 1);
    assert_eq!(rig.plugged_lmbs(), 1);
    assert_eq!(
        rig.coordinator.memory_info().total_bytes,
        (BOOT_LMBS + 1) * LMB_BYTES
    );
}

#[test]
fn setting_what_the_guest_has_succeeds_at_once_even_without_a_driver() {
    let mut rig = Rig::without_driver();
    let id = rig.start(MemoryAction::Set, BOOT_LMBS, 1_000).unwrap();
    let operation = rig.operation(id);
    assert_eq!(operation.state, OperationState::Done);
    assert_eq!(operation.timeline.announced_ns, None);
    rig.probe();
    rig.add(2);
    rig.run();
    rig.guest().take_interrupts();
    let id = rig.start(MemoryAction::Set, BOOT_LMBS + 2, 1_000).unwrap();
    assert_eq!(state(&rig, id), OperationState::Done);
    assert_eq!(
        rig.guest().take_interrupts(),
        0,
        "nothing to tell the guest"
    );
}

#[test]
fn without_an_active_driver_nothing_starts_and_the_target_stays() {
    let mut rig = Rig::without_driver();
    let refused = rig.start(MemoryAction::Add, 1, 1_000);
    assert_eq!(refused, Err(RequestError::DriverNotActive));
    assert_eq!(rig.requested_lmbs(), 0);
    assert!(rig.coordinator.operations().is_empty());

    rig.probe();
    let id = rig.add(1);
    rig.guest()
        .driver
        .mmio
        .write(lmb_devices::mmio::registers::STATUS, 0);
    rig.coordinator.on_device_wake();
    let refused = rig.start(MemoryAction::Add, 1, 1_000);
    assert_eq!(refused, Err(RequestError::DriverNotActive));
    assert_eq!(state(&rig, id), OperationState::Running, "it goes on");
    assert_eq!(rig.requested_lmbs(), 1);
}

#[test]
fn between_machines_operations_are_refused() {
    let mut rig = Rig::new();
    rig.coordinator.system_reset(0);
    let refused = rig.start(MemoryAction::Add, 1, 1_000);
    assert_eq!(refused, Err(RequestError::Resetting));
}

#[test]
fn a_vm_without_a_window_says_so() {
    let layout = super::rig::layout(false);
    let event = Arc::new(vmm_sys_util::eventfd::EventFd::new(0).unwrap());
    let mut coordinator = Coordinator::new(&layout, 0, event);
    let mut request = crate::protocol::MemoryRequest {
        action: MemoryAction::Add,
        size_bytes: Some(LMB_BYTES),
        lmbs: None,
        timeout_ms: 1,
        wait: false,
        wait_usable: false,
        ..crate::protocol::MemoryRequest::new(MemoryAction::Add)
    };
    let refused = coordinator.start_operation(&request, 0);
    assert_eq!(refused, Err(RequestError::NoWindow));
    request.action = MemoryAction::Set;
    request.size_bytes = Some(BOOT_LMBS * LMB_BYTES);
    let id = coordinator.start_operation(&request, 0).unwrap();
    assert_eq!(
        coordinator.operation(id).unwrap().state,
        OperationState::Done
    );
    assert!(coordinator.memory_info().windows.is_empty());
}

#[test]
fn a_later_operation_replaces_the_target() {
    let mut rig = Rig::new();
    let first = rig.add(8);
    rig.guest().step();
    rig.coordinator.on_device_wake();
    rig.await_effect();
    let second = rig.start(MemoryAction::Set, BOOT_LMBS + 2, 60_000).unwrap();
    assert_eq!(state(&rig, first), OperationState::Superseded);
    let message = rig.operation(first).message.unwrap();
    assert!(message.contains("68 MiB"), "{message}");
    rig.run();
    rig.assert_agreement();
    assert_eq!(state(&rig, second), OperationState::Done);
    assert_eq!(state(&rig, first), OperationState::Superseded);
    assert_eq!(rig.plugged_lmbs(), 2);
    assert_eq!(rig.coordinator.operation_counts().superseded, 1);
}

#[test]
fn a_refused_operation_leaves_the_running_one_alone() {
    let mut rig = Rig::new();
    let id = rig.add(8);
    let refused = rig.start(MemoryAction::Add, WINDOW_LMBS, 60_000);
    assert!(matches!(refused, Err(RequestError::AboveMax { .. })));
    rig.run();
    assert_eq!(state(&rig, id), OperationState::Done);
}

#[test]
fn setting_the_present_size_stops_a_running_add() {
    let mut rig = Rig::new();
    let first = rig.add(8);
    rig.guest().take_interrupts();
    let second = rig.start(MemoryAction::Set, BOOT_LMBS, 60_000).unwrap();
    assert_eq!(state(&rig, first), OperationState::Superseded);
    assert_eq!(state(&rig, second), OperationState::Done);
    assert!(
        rig.guest().take_interrupts() > 0,
        "the guest is told to stop"
    );
    rig.run();
    assert_eq!(rig.plugged_lmbs(), 0);
}

#[test]
fn cancelling_makes_the_target_what_is_plugged() {
    let mut rig = Rig::new();
    let id = rig.add(8);
    for _ in 0..2 {
        rig.guest().step();
        rig.coordinator.on_device_wake();
        rig.await_effect();
        rig.guest().step();
    }
    let cancelled = rig.coordinator.cancel(id).unwrap();
    assert_eq!(cancelled.state, OperationState::Cancelled);
    rig.run();
    rig.assert_agreement();
    assert_eq!((rig.plugged_lmbs(), rig.requested_lmbs()), (2, 2));
    let again = rig.coordinator.cancel(id);
    assert_eq!(
        again,
        Err(CancelError::Ended(id, OperationState::Cancelled))
    );
    assert_eq!(rig.coordinator.cancel(99), Err(CancelError::Unknown(99)));
}

#[test]
fn a_cancel_in_the_middle_of_an_effect_follows_its_end() {
    for fails in [false, true] {
        let mut rig = Rig::new();
        let id = rig.add(8);
        rig.host.gate.shut(true);
        if fails {
            rig.faults.fail(WindowOp::Open, 1, FaultKind::OutOfMemory);
        }
        rig.guest().step();
        rig.coordinator.on_device_wake();
        assert!(rig.busy());
        rig.coordinator.cancel(id).unwrap();
        assert_eq!(rig.requested_lmbs(), 0);
        rig.host.gate.shut(false);
        rig.run();
        rig.assert_agreement();
        let expected = u64::from(!fails);
        assert_eq!(
            (rig.plugged_lmbs(), rig.requested_lmbs()),
            (expected, expected)
        );
        assert_eq!(state(&rig, id), OperationState::Cancelled);
    }
}

/// Linux reads the configuration as soon as it has the answer: a target that
/// is still the old one would make it unplug the block it has just plugged.
#[test]
fn after_a_cancel_the_target_has_followed_when_the_answer_comes() {
    for removes in [false, true] {
        let mut rig = Rig::new();
        rig.add(3);
        rig.run();
        let id = if removes { rig.remove(2) } else { rig.add(2) };
        rig.host.gate.shut(true);
        rig.guest().step();
        rig.coordinator.on_device_wake();
        assert!(rig.busy());
        rig.coordinator.cancel(id).unwrap();
        rig.host.line.watch();
        rig.host.gate.shut(false);
        rig.await_effect();
        let expected = if removes { 2 } else { 4 } * LMB_BYTES;
        let seen = rig.host.line.seen();
        assert!(seen.len() >= 2, "an answer and a change of the target");
        for config in seen {
            assert_eq!(
                (config.plugged_size, config.requested_size),
                (expected, expected)
            );
        }
        rig.run();
        rig.assert_agreement();
    }
}

#[test]
fn a_deadline_ends_it_as_incomplete_and_the_guest_may_go_on() {
    let mut rig = Rig::new();
    let id = rig.start(MemoryAction::Add, 4, 5_000).unwrap();
    rig.guest().step();
    rig.coordinator.on_device_wake();
    rig.await_effect();
    rig.pass_ms(4_000);
    assert_eq!(state(&rig, id), OperationState::Running);
    let due_ns = rig.coordinator.next_deadline_ns().unwrap();
    assert_eq!(
        due_ns,
        rig.operation(id).timeline.accepted_ns + 5_000_000_000
    );
    rig.pass_ms(1_001);
    let operation = rig.operation(id);
    assert_eq!(operation.state, OperationState::Incomplete);
    assert_eq!(operation.plugged_bytes, (BOOT_LMBS + 1) * LMB_BYTES);
    let message = operation.message.unwrap();
    assert!(
        message.contains("66 MiB of the 72 MiB") && message.contains("5000 ms"),
        "{message}"
    );
    assert_eq!(rig.coordinator.next_deadline_ns(), None);
    rig.run();
    assert_eq!(rig.plugged_lmbs(), 4);
    assert_eq!(state(&rig, id), OperationState::Incomplete);
    assert_eq!(rig.operation(id).plugged_bytes, operation.plugged_bytes);
}

#[test]
fn a_silent_guest_is_told_from_one_without_a_driver() {
    let mut rig = Rig::new();
    let id = rig.start(MemoryAction::Add, 4, 5).unwrap();
    rig.pass_ms(6);
    let message = rig.operation(id).message.unwrap();
    assert!(message.contains("asked for nothing"), "{message}");
    let id = rig.start(MemoryAction::Add, 1, 5).unwrap();
    rig.guest()
        .driver
        .mmio
        .write(lmb_devices::mmio::registers::STATUS, 0);
    rig.pass_ms(6);
    let message = rig.operation(id).message.unwrap();
    assert!(message.contains("driver is not active"), "{message}");
}

#[test]
fn after_an_incomplete_operation_asking_again_goes_on_to_the_target() {
    let mut rig = Rig::new();
    rig.start(MemoryAction::Add, 4, 5).unwrap();
    rig.pass_ms(6);
    rig.guest().take_interrupts();
    let id = rig.start(MemoryAction::Set, BOOT_LMBS + 4, 5_000).unwrap();
    assert_eq!(state(&rig, id), OperationState::Running);
    assert!(
        rig.guest().take_interrupts() > 0,
        "the driver is woken again"
    );
    rig.run();
    assert_eq!(state(&rig, id), OperationState::Done);
}

#[test]
fn usable_is_what_the_guest_reports_and_only_the_wanted_size() {
    let mut rig = Rig::new();
    rig.report_usable(2);
    let id = rig.add(2);
    rig.report_usable(1);
    rig.run();
    assert_eq!(state(&rig, id), OperationState::Done);
    let timeline = rig.operation(id).timeline;
    assert_eq!(
        timeline.usable_ns, None,
        "reported before, and another size"
    );
    assert!(!rig.coordinator.reply_due(id, true, 2_000));
    assert!(rig.coordinator.reply_due(id, false, 2_000));
    rig.report_usable(2);
    let timeline = rig.operation(id).timeline;
    assert!(timeline.usable_ns > timeline.last_answer_ns && !timeline.usable_late);
    assert!(rig.coordinator.reply_due(id, true, 2_000));
    let id = rig.start(MemoryAction::Set, BOOT_LMBS + 2, 1).unwrap();
    assert_eq!(rig.operation(id).timeline.usable_ns, Some(0));
}

#[test]
fn a_reply_that_waits_for_usable_ends_with_the_deadline_or_a_later_operation() {
    let mut rig = Rig::new();
    let id = rig.add(1);
    rig.run();
    let deadline_ns = rig.coordinator.reply_deadline_ns(id).unwrap();
    assert!(!rig.coordinator.reply_due(id, true, deadline_ns - 1));
    assert!(rig.coordinator.reply_due(id, true, deadline_ns));
    rig.add(1);
    assert!(rig.coordinator.reply_due(id, true, 0));
    assert!(rig.coordinator.reply_due(77, true, 0), "unknown");
    let replied = rig.coordinator.reply(id).unwrap().timeline.replied_ns;
    assert!(replied > rig.operation(id).timeline.last_answer_ns);
}

#[test]
fn a_reset_aborts_what_runs_and_keeps_the_target() {
    let mut rig = Rig::new();
    rig.add(2);
    rig.run();
    let id = rig.add(3);
    rig.host.gate.shut(true);
    rig.guest().step();
    rig.coordinator.on_device_wake();
    assert!(rig.busy(), "an effect is in flight");
    rig.host.gate.shut(false);
    rig.reboot();
    let operation = rig.operation(id);
    assert_eq!(operation.state, OperationState::Aborted);
    assert!(operation.message.unwrap().contains("reset"));
    assert_eq!((rig.plugged_lmbs(), rig.requested_lmbs()), (0, 5));
    rig.assert_agreement();
    // A completion of the old machine's worker may still be signalled.
    rig.coordinator.on_effect_done();
    rig.probe();
    rig.run();
    rig.assert_agreement();
    assert_eq!(rig.plugged_lmbs(), 5, "the guest plugs it again");
    assert_eq!(rig.coordinator.boot().timeline().boots, 2);
    assert_eq!(state(&rig, id), OperationState::Aborted);
}

#[test]
fn the_end_of_the_vm_ends_what_runs() {
    let mut rig = Rig::new();
    let id = rig.add(3);
    rig.coordinator.stop();
    assert_eq!(state(&rig, id), OperationState::Aborted);
    assert!(rig.coordinator.reply_due(id, true, 0));
}

#[test]
fn memory_requested_at_the_start_is_stamped_with_the_boot_and_is_no_operation() {
    let mut rig = Rig::new();
    let total = Bytes::new((BOOT_LMBS + 2) * LMB_BYTES);
    rig.coordinator.request_at_start(total).unwrap();
    assert_eq!(rig.coordinator.boot().timeline().plugged_ns, None);
    rig.run();
    rig.assert_agreement();
    assert_eq!(rig.plugged_lmbs(), 2);
    rig.report_usable(2);
    let boot = rig.coordinator.boot().timeline().clone();
    assert!(boot.plugged_ns.is_some() && boot.plugged_ns < boot.usable_ns);
    assert!(boot.plugged_cpu_ns < boot.usable_cpu_ns);
    assert!(rig.coordinator.operations().is_empty());

    let past = Bytes::new((BOOT_LMBS + WINDOW_LMBS + 1) * LMB_BYTES);
    let refused = rig.coordinator.request_at_start(past);
    assert!(matches!(refused, Err(RequestError::AboveMax { .. })));

    // What an operation does later does not move the boot's stamps.
    rig.add(1);
    rig.run();
    rig.report_usable(3);
    assert_eq!(*rig.coordinator.boot().timeline(), boot);
}

#[test]
fn each_boot_is_stamped_until_an_operation_changes_its_memory() {
    let mut rig = Rig::new();
    rig.add(2);
    rig.run();
    rig.report_usable(2);
    let before = rig.coordinator.boot().timeline().clone();
    assert_eq!((before.plugged_ns, before.usable_ns), (None, None));
    let add = rig.add(1);
    rig.run();

    rig.reboot();
    rig.probe();
    rig.run();
    rig.report_usable(3);
    let boot = rig.coordinator.boot().timeline().clone();
    assert!(boot.plugged_ns.is_some() && boot.plugged_ns < boot.usable_ns);
    let timeline = rig.operation(add).timeline;
    assert_eq!(timeline.usable_ns, None, "that is another boot's report");

    rig.add(1);
    rig.run();
    rig.report_usable(4);
    assert_eq!(*rig.coordinator.boot().timeline(), boot);
}

#[test]
fn the_agent_is_told_the_target_before_the_driver_and_after_a_cancel() {
    let mut rig = Rig::new();
    rig.add(1);
    rig.run();
    let wake = Arc::new(lmb_devices::testing::Counter::default());
    let marks = Arc::new(BootMarks::new(wake, crate::timeline::stamp));
    rig.coordinator.attach_marks(Arc::clone(&marks));
    let told = || {
        let mut ports = [0; 9];
        marks.read(0, &mut ports);
        u64::from_le_bytes(ports[1..].try_into().unwrap()) / LMB_BYTES
    };
    assert_eq!(told(), 1);
    let id = rig.add(4);
    assert_eq!(told(), 5);
    rig.host.gate.shut(true);
    rig.guest().step();
    rig.coordinator.on_device_wake();
    rig.coordinator.cancel(id).unwrap();
    assert_eq!(told(), 1);
    rig.host.gate.shut(false);
    rig.run();
    assert_eq!(told(), 2, "the target follows the effect in flight");
}
