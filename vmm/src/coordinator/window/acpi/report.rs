//! A window of ACPI devices as clients and people see it: computed from the
//! books at the moment of asking.

use super::book::{Book, Standing};
use super::{AcpiWindow, Goal};
use crate::protocol::{LmbChange, LmbFailure, LmbOutcome, LmbRun, LmbState};

/// LMBs named in a sentence before it says "and more".
const NAMED: usize = 4;

/// How an LMB stands, for clients.
pub(super) fn state_of(standing: Standing) -> LmbState {
    match standing {
        Standing::Absent => LmbState::Unplugged,
        Standing::Queued | Standing::Plugging | Standing::Offered { .. } => LmbState::Adding,
        Standing::Present => LmbState::Plugged,
        Standing::Asked { .. } => LmbState::Removing,
        Standing::Ejected | Standing::Unplugging => LmbState::Leaving,
    }
}

fn guest_has(standing: Standing) -> Option<bool> {
    match standing {
        Standing::Present | Standing::Asked { .. } => Some(true),
        // It may be about to.
        Standing::Offered { .. } => None,
        _ => Some(false),
    }
}

/// LMBs by their index in the VM, for a sentence.
fn names(first_lmb: u64, lmbs: &[u32]) -> String {
    let mut words: Vec<String> = lmbs
        .iter()
        .take(NAMED)
        .map(|lmb| format!("{:#x}", first_lmb.saturating_add(u64::from(*lmb))))
        .collect();
    if lmbs.len() > NAMED {
        words.push(format!("{} more", lmbs.len() - NAMED));
    }
    let noun = if lmbs.len() == 1 { "LMB" } else { "LMBs" };
    format!("{noun} {}", words.join(", "))
}

fn those(book: &Book, wanted: impl Fn(Standing) -> bool) -> Vec<u32> {
    book.iter()
        .filter(|(_, standing)| wanted(*standing))
        .map(|(lmb, _)| lmb)
        .collect()
}

impl AcpiWindow {
    fn names(&self, lmbs: &[u32]) -> String {
        names(self.body.first_lmb, lmbs)
    }

    /// What the guest has been asked and has not answered, or on what else an
    /// operation waits.
    pub(super) fn pending_text(&self) -> Option<String> {
        let asked = those(&self.talk.book, |has| matches!(has, Standing::Asked { .. }));
        if !asked.is_empty() {
            let mut text = format!("the guest still holds {}", self.names(&asked));
            if let Some(working) = self.talk.working_on {
                text.push_str(&format!(" and works on {}", self.names(&[working])));
            }
            return Some(text);
        }
        let offered = those(&self.talk.book, |has| {
            matches!(has, Standing::Offered { .. })
        });
        if !offered.is_empty() {
            let text = format!("the guest has not answered for {}", self.names(&offered));
            return Some(text);
        }
        None
    }

    /// What an earlier operation left with the guest.
    pub(super) fn late_text(&self) -> Option<String> {
        let late = those(&self.talk.book, |has| {
            matches!(
                has,
                Standing::Asked { late: true } | Standing::Offered { late: true }
            )
        });
        if late.is_empty() || self.talk.goal == Goal::Rest {
            return None;
        }
        Some(format!(
            "waits behind {}, which the guest still works on for an earlier request",
            self.names(&late)
        ))
    }

    /// Why an operation that is at rest has not got what it wanted.
    pub(super) fn why_short(&self) -> String {
        let refused: Vec<(&u32, &super::Fate)> = self
            .talk
            .fates
            .iter()
            .filter(|(_, fate)| fate.outcome == LmbOutcome::Refused)
            .collect();
        let mut text = match refused.first() {
            None => "no other LMB is left to ask for".to_owned(),
            Some((_, fate)) => {
                let lmbs: Vec<u32> = refused.iter().map(|(lmb, _)| **lmb).collect();
                let reason = fate.reason.as_deref().unwrap_or("no reason");
                format!("the guest refused {} ({reason})", self.names(&lmbs))
            }
        };
        let restored: Vec<u32> = self
            .talk
            .fates
            .iter()
            .filter(|(_, fate)| fate.outcome == LmbOutcome::Restored)
            .map(|(lmb, _)| *lmb)
            .collect();
        if !restored.is_empty() {
            text.push_str(&format!(
                "; {} removed before that and added again",
                if restored.len() == 1 {
                    format!("{} was", self.names(&restored))
                } else {
                    format!("{} were", self.names(&restored))
                }
            ));
        }
        text
    }

    /// What became of each LMB, runs of those that fared alike.
    pub(super) fn fate_runs(&self) -> Vec<LmbChange> {
        let mut runs: Vec<LmbChange> = Vec::new();
        for (lmb, fate) in &self.talk.fates {
            let index = self.body.first_lmb.saturating_add(u64::from(*lmb));
            match runs.last_mut() {
                Some(run)
                    if run.first.saturating_add(run.count) == index
                        && run.outcome == fate.outcome
                        && run.reason == fate.reason =>
                {
                    run.count = run.count.saturating_add(1);
                }
                _ => runs.push(LmbChange {
                    first: index,
                    count: 1,
                    outcome: fate.outcome,
                    reason: fate.reason.clone(),
                }),
            }
        }
        runs
    }

    /// How the LMBs stand, runs of equal ones.
    pub(super) fn standing_runs(&self) -> Vec<LmbRun> {
        let mut runs: Vec<LmbRun> = Vec::new();
        for (lmb, standing) in self.talk.book.iter() {
            let failure = self.talk.failures.get(&lmb).map(|failure| LmbFailure {
                action: failure.action,
                ost_status: failure.status.raw(),
                reason: failure.status.to_string(),
                at_ns: failure.at_ns,
            });
            let (state, guest_has) = (state_of(standing), guest_has(standing));
            match runs.last_mut() {
                Some(run)
                    if run.state == state
                        && run.guest_has == guest_has
                        && run.last_failure.is_none()
                        && failure.is_none() =>
                {
                    run.count = run.count.saturating_add(1);
                }
                _ => {
                    let mut run = self.body.lmb_run(u64::from(lmb), 1, state);
                    run.guest_has = guest_has;
                    run.last_failure = failure;
                    runs.push(run);
                    continue;
                }
            }
            if let Some(run) = runs.last_mut() {
                self.body.set_range(run);
            }
        }
        runs
    }
}
