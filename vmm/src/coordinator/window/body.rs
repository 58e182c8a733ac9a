//! What every window has, whatever its guest's half speaks: its book, and its
//! host's half (access map and effect worker) with the one effect in flight.
//!
//! States of the host's half: absent (before the first start and while the
//! machine is built anew) → idle → a plan is held → submitted → idle. A window
//! whose effect could not be undone, or whose worker died, has *failed*: it
//! starts no effect until the machine is built anew.
//!
//! The order is the design's: plan, effect, commit. The VMM's own access to
//! LMBs ends before an unplug's effect begins and starts after a plug's effect
//! ended. Owner: the window.

use std::io;
use std::sync::Arc;

use lmb_devices::Stamp;
use lmb_memory::{
    AccessMap, Ledger, LmbCount, LmbIndex, LmbRange, LmbSize, Plan, PlanKind, WindowLayout,
};
use vmm_sys_util::eventfd::EventFd;

use crate::sandbox::Sandbox;

use crate::coordinator::loudness::Loudness;
use crate::coordinator::worker::{
    Completion, EffectError, EffectWorker, Job, Progress, WindowEffects, WorkerGone,
};
use crate::protocol::{AddressRange, LmbRun, LmbState, WindowInfo};

/// How the effect of a plan ended.
#[derive(Debug)]
pub(super) enum Ended {
    /// It stands; the plan is to be committed.
    Done(Plan),
    /// It failed and was undone; the plan is to be aborted.
    Undone(Plan),
    /// It failed and so did its undoing, or nobody knows; the plan is to be
    /// aborted, and the window has failed.
    Failed(Plan),
}

struct HostHalf {
    access: AccessMap,
    worker: EffectWorker,
    held: Option<Plan>,
    slots: u64,
    undone_told: Loudness,
}

/// See the module's head.
pub(in crate::coordinator) struct Body {
    pub(super) id: u32,
    pub(super) node: u32,
    /// Index of its first LMB in the VM.
    pub(super) first_lmb: u64,
    pub(super) ledger: Ledger,
    /// Why the last change failed on the host, until one succeeds.
    pub(super) last_trouble: Option<String>,
    /// The guest's last answer, or the last one to it.
    pub(super) last_answer: Option<Stamp>,
    host: Option<HostHalf>,
    failed: Option<String>,
}

impl Body {
    pub(super) fn new(id: u32, layout: &WindowLayout, lmb: LmbSize, first_lmb: u64) -> Self {
        Self {
            id,
            node: 0,
            first_lmb,
            ledger: Ledger::new(layout, lmb),
            last_trouble: None,
            last_answer: None,
            host: None,
            failed: None,
        }
    }

    /// Takes the host's half; the book must show as plugged what `effects`
    /// has plugged.
    pub(super) fn attach(
        &mut self,
        access: AccessMap,
        effects: Box<dyn WindowEffects>,
        done: Arc<EventFd>,
        sandbox: Sandbox,
    ) -> io::Result<()> {
        let number = usize::try_from(self.id).unwrap_or(usize::MAX);
        let worker = EffectWorker::spawn(number, effects, done, sandbox)?;
        for run in self.ledger.plugged_runs() {
            access.set(run, true);
        }
        self.host = Some(HostHalf {
            access,
            slots: worker.slots_at_start(),
            worker,
            held: None,
            undone_told: Loudness::default(),
        });
        Ok(())
    }

    /// Lets go of the host's half and resets the book; what is requested
    /// stays. Waits for an effect in flight, so that host memory and slots are
    /// free afterwards.
    pub(super) fn reset(&mut self) {
        self.host = None;
        self.ledger.reset();
        self.failed = None;
        self.last_trouble = None;
        self.last_answer = None;
    }

    pub(super) fn attached(&self) -> bool {
        self.host.is_some()
    }

    /// The plan whose effect is in flight.
    pub(super) fn held(&self) -> Option<&Plan> {
        self.host.as_ref()?.held.as_ref()
    }

    /// Whether an effect runs.
    pub(super) fn busy(&self) -> bool {
        self.held().is_some()
    }

    /// Keeps a plan as the one in flight, not submitted yet. Gives it back
    /// where no effect can be started: the window has failed or has no host's
    /// half.
    pub(super) fn hold(&mut self, plan: Plan) -> Result<(), Plan> {
        let failed = self.failed.is_some();
        match self
            .host
            .as_mut()
            .filter(|host| !failed && host.held.is_none())
        {
            Some(host) => {
                host.held = Some(plan);
                Ok(())
            }
            None => Err(plan),
        }
    }

    /// Takes back a plan that is held and was not submitted.
    pub(super) fn let_go(&mut self) -> Option<Plan> {
        self.host.as_mut()?.held.take()
    }

    /// Hands the effect of the plan held to the worker.
    pub(super) fn submit(&self) -> Result<(), WorkerGone> {
        let host = self.host.as_ref().ok_or(WorkerGone)?;
        let plan = host.held.as_ref().ok_or(WorkerGone)?;
        let runs = plan.runs().to_vec();
        host.worker.submit(match plan.kind() {
            PlanKind::Plug => Job::Plug(runs),
            PlanKind::Unplug | PlanKind::UnplugAll => {
                set_access(&host.access, &runs, false);
                Job::Unplug(runs)
            }
        })
    }

    /// Takes the end of the effect in flight, if it has come. The plan is
    /// neither committed nor aborted yet.
    pub(super) fn take_end(&mut self, now_ns: u64) -> Option<Ended> {
        let host = self.host.as_mut()?;
        let progress = host.worker.progress();
        if matches!(progress, Progress::Pending) {
            return None;
        }
        let plan = host.held.take()?;
        Some(match progress {
            Progress::Ended(completion) => self.conclude(plan, completion, now_ns),
            Progress::Pending | Progress::Dead => {
                self.fail("its effect worker died".to_owned());
                Ended::Failed(plan)
            }
        })
    }

