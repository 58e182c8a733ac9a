//! How each LMB of a window stands between the VMM and the guest: pure, and
//! the only place where these states change.
//!
//! States of an LMB:
//!
//! - *absent* → *queued* (to be plugged) → *plugging* (the effect runs) →
//!   *offered* (there, and the guest asked to add it) → *present*, or, when
//!   the guest could not add it, *asked*;
//! - *present* → *asked* (the guest is to give it back) → *ejected* (given
//!   back; the host has not taken its memory yet) → *unplugging* → *absent*;
//!   *asked* → *present* when the guest cannot, or has not read of it yet;
//! - *offered* → *withdrawn from* → *ejected* when the guest has not read of it
//!   yet. A guest may eject whatever it has, asked or not.
//!
//! What an ended operation left in *offered* or *asked* is *late*: the guest
//! still works on it, and no operation waits for it any more.

use std::collections::BTreeSet;

use lmb_memory::{LmbCount, LmbIndex, LmbRange};

/// How an LMB stands; see the module's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Absent,
    Queued,
    Plugging,
    Offered { late: bool },
    Present,
    Asked { late: bool },
    Ejected,
    Unplugging,
}

/// How many LMBs stand how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) queued: u32,
    pub(super) plugging: u32,
    pub(super) offered: u32,
    pub(super) offered_late: u32,
    pub(super) present: u32,
    pub(super) asked: u32,
    pub(super) asked_late: u32,
    /// Ejected or unplugging.
    pub(super) leaving: u32,
}

impl Tally {
    /// LMBs that the guest has or will have as things stand.
    pub(super) fn staying(&self) -> u32 {
        self.queued + self.plugging + self.offered + self.offered_late + self.present
    }

    /// Whether nothing is under way that an operation waits for.
    pub(super) fn at_rest(&self) -> bool {
        self.queued + self.plugging + self.offered + self.asked + self.leaving == 0
    }

    fn field(&mut self, standing: Standing) -> Option<&mut u32> {
        Some(match standing {
            Standing::Absent => return None,
            Standing::Queued => &mut self.queued,
            Standing::Plugging => &mut self.plugging,
            Standing::Offered { late: false } => &mut self.offered,
            Standing::Offered { late: true } => &mut self.offered_late,
            Standing::Present => &mut self.present,
            Standing::Asked { late: false } => &mut self.asked,
            Standing::Asked { late: true } => &mut self.asked_late,
            Standing::Ejected | Standing::Unplugging => &mut self.leaving,
        })
    }
}

/// The standings of a window's LMBs.
#[derive(Debug)]
pub(super) struct Book {
    lmbs: Vec<Standing>,
    tally: Tally,
    queued: BTreeSet<u32>,
    ejected: BTreeSet<u32>,
}

impl Book {
    /// A book of `lmbs` absent LMBs.
    pub(super) fn new(lmbs: u32) -> Self {
        Self {
            lmbs: (0..lmbs).map(|_| Standing::Absent).collect(),
            tally: Tally::default(),
            queued: BTreeSet::new(),
            ejected: BTreeSet::new(),
        }
    }

    pub(super) fn tally(&self) -> Tally {
        self.tally
    }

    /// How an LMB stands; one outside the window is absent.
    pub(super) fn get(&self, lmb: u32) -> Standing {
        usize::try_from(lmb)
            .ok()
            .and_then(|lmb| self.lmbs.get(lmb))
            .copied()
            .unwrap_or(Standing::Absent)
    }

    /// Makes an LMB of the window stand so.
    pub(super) fn set(&mut self, lmb: u32, standing: Standing) {
        let Some(entry) = usize::try_from(lmb)
            .ok()
            .and_then(|lmb| self.lmbs.get_mut(lmb))
        else {
            return;
        };
        let before = std::mem::replace(entry, standing);
        if let Some(count) = self.tally.field(before) {
            *count = count.saturating_sub(1);
        }
        if let Some(count) = self.tally.field(standing) {
            *count = count.saturating_add(1);
        }
        match before {
            Standing::Queued => _ = self.queued.remove(&lmb),
            Standing::Ejected => _ = self.ejected.remove(&lmb),
            _ => {}
        }
        match standing {
            Standing::Queued => _ = self.queued.insert(lmb),
            Standing::Ejected => _ = self.ejected.insert(lmb),
            _ => {}
        }
    }

    /// The lowest queued LMBs, at most `limit`.
    pub(super) fn next_queued(&self, limit: usize) -> Vec<u32> {
        self.queued.iter().copied().take(limit).collect()
    }

    /// The highest queued LMB.
    pub(super) fn last_queued(&self) -> Option<u32> {
        self.queued.last().copied()
    }

    /// All ejected LMBs, ascending.
    pub(super) fn ejected(&self) -> Vec<u32> {
        self.ejected.iter().copied().collect()
    }

