//! The ledger: which LMB of a window is plugged, and how many should be.
//!
//! It is the only book of a window. Config space, state replies, metrics and
//! snapshots are computed from it; nothing else counts LMBs.
//!
//! States of an LMB: *unplugged* → (plan_plug, effect, commit) → *plugged* →
//! (plan_unplug or plan_unplug_all, effect, commit) → *unplugged*.
//! States of the ledger: *idle* → `plan_*` → *planned* → `commit` or `abort` →
//! *idle*. A plan changes nothing; only its commit does, after the effect on
//! host memory and KVM succeeded. While a plan is open a second one is refused
//! as [`Refusal::Busy`], and the book answers as it stood before.
//!
//! One owner: the thread that runs the hotplug coordinator. Everything here is
//! pure bookkeeping: no system call, no lock, O(words of the range).

use crate::bitmap::Bitmap;
use crate::geometry::WindowLayout;
use crate::units::{Bytes, GuestAddr, GuestRange, LmbCount, LmbIndex, LmbRange, LmbSize};

/// What a guest asked for that the ledger does not grant. The names say which
/// virtio-mem answer is due (virtio 1.3, 5.15.6; QEMU's order of checks).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Misaligned, no blocks, or outside the usable region: answer ERROR.
    #[error("{nb_blocks} blocks at {addr:#x} are no whole LMBs of {lmb} within {window}")]
    BadRange {
        /// Address asked for.
        addr: u64,
        /// Number of blocks asked for.
        nb_blocks: u64,
        /// LMB size of the window.
        lmb: LmbSize,
        /// The window.
        window: GuestRange,
    },
    /// More would be plugged than is requested: answer NACK.
    #[error("plugging {nb_blocks} LMBs over {plugged} passes the {requested} requested")]
    OverRequest {
        /// Number of blocks asked for.
        nb_blocks: u64,
        /// Plugged now.
        plugged: LmbCount,
        /// Requested now.
        requested: LmbCount,
    },
    /// A block to plug is plugged, or one to unplug is not: answer ERROR.
    #[error("cannot {kind:?} {range}: {plugged} of it plugged")]
    WrongState {
        /// What was asked for.
        kind: PlanKind,
        /// The blocks.
        range: LmbRange,
        /// How many of them are plugged.
        plugged: LmbCount,
    },
    /// A plan is open: answer BUSY.
    #[error("another change of this window is under way")]
    Busy,
}

/// What a client of the control API asked for that the window cannot hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// More LMBs than the window has.
    #[error("{asked} do not fit the window of {total}; ask for at most {total}")]
    PastWindow {
        /// LMBs asked for.
        asked: LmbCount,
        /// LMBs of the window.
        total: LmbCount,
    },
    /// A size that is no whole number of LMBs.
    #[error(
        "{asked} is not a whole number of LMBs of {lmb}; nearest legal: {}",
        crate::units::either(&Some(*.below), .above)
    )]
    NotWholeLmbs {
        /// Size asked for.
        asked: Bytes,
        /// LMB size of the window.
        lmb: LmbSize,
        /// Next legal size below.
        below: Bytes,
        /// Next legal size above, if 64 bits hold it.
        above: Option<Bytes>,
    },
}

/// What a plan will do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PlanKind {
    /// Unplugged LMBs become plugged.
    Plug,
    /// Plugged LMBs become unplugged.
    Unplug,
    /// All plugged LMBs become unplugged.
    UnplugAll,
}

/// A change of the owner's own choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// Unplugged LMBs become plugged.
    Plug,
    /// Plugged LMBs become unplugged.
    Unplug,
}

/// State of a range of blocks (virtio 1.3, 5.15.6.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RangeState {
    /// All plugged.
    Plugged,
    /// None plugged.
    Unplugged,
    /// Some plugged.
    Mixed,
}

/// A change that was checked and not yet made; to be committed once its effect
/// succeeded, or aborted.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "an open plan keeps the ledger busy: commit or abort it"]
pub struct Plan {
    kind: PlanKind,
    runs: Vec<LmbRange>,
    lmbs: LmbCount,
    serial: u64,
}

impl Plan {
    /// What it will do.
    pub fn kind(&self) -> PlanKind {
        self.kind
    }