    fn conclude(&mut self, plan: Plan, completion: Completion, now_ns: u64) -> Ended {
        let plug = plan.kind() == PlanKind::Plug;
        if let Some(host) = &mut self.host {
            host.slots = completion.slots_in_use;
            // What is plugged after all, or still is, may be touched again.
            let reachable = match completion.result {
                Ok(()) => plug,
                Err(EffectError::Undone(_)) => !plug,
                Err(EffectError::Inconsistent(_)) => false,
            };
            if reachable {
                set_access(&host.access, plan.runs(), true);
            }
        }
        match completion.result {
            Ok(()) => {
                self.last_trouble = None;
                Ended::Done(plan)
            }
            Err(EffectError::Undone(trouble)) => {
                self.tell_undone(&trouble, now_ns);
                self.last_trouble = Some(trouble);
                Ended::Undone(plan)
            }
            Err(error @ EffectError::Inconsistent(_)) => {
                self.fail(error.to_string());
                Ended::Failed(plan)
            }
        }
    }

    fn tell_undone(&mut self, trouble: &str, now_ns: u64) {
        let window = self.id;
        let told = self.host.as_mut().map(|host| &mut host.undone_told);
        if told.is_some_and(|told| told.loud(trouble, now_ns)) {
            tracing::warn!(window, %trouble, "a change of memory failed and was undone");
        } else {
            tracing::debug!(window, %trouble, "a change of memory failed again and was undone");
        }
    }

    /// Books a plan whose effect stands.
    pub(super) fn commit(&mut self, plan: Plan) {
        if !self.ledger.commit(plan) {
            tracing::error!(window = self.id, "the book refused a plan of its own");
        }
    }

    /// Makes what is requested `lmbs`, which the book shows as plugged or
    /// which was checked before.
    pub(super) fn follow(&mut self, lmbs: LmbCount) {
        if let Err(error) = self.ledger.set_requested(lmbs) {
            tracing::error!(window = self.id, %error, "the book refused what it shows as plugged");
        }
    }

    /// The window takes no change any more until a reset.
    pub(super) fn fail(&mut self, reason: String) {
        tracing::error!(window = self.id, %reason, "a window takes no further change until a reset");
        self.failed = Some(reason);
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// Why the window takes no changes until a reset, if so, for people.
    pub(super) fn failure(&self) -> Option<String> {
        let failed = self.failed.as_ref()?;
        Some(format!("window {} takes no changes: {failed}", self.id))
    }

    /// Why the last change failed on the host, for people.
    pub(super) fn trouble(&self) -> Option<String> {
        let trouble = self.last_trouble.as_ref()?;
        Some(format!("the last change failed on the host: {trouble}"))
    }

    /// How an LMB stands by the book alone.
    pub(super) fn state_of(&self, lmb: u64) -> LmbState {
        if self.ledger.is_plugged(LmbIndex::new(lmb)) {
            LmbState::Plugged
        } else {
            LmbState::Unplugged
        }
    }

    /// `count` LMBs of the window from `first`, as clients see them.
    pub(super) fn lmb_run(&self, first: u64, count: u64, state: LmbState) -> LmbRun {
        let mut run = LmbRun {
            first: self.first_lmb.saturating_add(first),
            count,
            state,
            node: self.node,
            ranges: Vec::new(),
            guest_has: None,
            last_failure: None,
        };
        self.set_range(&mut run);
        run
    }

    /// Makes the run's range fit its LMBs.
    pub(super) fn set_range(&self, run: &mut LmbRun) {
        let first = run.first.saturating_sub(self.first_lmb);
        let range = LmbRange::new(LmbIndex::new(first), LmbCount::new(run.count))
            .ok()
            .and_then(|range| self.ledger.guest_range(range));
        run.ranges = range
            .map(|range| AddressRange {
                start_address: range.start().get(),
                size_bytes: range.len().get(),
            })
            .into_iter()
            .collect();
    }

    /// How the LMBs stand by the book alone, runs of equal ones.
    pub(super) fn lmbs(&self) -> Vec<LmbRun> {
        let mut runs = Vec::new();
        let mut next = 0;
        for plugged in self.ledger.plugged_runs() {
            let first = plugged.first().get();
            if first > next {
                runs.push(self.lmb_run(next, first - next, LmbState::Unplugged));
            }
            runs.push(self.lmb_run(first, plugged.count().get(), LmbState::Plugged));
            next = plugged.end().get();
        }
        let total = self.ledger.total_lmbs().get();
        if total > next {
            runs.push(self.lmb_run(next, total - next, LmbState::Unplugged));
        }
        runs
    }

    /// The window as clients see it, without what its guest's half knows.
    pub(super) fn info(&self) -> WindowInfo {
        let view = self.ledger.config();
        WindowInfo {
            id: self.id,
            node: self.node,
            start_address: view.addr,
            size_bytes: view.region_size,
            usable_bytes: view.usable_region_size,
            requested_bytes: view.requested_size,
            plugged_bytes: view.plugged_size,
            total_lmbs: self.ledger.total_lmbs().get(),
            requested_lmbs: self.ledger.requested_lmbs().get(),
            plugged_lmbs: self.ledger.plugged_lmbs().get(),
            first_lmb: self.first_lmb,
            driver_active: false,
            slots: self.host.as_ref().map_or(0, |host| host.slots),
            requests: crate::protocol::RequestCounts::default(),
            acpi: None,
            error: self.failed.clone(),
        }
    }
}

fn set_access(access: &AccessMap, runs: &[LmbRange], reachable: bool) {
    for &run in runs {
        access.set(run, reachable);
    }
}
