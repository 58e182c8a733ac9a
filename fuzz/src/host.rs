//! The host's half of a window: real memory, opened and closed with real system
//! calls; KVM's slots are counted only. It keeps a record of its own, fails when
//! it is told to, and holds effects back while its gate is shut.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use lmb_memory::{LmbRange, MmapWindow, WindowMemory};
use lmb_vmm::coordinator::{EffectError, WindowEffects};

/// LMBs of one slot.
const SLOT_LMBS: u64 = 4;

/// How the next effect fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is undone.
    Undone,
    /// Undoing it fails too.
    Inconsistent,
}

#[derive(Debug)]
struct State {
    memory: MmapWindow,
    /// LMBs that the guest can reach.
    open: BTreeSet<u64>,
    /// Most LMBs that may be open: the largest target that a request may have
    /// been judged by.
    bound: u64,
    fault: Option<Fault>,
    shut: bool,
}

/// Handle of the host's half. Clones are the same.
#[derive(Clone, Debug)]
pub struct Host(Arc<(Mutex<State>, Condvar)>);

impl Host {
    /// All closed.
    #[must_use]
    pub fn new(memory: MmapWindow) -> Self {
        let state = State {
            memory,
            open: BTreeSet::new(),
            bound: 0,
            fault: None,
            shut: false,
        };
        Self(Arc::new((Mutex::new(state), Condvar::new())))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// LMBs that the guest can reach.
    #[must_use]
    pub fn open(&self) -> BTreeSet<u64> {
        self.state().open.clone()
    }

    /// Slots that hold one of them.
    #[must_use]
    pub fn slots(&self) -> u64 {
        slots(&self.state().open)
    }

    /// Says how many LMBs may be open at most.
    pub fn set_bound(&self, lmbs: u64) {
        self.state().bound = lmbs;
    }

    /// The same, if that is more than before.
    pub fn raise_bound(&self, lmbs: u64) {
        let mut state = self.state();
        state.bound = state.bound.max(lmbs);
    }

    /// Makes the next effect fail.
    pub fn fail(&self, fault: Fault) {
        self.state().fault = Some(fault);
    }

    /// Makes it succeed after all.
    pub fn forgive(&self) {
        self.state().fault = None;
    }

    /// How the next effect fails, if it does.
    #[must_use]
    pub fn fault(&self) -> Option<Fault> {
        self.state().fault
    }

    /// Holds effects back, or lets them go on.
    pub fn shut(&self, shut: bool) {
        self.state().shut = shut;
        self.0.1.notify_all();
    }

    /// Whether it holds them back.
    #[must_use]
    pub fn is_shut(&self) -> bool {
        self.state().shut
    }

    /// The machine is gone: all of its memory goes back.
    pub fn reset(&self) {
        let mut state = self.state();
        for lmb in std::mem::take(&mut state.open) {
            take(&mut state.memory, run_of(lmb));
        }
        state.fault = None;
    }

    /// The half for a new machine.
    #[must_use]
    pub fn effects(&self) -> Box<dyn WindowEffects> {
        Box::new(self.clone())
    }

    /// Waits at the gate; the fault that the effect meets.
    fn enter(&self) -> (MutexGuard<'_, State>, Option<Fault>) {
        let mut state = self.state();
        while state.shut {
            state = self.0.1.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let fault = state.fault.take();
        (state, fault)
    }
}

fn slots(open: &BTreeSet<u64>) -> u64 {
    let slots: BTreeSet<u64> = open.iter().map(|lmb| lmb / SLOT_LMBS).collect();
    slots.len() as u64
}

fn lmbs(runs: &[LmbRange]) -> Vec<u64> {
    let of = |run: &LmbRange| run.first().get()..run.end().get();
    runs.iter().flat_map(of).collect()
}

fn run_of(lmb: u64) -> LmbRange {
    LmbRange::new(lmb_memory::LmbIndex::new(lmb), lmb_memory::LmbCount::new(1))
        .expect("one LMB is a run")
}

fn take(memory: &mut MmapWindow, run: LmbRange) {
    memory.close(run).expect("the memory is open");
    memory.discard(run).expect("the memory is closed");
}

fn failure(fault: Fault) -> EffectError {
    match fault {
        Fault::Undone => EffectError::Undone("it was to fail".to_owned()),
        Fault::Inconsistent => EffectError::Inconsistent("it was to fail".to_owned()),
    }
}

/// A panic here ends the fuzzer: libFuzzer's hook comes before the worker
/// catches it.
impl WindowEffects for Host {
    fn plug(&mut self, runs: &[LmbRange]) -> Result<(), EffectError> {
        let (mut state, fault) = self.enter();
        let coming = lmbs(runs);
        assert!(!coming.is_empty(), "an effect of nothing");
        for lmb in &coming {
            assert!(!state.open.contains(lmb), "LMB {lmb} is plugged twice");
        }
        let have = state.open.len() as u64 + coming.len() as u64;
        assert!(have <= state.bound, "{have} of {} requested", state.bound);
        if let Some(fault) = fault {
            return Err(failure(fault));
        }
        for run in runs {
            state.memory.open(*run).expect("the host has memory");
        }
        state.open.extend(coming);
        Ok(())
    }

    fn unplug(&mut self, runs: &[LmbRange]) -> Result<(), EffectError> {
        let (mut state, fault) = self.enter();
        let going = lmbs(runs);
        assert!(!going.is_empty(), "an effect of nothing");
        for lmb in &going {
            assert!(state.open.contains(lmb), "LMB {lmb} is unplugged twice");
        }
        if let Some(fault) = fault {
            return Err(failure(fault));
        }
        for run in runs {
            take(&mut state.memory, *run);
        }
        for lmb in going {
            assert!(state.open.remove(&lmb), "LMB {lmb} is named twice");
        }
        Ok(())
    }

    fn slots_in_use(&self) -> u64 {
        slots(&self.state().open)
    }
}