    /// The runs it changes, ascending; none if there is nothing to unplug.
    pub fn runs(&self) -> &[LmbRange] {
        &self.runs
    }

    /// How many LMBs it changes.
    pub fn lmbs(&self) -> LmbCount {
        self.lmbs
    }
}

/// The quantities of the virtio-mem config space, in bytes (virtio 1.3, 5.15.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LedgerView {
    /// LMB size.
    pub block_size: u64,
    /// First address of the window.
    pub addr: u64,
    /// Length of the window.
    pub region_size: u64,
    /// The part the guest may use: the whole window.
    pub usable_region_size: u64,
    /// Plugged now.
    pub plugged_size: u64,
    /// Requested now.
    pub requested_size: u64,
}

/// The book of one window; see the module's head.
#[derive(Debug)]
pub struct Ledger {
    lmb: LmbSize,
    range: GuestRange,
    total: LmbCount,
    plugged: Bitmap,
    plugged_lmbs: u64,
    requested: LmbCount,
    /// Serial of the open plan.
    open: Option<u64>,
    next_serial: u64,
}

impl Ledger {
    /// The book of a new window: all unplugged, nothing requested.
    pub fn new(window: &WindowLayout, lmb: LmbSize) -> Self {
        Self {
            lmb,
            range: window.range,
            total: window.lmbs,
            plugged: Bitmap::new(window.lmbs.get()),
            plugged_lmbs: 0,
            requested: LmbCount::ZERO,
            open: None,
            next_serial: 0,
        }
    }

    /// LMB size, also the virtio-mem block size.
    pub fn lmb_size(&self) -> LmbSize {
        self.lmb
    }

    /// The window.
    pub fn range(&self) -> GuestRange {
        self.range
    }

    /// LMBs of the window.
    pub fn total_lmbs(&self) -> LmbCount {
        self.total
    }

    /// LMBs plugged.
    pub fn plugged_lmbs(&self) -> LmbCount {
        LmbCount::new(self.plugged_lmbs)
    }

    /// LMBs requested.
    pub fn requested_lmbs(&self) -> LmbCount {
        self.requested
    }

    /// Whether the LMB is plugged; one outside the window is not.
    pub fn is_plugged(&self, lmb: LmbIndex) -> bool {
        self.plugged.get(lmb.get())
    }

    /// Whether a plan is open.
    pub fn is_busy(&self) -> bool {
        self.open.is_some()
    }

