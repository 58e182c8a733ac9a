//! The effect worker: one thread for each window, which owns the window's
//! host memory and KVM slots and does what takes more than a millisecond.
//!
//! States: idle → busy (one job sent) → idle (its completion received), or
//! dead (the job panicked, or the thread is gone) for good. The coordinator
//! sends a job, goes on answering others, and takes the completion when the
//! event descriptor becomes readable. Dropping the handle closes the channel,
//! lets a running job end, and joins the thread, so that host memory and slots
//! are gone when the drop returns.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

use lmb_memory::LmbRange;
use vmm_sys_util::eventfd::EventFd;

use crate::sandbox::{Sandbox, ThreadKind};

/// What an effect could not do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EffectError {
    /// The effect failed and was undone: memory and slots are as before. The
    /// guest may try again.
    #[error("{0}")]
    Undone(String),
    /// The effect failed and so did its undoing: what the window really looks
    /// like is unknown, so no further effect is tried.
    #[error("{0}; undoing it failed too, so this window takes no further change until a reset")]
    Inconsistent(String),
}

/// Changes to a window's host memory and KVM slots. Called on the effect
/// worker's thread only, one call at a time.
pub trait WindowEffects: Send {
    /// Makes `runs` reachable by the guest: accessible host memory first, then
    /// KVM slots.
    ///
    /// # Errors
    ///
    /// [`EffectError::Undone`] when nothing has changed after all.
    fn plug(&mut self, runs: &[LmbRange]) -> Result<(), EffectError>;

    /// Takes `runs` out of the guest's reach, then gives the memory back to
    /// the host.
    ///
    /// # Errors
    ///
    /// [`EffectError::Undone`] when nothing has changed after all.
    fn unplug(&mut self, runs: &[LmbRange]) -> Result<(), EffectError>;

    /// KVM memory slots the window uses now.
    fn slots_in_use(&self) -> u64;
}

/// One effect to do.
#[derive(Clone, Debug)]
pub(super) enum Job {
    /// See [`WindowEffects::plug`].
    Plug(Vec<LmbRange>),
    /// See [`WindowEffects::unplug`].
    Unplug(Vec<LmbRange>),
}

/// How a job ended.
#[derive(Clone, Debug)]
pub(super) struct Completion {
    /// Whether the effect stands, or why not.
    pub(super) result: Result<(), EffectError>,
    /// KVM slots in use after it.
    pub(super) slots_in_use: u64,
}

/// What became of a job when the worker is asked.
#[derive(Debug)]
pub(super) enum Progress {
    /// The job still runs.
    Pending,
    /// The job ended.
    Ended(Completion),
    /// The thread is gone and the job's outcome unknown.
    Dead,
}

/// The worker cannot take the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the effect worker is gone")]
pub(super) struct WorkerGone;

/// Handle of one worker. See the module's head for its states.
#[derive(Debug)]
pub(super) struct EffectWorker {
    jobs: Option<Sender<Job>>,
    completions: Receiver<Completion>,
    thread: Option<JoinHandle<()>>,
    slots_at_start: u64,
}

impl EffectWorker {
    /// Starts the thread, confined by `sandbox`. `done` is written after each
    /// completion.
    pub(super) fn spawn(
        window: usize,
        effects: Box<dyn WindowEffects>,
        done: Arc<EventFd>,
        sandbox: Sandbox,
    ) -> std::io::Result<Self> {
        let slots_at_start = effects.slots_in_use();
        let (jobs, inbox) = channel();
        let (outbox, completions) = channel();
        let thread = std::thread::Builder::new()
            .name(format!("effects{window}"))
            .spawn(move || {
                let confined = sandbox.confine(ThreadKind::Effects);
                match confined {
                    Ok(()) => work(effects, &inbox, outbox, &done),
                    Err(error) => {
                        tracing::error!("an effect worker did not start: {error}");
                        end_of_effects(&inbox, outbox, &done);
                    }
                }
            })?;
        Ok(Self {
            jobs: Some(jobs),
            completions,
            thread: Some(thread),
            slots_at_start,
        })
    }

    /// KVM slots in use when the worker started.
    pub(super) fn slots_at_start(&self) -> u64 {
        self.slots_at_start
    }

    /// Hands a job over. The owner keeps at most one unanswered.
    pub(super) fn submit(&self, job: Job) -> Result<(), WorkerGone> {
        let jobs = self.jobs.as_ref().ok_or(WorkerGone)?;
        jobs.send(job).map_err(|_| WorkerGone)
    }

    /// Takes the completion of the job handed over, if it is there.
    pub(super) fn progress(&self) -> Progress {
        match self.completions.try_recv() {
            Ok(completion) => Progress::Ended(completion),
            Err(TryRecvError::Empty) => Progress::Pending,
            Err(TryRecvError::Disconnected) => Progress::Dead,
        }
    }
}

