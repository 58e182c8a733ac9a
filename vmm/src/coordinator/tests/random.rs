//! Random histories: whatever clients, guests, faults and resets do in
//! whatever order, all books agree whenever nothing is in flight.

use lmb_devices::MemRequest;
use lmb_memory::{FaultKind, WindowOp};
use proptest::prelude::*;

use super::rig::{BOOT_LMBS, LMB_BYTES, Rig, WINDOW_LMBS};
use crate::protocol::{MemoryAction, Operation, OperationState};

#[derive(Clone, Debug)]
enum Event {
    Start(MemoryAction, u64, u64),
    Cancel,
    /// The guest's worker makes steps; effects end in between, or not.
    Guest(u8, bool),
    Raw(MemRequest),
    Hold(bool),
    Fault(WindowOp),
    Pass(u64),
    Reprobe,
    Reboot,
}

fn action() -> impl Strategy<Value = MemoryAction> {
    prop_oneof![
        Just(MemoryAction::Set),
        Just(MemoryAction::Add),
        Just(MemoryAction::Remove)
    ]
}

/// Requests around the window, as offsets into it and block counts.
fn raw() -> impl Strategy<Value = MemRequest> {
    let place = (
        0..WINDOW_LMBS + 2,
        prop_oneof![9 => Just(0_u64), 1 => 1_u64..LMB_BYTES],
        0_u16..6,
    );
    (0_u8..4, place).prop_map(|(kind, (lmb, odd, nb_blocks))| {
        let addr = lmb * LMB_BYTES + odd;
        match kind {
            0 => MemRequest::Plug { addr, nb_blocks },
            1 => MemRequest::Unplug { addr, nb_blocks },
            2 => MemRequest::State { addr, nb_blocks },
            _ => MemRequest::UnplugAll,
        }
    })
}

fn event() -> impl Strategy<Value = Event> {
    let op = prop_oneof![
        Just(WindowOp::Open),
        Just(WindowOp::Close),
        Just(WindowOp::Discard)
    ];
    prop_oneof![
        4 => (action(), 0..BOOT_LMBS + WINDOW_LMBS + 2, 1_u64..4_000).prop_map(|(a, l, t)| Event::Start(a, l, t)),
        1 => Just(Event::Cancel),
        6 => (0_u8..12, any::<bool>()).prop_map(|(steps, settle)| Event::Guest(steps, settle)),
        2 => raw().prop_map(Event::Raw),
        1 => any::<bool>().prop_map(Event::Hold),
        2 => op.prop_map(Event::Fault),
        2 => (1_u64..3_000).prop_map(Event::Pass),
        1 => Just(Event::Reprobe),
        1 => Just(Event::Reboot),
    ]
}

/// The raw request at the guest's real addresses.
fn placed(request: MemRequest, base: u64) -> MemRequest {
    match request {
        MemRequest::Plug { addr, nb_blocks } => MemRequest::Plug {
            addr: base + addr,
            nb_blocks,
        },
        MemRequest::Unplug { addr, nb_blocks } => MemRequest::Unplug {
            addr: base + addr,
            nb_blocks,
        },
        MemRequest::State { addr, nb_blocks } => MemRequest::State {
            addr: base + addr,
            nb_blocks,
        },
        MemRequest::UnplugAll => MemRequest::UnplugAll,
    }
}

/// A new driver does as Linux does at probe.
fn reprobe(rig: &mut Rig) {
    rig.probe();
    if rig.plugged_lmbs() > 0 || rig.busy() {
        quiesce(rig);
        rig.guest().driver.send(MemRequest::UnplugAll);
        rig.coordinator.on_device_wake();
        rig.await_effect();
        rig.guest().driver.take_answer().expect("an answer");
        // BUSY leaves blocks plugged: the driver would give up here, and a
        // book of its own that differs is what a hostile guest looks like.
        if rig.plugged_lmbs() > 0 {
            rig.reboot();
            rig.probe();
        }
    }
}

/// Lets effects end.
fn quiesce(rig: &mut Rig) {
    rig.host.gate.shut(false);
    rig.coordinator.on_device_wake();
    rig.await_effect();
}

fn apply(rig: &mut Rig, event: &Event) {
    match event {
        Event::Start(action, lmbs, timeout_ms) => {
            // Refusals are judged by tests of their own.
            let _ = rig.start(*action, *lmbs, *timeout_ms);
        }
        Event::Cancel => {
            let newest = rig
                .coordinator
                .operations()
                .last()
                .map(|operation| operation.id);
            let _ = newest.map(|id| rig.coordinator.cancel(id));
        }
        Event::Guest(steps, settle) => {
            for _ in 0..*steps {
                rig.guest().step();
                rig.coordinator.on_device_wake();
                if *settle {
                    quiesce(rig);
                }
            }
        }
        Event::Raw(request) => {
            // A stranger's request, and then a driver that knows of nothing.
            quiesce(rig);
            while rig.guest().step() {
                quiesce(rig);
            }
            let base = rig.guest().address_of(0);
            rig.guest().driver.send(placed(*request, base));
            quiesce(rig);
            rig.guest().driver.take_answer().expect("an answer");
            reprobe(rig);
        }
        Event::Hold(hold) => rig.host.gate.shut(*hold),
        Event::Fault(op) => rig.faults.fail(*op, 1, FaultKind::OutOfMemory),
        Event::Pass(ms) => rig.pass_ms(*ms),
        Event::Reprobe => reprobe(rig),
        Event::Reboot => {
            rig.host.gate.shut(false);
            rig.reboot();
            rig.probe();
        }
    }
}

/// What must hold at any time.
fn check_history(before: &[Operation], now: &[Operation]) {
    let running = |operation: &&Operation| operation.state == OperationState::Running;
    assert!(now.iter().filter(running).count() <= 1);
    assert!(
        now.iter()
            .rev()
            .skip(1)
            .all(|operation| !running(&operation))
    );
    for old in before.iter().filter(|operation| !running(operation)) {
        if let Some(new) = now.iter().find(|new| new.id == old.id) {
            assert_eq!(
                (new.state, new.plugged_bytes),
                (old.state, old.plugged_bytes)
            );
        }
    }
    for operation in now {
        if operation.state == OperationState::Done {
            assert_eq!(operation.plugged_bytes, operation.target_bytes);
        }
        let answers = operation.requests.ack
            + operation.requests.nack
            + operation.requests.busy
            + operation.requests.error;
        let requests = operation.requests.plug
            + operation.requests.unplug
            + operation.requests.unplug_all
            + operation.requests.state;
        // An answer may belong to a request from before the operation.
        assert!(answers <= requests + 1, "{operation:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn books_agree_after_any_history(events in proptest::collection::vec(event(), 1..50)) {
        let mut rig = Rig::new();
        let mut before = Vec::new();
        for event in &events {
            apply(&mut rig, event);
            let now = rig.coordinator.operations();
            check_history(&before, &now);
            before = now;
            if !rig.busy() {
                rig.assert_agreement();
            }
        }
        // Left alone, with a host that recovers, the guest reaches the target.
        quiesce(&mut rig);
        for _ in 0..200 {
            rig.run();
            rig.assert_agreement();
            if rig.plugged_lmbs() == rig.requested_lmbs() {
                break;
            }
            rig.pass_ms(40_000);
        }
        prop_assert_eq!(rig.plugged_lmbs(), rig.requested_lmbs());
    }
}