    /// Runs of plugged LMBs, ascending, as long as they are.
    pub fn plugged_runs(&self) -> impl Iterator<Item = LmbRange> + '_ {
        self.plugged
            .runs()
            .filter_map(|run| run_of(run.start, run.end - run.start))
    }

    /// First guest address of an LMB of the window.
    pub fn address_of(&self, lmb: LmbIndex) -> Option<GuestAddr> {
        let offset = self.lmb.checked_bytes_of(LmbCount::new(lmb.get()))?;
        let address = self.range.start().checked_add(offset)?;
        self.range.contains(address).then_some(address)
    }

    /// The LMB that holds a guest address of the window.
    pub fn index_of(&self, address: GuestAddr) -> Option<LmbIndex> {
        let offset = address.checked_offset_from(self.range.start())?;
        let index = offset.get() >> self.lmb.bytes().get().trailing_zeros();
        (index < self.total.get()).then(|| LmbIndex::new(index))
    }

    /// Guest addresses of a run of LMBs of the window.
    pub fn guest_range(&self, run: LmbRange) -> Option<GuestRange> {
        let start = self.address_of(run.first())?;
        let range = GuestRange::new(start, self.lmb.checked_bytes_of(run.count())?).ok()?;
        (range.end() <= self.range.end()).then_some(range)
    }

    /// Bytes of a number of LMBs (saturating: no count of a window comes near).
    pub fn bytes_of(&self, lmbs: LmbCount) -> Bytes {
        self.lmb
            .checked_bytes_of(lmbs)
            .unwrap_or(Bytes::new(u64::MAX))
    }

    /// The whole number of LMBs in `size`.
    ///
    /// # Errors
    /// [`LedgerError::NotWholeLmbs`], which names the nearest legal sizes.
    pub fn lmbs_of(&self, size: Bytes) -> Result<LmbCount, LedgerError> {
        self.lmb
            .lmbs_in(size)
            .ok_or_else(|| LedgerError::NotWholeLmbs {
                asked: size,
                lmb: self.lmb,
                below: size.round_down(self.lmb.bytes()),
                above: size.round_up(self.lmb.bytes()),
            })
    }

    /// Sets how many LMBs the guest is asked to have; more or fewer than are
    /// plugged is equally fine.
    ///
    /// # Errors
    /// [`LedgerError::PastWindow`] if the window has fewer; nothing changes.
    pub fn set_requested(&mut self, lmbs: LmbCount) -> Result<(), LedgerError> {
        if lmbs > self.total {
            return Err(LedgerError::PastWindow {
                asked: lmbs,
                total: self.total,
            });
        }
        self.requested = lmbs;
        Ok(())
    }

    /// Checks a PLUG request and opens its plan.
    ///
    /// # Errors
    /// In this order: [`Refusal::BadRange`], [`Refusal::Busy`] (what follows
    /// depends on how the open plan ends), [`Refusal::OverRequest`],
    /// [`Refusal::WrongState`] if any block is plugged.
    pub fn plan_plug(&mut self, addr: u64, nb_blocks: u64) -> Result<Plan, Refusal> {
        let run = self.checked_run(addr, nb_blocks)?;
        self.check_idle()?;
        // A run of the window is at most `total`, so this cannot wrap.
        if self.plugged_lmbs + run.count().get() > self.requested.get() {
            return Err(Refusal::OverRequest {
                nb_blocks,
                plugged: self.plugged_lmbs(),
                requested: self.requested,
            });
        }
        self.check_state(PlanKind::Plug, run, 0)?;
        Ok(self.open_plan(PlanKind::Plug, vec![run]))
    }

    /// Checks an UNPLUG request and opens its plan.
    ///
    /// # Errors
    /// In this order: [`Refusal::BadRange`], [`Refusal::Busy`],
    /// [`Refusal::WrongState`] if any block is not plugged.
    pub fn plan_unplug(&mut self, addr: u64, nb_blocks: u64) -> Result<Plan, Refusal> {
        let run = self.checked_run(addr, nb_blocks)?;
        self.check_idle()?;
        self.check_state(PlanKind::Unplug, run, run.count().get())?;
        Ok(self.open_plan(PlanKind::Unplug, vec![run]))
    }

    /// Checks a change of the owner's own choice, of runs in ascending order
    /// that share no LMB, and opens its plan. What is requested does
    /// not bound it: LMBs that the guest still holds against a request count
    /// as plugged.
    ///
    /// # Errors
    /// In this order: [`Refusal::BadRange`] for a run outside the window or out
    /// of order, [`Refusal::Busy`], [`Refusal::WrongState`].
    pub fn plan_runs(&mut self, change: Change, runs: &[LmbRange]) -> Result<Plan, Refusal> {
        let mut end = 0;
        for run in runs {
            let in_order = run.first().get() >= end;
            end = run.end().get();
            if !in_order || end > self.total.get() {
                return Err(Refusal::BadRange {
                    addr: self
                        .address_of(run.first())
                        .map_or(u64::MAX, GuestAddr::get),
                    nb_blocks: run.count().get(),
                    lmb: self.lmb,
                    window: self.range,
                });
            }
        }
        self.check_idle()?;
        let kind = match change {
            Change::Plug => PlanKind::Plug,
            Change::Unplug => PlanKind::Unplug,
        };
        for &run in runs {
            let wanted = match change {
                Change::Plug => 0,
                Change::Unplug => run.count().get(),
            };
            self.check_state(kind, run, wanted)?;
        }
        Ok(self.open_plan(kind, runs.to_vec()))
    }

    /// Opens a plan that unplugs all that is plugged, possibly nothing.
    ///
    /// # Errors
    /// [`Refusal::Busy`].
    pub fn plan_unplug_all(&mut self) -> Result<Plan, Refusal> {
        self.check_idle()?;
        let runs = self.plugged_runs().collect();
        Ok(self.open_plan(PlanKind::UnplugAll, runs))
    }

    /// State of a range of blocks, as committed.
    ///
    /// # Errors
    /// [`Refusal::BadRange`].
    pub fn state(&self, addr: u64, nb_blocks: u64) -> Result<RangeState, Refusal> {
        let run = self.checked_run(addr, nb_blocks)?;
        Ok(match self.plugged_in(run) {
            0 => RangeState::Unplugged,
            plugged if plugged == run.count().get() => RangeState::Plugged,
            _ => RangeState::Mixed,
        })
    }

    /// Makes the change of a plan whose effect succeeded. Returns whether it
    /// was made: a plan that [`Ledger::reset`] overtook, or one of another
    /// ledger's, changes nothing.
    pub fn commit(&mut self, plan: Plan) -> bool {
        if !self.close_plan(&plan) {
            return false;
        }
        let value = plan.kind == PlanKind::Plug;
        for run in &plan.runs {
            self.plugged.fill(run.first().get()..run.end().get(), value);
        }
        // The plan was checked against this very state and nothing changed
        // since, so neither sum wraps.
        if value {
            self.plugged_lmbs += plan.lmbs.get();
        } else {
            self.plugged_lmbs -= plan.lmbs.get();
        }
        true
    }

    /// Drops a plan whose effect failed (and was undone). Returns whether it
    /// was the open one.
    pub fn abort(&mut self, plan: Plan) -> bool {
        self.close_plan(&plan)
    }

    /// The quantities of the config space as they stand.
    pub fn config(&self) -> LedgerView {
        LedgerView {
            block_size: self.lmb.bytes().get(),
            addr: self.range.start().get(),
            region_size: self.range.len().get(),
            usable_region_size: self.range.len().get(),
            plugged_size: self.bytes_of(self.plugged_lmbs()).get(),
            requested_size: self.bytes_of(self.requested).get(),
        }
    }

    /// System reset: all unplugged, what is requested stays. The owner gives
    /// the memory of [`Ledger::plugged_runs`] back first, and waits for the
    /// effect of an open plan; a plan still open is void after this.
    pub fn reset(&mut self) {
        self.plugged.clear();
        self.plugged_lmbs = 0;
        self.open = None;
    }

    fn checked_run(&self, addr: u64, nb_blocks: u64) -> Result<LmbRange, Refusal> {
        let address = GuestAddr::new(addr);
        let run = self.index_of(address).and_then(|first| {
            let aligned = self.address_of(first) == Some(address);
            let run = run_of(first.get(), nb_blocks)?;
            (aligned && run.end().get() <= self.total.get()).then_some(run)
        });
        run.ok_or(Refusal::BadRange {
            addr,
            nb_blocks,
            lmb: self.lmb,
            window: self.range,
        })
    }

    fn check_idle(&self) -> Result<(), Refusal> {
        match self.open {
            Some(_) => Err(Refusal::Busy),
            None => Ok(()),
        }
    }

    fn check_state(&self, kind: PlanKind, run: LmbRange, wanted: u64) -> Result<(), Refusal> {
        let plugged = self.plugged_in(run);
        if plugged == wanted {
            return Ok(());
        }
        Err(Refusal::WrongState {
            kind,
            range: run,
            plugged: LmbCount::new(plugged),
        })
    }

    fn plugged_in(&self, run: LmbRange) -> u64 {
        self.plugged.count(run.first().get()..run.end().get())
    }

    fn open_plan(&mut self, kind: PlanKind, runs: Vec<LmbRange>) -> Plan {
        let serial = self.next_serial;
        self.next_serial = serial.wrapping_add(1);
        self.open = Some(serial);
        let lmbs = LmbCount::new(runs.iter().map(|run| run.count().get()).sum());
        Plan {
            kind,
            runs,
            lmbs,
            serial,
        }
    }

    fn close_plan(&mut self, plan: &Plan) -> bool {
        let current = self.open == Some(plan.serial);
        if current {
            self.open = None;
        }
        current
    }
}

fn run_of(first: u64, count: u64) -> Option<LmbRange> {
    LmbRange::new(LmbIndex::new(first), LmbCount::new(count)).ok()
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