impl Drop for EffectWorker {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has been reported by its last completion.
            let _ = thread.join();
        }
    }
}

/// The thread: jobs until the channel closes or one of them panics.
fn work(
    mut effects: Box<dyn WindowEffects>,
    inbox: &Receiver<Job>,
    outbox: Sender<Completion>,
    done: &EventFd,
) {
    while let Ok(job) = inbox.recv() {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let result = match &job {
                Job::Plug(runs) => effects.plug(runs),
                Job::Unplug(runs) => effects.unplug(runs),
            };
            Completion {
                result,
                slots_in_use: effects.slots_in_use(),
            }
        }));
        let Ok(completion) = outcome else {
            return end_of_effects(inbox, outbox, done);
        };
        if outbox.send(completion).is_err() {
            return;
        }
        wake(done);
    }
}

/// No effect will be done any more: tells the owner, and keeps the window's
/// memory, on which the guest still runs, until the owner lets go of it.
fn end_of_effects(inbox: &Receiver<Job>, outbox: Sender<Completion>, done: &EventFd) {
    // The channel must be closed before the owner looks at it.
    drop(outbox);
    wake(done);
    while inbox.recv().is_ok() {}
}

fn wake(done: &EventFd) {
    // The counter can only be full if the owner has 2^64 - 2 completions to
    // look at; it is readable then, which is all that matters.
    if let Err(error) = done.write(1) {
        tracing::warn!(%error, "could not signal the end of an effect");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lmb_memory::{LmbCount, LmbIndex};
    use vmm_sys_util::eventfd::EFD_CLOEXEC;

    struct Scripted {
        slots: u64,
    }

    impl WindowEffects for Scripted {
        fn plug(&mut self, runs: &[LmbRange]) -> Result<(), EffectError> {
            self.slots += u64::try_from(runs.len()).unwrap();
            Ok(())
        }
        fn unplug(&mut self, runs: &[LmbRange]) -> Result<(), EffectError> {
            match runs.first() {
                Some(_) => Err(EffectError::Undone("no".into())),
                None => panic!("an empty unplug"),
            }
        }
        fn slots_in_use(&self) -> u64 {
            self.slots
        }
    }

    fn run() -> LmbRange {
        LmbRange::new(LmbIndex::new(0), LmbCount::new(1)).unwrap()
    }

    fn worker() -> (EffectWorker, Arc<EventFd>) {
        let done = Arc::new(EventFd::new(EFD_CLOEXEC).unwrap());
        let worker = EffectWorker::spawn(
            0,
            Box::new(Scripted { slots: 3 }),
            Arc::clone(&done),
            Sandbox::off(),
        );
        (worker.unwrap(), done)
    }

    #[test]
    fn completions_carry_results_and_slots() {
        let (worker, done) = worker();
        assert_eq!(worker.slots_at_start(), 3);
        worker.submit(Job::Plug(vec![run(), run()])).unwrap();
        done.read().unwrap();
        let Progress::Ended(completion) = worker.progress() else {
            panic!("woken without a completion");
        };
        assert_eq!((completion.result, completion.slots_in_use), (Ok(()), 5));
        assert!(matches!(worker.progress(), Progress::Pending));
        worker.submit(Job::Unplug(vec![run()])).unwrap();
        done.read().unwrap();
        let Progress::Ended(completion) = worker.progress() else {
            panic!("woken without a completion");
        };
        assert_eq!(completion.result, Err(EffectError::Undone("no".into())));
    }

    #[test]
    fn a_panic_in_an_effect_is_seen_as_a_dead_worker() {
        let (worker, done) = worker();
        worker.submit(Job::Unplug(Vec::new())).unwrap();
        done.read().unwrap();
        assert!(matches!(worker.progress(), Progress::Dead));
    }

    #[test]
    fn dropping_the_handle_lets_the_running_job_end_first() {
        struct Slow(std::sync::mpsc::Receiver<()>, std::sync::mpsc::Sender<()>);
        impl WindowEffects for Slow {
            fn plug(&mut self, _: &[LmbRange]) -> Result<(), EffectError> {
                self.0.recv().unwrap();
                self.1.send(()).unwrap();
                Ok(())
            }
            fn unplug(&mut self, _: &[LmbRange]) -> Result<(), EffectError> {
                Ok(())
            }
            fn slots_in_use(&self) -> u64 {
                0
            }
        }
        let (release, gate) = channel();
        let (ended, end) = channel();
        let done = Arc::new(EventFd::new(EFD_CLOEXEC).unwrap());
        let worker =
            EffectWorker::spawn(0, Box::new(Slow(gate, ended)), done, Sandbox::off()).unwrap();
        worker.submit(Job::Plug(vec![run()])).unwrap();
        release.send(()).unwrap();
        drop(worker);
        assert_eq!(end.try_recv(), Ok(()));
    }
}