    /// All LMBs, ascending.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (u32, Standing)> + '_ {
        self.lmbs.iter().enumerate().map(|(lmb, standing)| {
            // The table was made from a u32 count.
            (u32::try_from(lmb).unwrap_or(u32::MAX), *standing)
        })
    }

    /// LMBs that stand so, ascending.
    pub(super) fn those(&self, standing: Standing) -> impl DoubleEndedIterator<Item = u32> + '_ {
        self.iter()
            .filter(move |(_, has)| *has == standing)
            .map(|(lmb, _)| lmb)
    }

    /// An operation ended: what it left with the guest is late, and what it
    /// has not begun is given up.
    pub(super) fn left_alone(&mut self) {
        let all: Vec<(u32, Standing)> = self.iter().collect();
        for (lmb, standing) in all {
            match standing {
                Standing::Queued => self.set(lmb, Standing::Absent),
                Standing::Offered { .. } => self.set(lmb, Standing::Offered { late: true }),
                Standing::Asked { .. } => self.set(lmb, Standing::Asked { late: true }),
                _ => {}
            }
        }
    }
}

/// Ascending LMBs as runs.
pub(super) fn runs(lmbs: &[u32]) -> Vec<LmbRange> {
    lmbs.chunk_by(|a, b| a.checked_add(1) == Some(*b))
        .filter_map(|chunk| {
            let first = LmbIndex::new(u64::from(*chunk.first()?));
            let count = LmbCount::new(u64::try_from(chunk.len()).ok()?);
            LmbRange::new(first, count).ok()
        })
        .collect()
}

/// The LMBs of runs of a window that has at most [`u32::MAX`] of them.
pub(super) fn lmbs(runs: &[LmbRange]) -> impl Iterator<Item = u32> + '_ {
    runs.iter()
        .flat_map(|run| run.first().get()..run.end().get())
        .filter_map(|lmb| u32::try_from(lmb).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LMBS: u32 = 20;

    fn standing() -> impl Strategy<Value = Standing> {
        prop_oneof![
            Just(Standing::Absent),
            Just(Standing::Queued),
            Just(Standing::Plugging),
            any::<bool>().prop_map(|late| Standing::Offered { late }),
            Just(Standing::Present),
            any::<bool>().prop_map(|late| Standing::Asked { late }),
            Just(Standing::Ejected),
            Just(Standing::Unplugging),
        ]
    }

    proptest! {
        #[test]
        fn the_tally_and_the_queues_are_what_a_count_gives(
            moves in prop::collection::vec((0_u32..LMBS + 3, standing(), any::<bool>()), 0..80),
        ) {
            let mut book = Book::new(LMBS);
            let mut naive = vec![Standing::Absent; LMBS as usize];
            for (lmb, standing, alone) in moves {
                book.set(lmb, standing);
                if let Some(entry) = naive.get_mut(lmb as usize) {
                    *entry = standing;
                }
                if alone && lmb % 5 == 0 {
                    book.left_alone();
                    for entry in &mut naive {
                        *entry = match *entry {
                            Standing::Queued => Standing::Absent,
                            Standing::Offered { .. } => Standing::Offered { late: true },
                            Standing::Asked { .. } => Standing::Asked { late: true },
                            other => other,
                        };
                    }
                }
            }
            let count = |wanted: &[Standing]| {
                u32::try_from(naive.iter().filter(|has| wanted.contains(has)).count()).unwrap()
            };
            let tally = book.tally();
            prop_assert_eq!(tally.queued, count(&[Standing::Queued]));
            prop_assert_eq!(tally.asked, count(&[Standing::Asked { late: false }]));
            prop_assert_eq!(tally.asked_late, count(&[Standing::Asked { late: true }]));
            prop_assert_eq!(tally.leaving, count(&[Standing::Ejected, Standing::Unplugging]));
            prop_assert_eq!(tally.staying(), count(&[
                Standing::Queued, Standing::Plugging, Standing::Present,
                Standing::Offered { late: false }, Standing::Offered { late: true },
            ]));
            prop_assert_eq!(tally.at_rest(), count(&[
                Standing::Queued, Standing::Plugging, Standing::Offered { late: false },
                Standing::Asked { late: false }, Standing::Ejected, Standing::Unplugging,
            ]) == 0);
            let queued: Vec<u32> = book.those(Standing::Queued).collect();
            prop_assert_eq!(book.next_queued(usize::MAX), queued.clone());
            prop_assert_eq!(book.last_queued(), queued.last().copied());
            prop_assert_eq!(book.ejected(), book.those(Standing::Ejected).collect::<Vec<_>>());
            for lmb in 0..LMBS + 3 {
                let expected = naive.get(lmb as usize).copied().unwrap_or(Standing::Absent);
                prop_assert_eq!(book.get(lmb), expected);
            }
        }

        #[test]
        fn runs_hold_just_the_lmbs_and_do_not_touch(
            set in prop::collection::btree_set(0_u32..40, 0..30),
        ) {
            let list: Vec<u32> = set.iter().copied().collect();
            let made = runs(&list);
            prop_assert_eq!(lmbs(&made).collect::<Vec<_>>(), list);
            prop_assert!(made.windows(2).all(|pair| pair[0].end() < pair[1].first()));
        }
    }
}
