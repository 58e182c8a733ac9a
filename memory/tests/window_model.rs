//! Random operations on a window's memory against a naive model of it, with
//! what the kernel and the VMM's own accesses say after each.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

mod common;

use common::{layout, permissions, resident_bytes, run};
use lmb_memory::{
    BackingOptions, FaultControl, FaultKind, FaultyWindow, HostRam, LmbIndex, MmapWindow, PageSize,
    WindowMemory, WindowOp, create,
};
use proptest::prelude::*;
use vm_memory::{Bytes as _, GuestAddress};

const LMB: u64 = 2 << 20;
const LMBS: usize = 12;

/// What an LMB is: its state, and the number written to it, if any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Empty,
    Open(Option<u64>),
    Held(Option<u64>),
}

fn after(op: WindowOp, state: State) -> Option<State> {
    match (op, state) {
        (WindowOp::Open, State::Empty) => Some(State::Open(None)),
        (WindowOp::Close, State::Open(number)) => Some(State::Held(number)),
        (WindowOp::Reopen, State::Held(number)) => Some(State::Open(number)),
        (WindowOp::Discard, State::Held(_) | State::Empty) => Some(State::Empty),
        _ => None,
    }
}

struct Vm {
    ram: HostRam,
    window: FaultyWindow<MmapWindow>,
    control: FaultControl,
    start: u64,
    model: Vec<State>,
}

impl Vm {
    fn new(shared: bool) -> Self {
        let layout = layout("2M", Some("26M"), "2M", PageSize::Small);
        let options = BackingOptions {
            shared,
            prefault: None,
        };
        let mut ram = create(&layout, &options).unwrap();
        let (window, control) = FaultyWindow::new(ram.window.take().unwrap());
        Self {
            start: layout.window.unwrap().range.start().get(),
            ram,
            window,
            control,
            model: vec![State::Empty; LMBS],
        }
    }

    fn apply(&mut self, op: WindowOp, first: usize, count: usize, fault: bool) {
        if fault {
            self.control.fail(op, 1, FaultKind::OutOfMemory);
        }
        let range = run(first as u64, count as u64);
        let access = self.ram.access.as_ref().unwrap();
        let result = match op {
            WindowOp::Open => self.window.open(range),
            WindowOp::Close => self.window.close(range),
            WindowOp::Reopen => self.window.reopen(range),
            WindowOp::Discard => self.window.discard(range),
        };
        let states = self.model.get(first..first + count);
        let wanted: Option<Vec<State>> =
            states.and_then(|states| states.iter().map(|state| after(op, *state)).collect());
        assert_eq!(result.is_ok(), wanted.is_some() && !fault, "{result:?}");
        if let (Ok(()), Some(wanted)) = (result, wanted) {
            access.set(range, matches!(op, WindowOp::Open | WindowOp::Reopen));
            self.model[first..first + count].copy_from_slice(&wanted);
        }
    }

    fn write(&mut self, lmb: usize, number: u64) {
        let address = GuestAddress(self.start + lmb as u64 * LMB + 4096);
        let written = self.ram.guest.write_obj(number, address);
        match &mut self.model[lmb] {
            State::Open(held) => {
                written.unwrap();
                *held = Some(number);
            }
            _ => assert!(written.is_err()),
        }
    }

    fn check(&self) {
        for (index, state) in (0..).zip(&self.model) {
            let host = self.window.host_address(LmbIndex::new(index));
            let reach = permissions(host);
            let read = self
                .ram
                .guest
                .read_obj::<u64>(GuestAddress(self.start + index * LMB + 4096));
            match state {
                State::Empty => {
                    assert!(reach.starts_with("---") && read.is_err());
                    assert_eq!(resident_bytes(host, LMB), 0);
                }
                State::Held(_) => assert!(reach.starts_with("---") && read.is_err()),
                State::Open(number) => {
                    assert!(reach.starts_with("rw-"));
                    assert_eq!(read.unwrap(), number.unwrap_or(0));
                }
            }
        }
    }
}

fn any_op() -> impl Strategy<Value = WindowOp> {
    prop::sample::select(vec![
        WindowOp::Open,
        WindowOp::Open,
        WindowOp::Close,
        WindowOp::Reopen,
        WindowOp::Discard,
    ])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn agrees_with_the_model(
        shared: bool,
        steps in prop::collection::vec(
            (any_op(), 0..LMBS + 1, 1_usize..5, prop::bool::weighted(0.1), 0..LMBS, 1_u64..),
            0..40,
        ),
    ) {
        let mut vm = Vm::new(shared);
        for (op, first, count, fault, lmb, number) in steps {
            vm.apply(op, first, count, fault);
            vm.write(lmb, number);
            vm.check();
        }
    }
}
