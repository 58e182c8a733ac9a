use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

const LMB: u64 = 2 << 20;
const START: u64 = 6 << 30;

fn ledger(lmbs: u64) -> Ledger {
    let window = WindowLayout {
        range: GuestRange::new(GuestAddr::new(START), Bytes::new(lmbs * LMB)).unwrap(),
        lmbs: LmbCount::new(lmbs),
    };
    Ledger::new(&window, LmbSize::new(Bytes::new(LMB)).unwrap())
}

/// Everything a book has to say, kept the naive way.
struct Model {
    total: u64,
    plugged: BTreeSet<u64>,
    requested: u64,
    open: Option<(PlanKind, BTreeSet<u64>)>,
}

/// The naive book's idea of a refusal.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    BadRange,
    Busy,
    OverRequest,
    WrongState,
}

impl Model {
    fn blocks(&self, addr: u64, nb: u64) -> Result<BTreeSet<u64>, Verdict> {
        let (addr, nb) = (u128::from(addr), u128::from(nb));
        let (start, lmb) = (u128::from(START), u128::from(LMB));
        let end = start + u128::from(self.total) * lmb;
        if nb == 0 || addr < start || !(addr - start).is_multiple_of(lmb) || addr + nb * lmb > end {
            return Err(Verdict::BadRange);
        }
        let first = (addr - start) / lmb;
        Ok((first..first + nb)
            .map(|index| u64::try_from(index).unwrap())
            .collect())
    }

    fn plan(&self, kind: PlanKind, addr: u64, nb: u64) -> Result<BTreeSet<u64>, Verdict> {
        let blocks = match kind {
            PlanKind::UnplugAll => self.plugged.clone(),
            _ => self.blocks(addr, nb)?,
        };
        if self.open.is_some() {
            return Err(Verdict::Busy);
        }
        match kind {
            PlanKind::Plug => {
                if (self.plugged.len() + blocks.len()) as u64 > self.requested {
                    return Err(Verdict::OverRequest);
                }
                if !blocks.is_disjoint(&self.plugged) {
                    return Err(Verdict::WrongState);
                }
            }
            PlanKind::Unplug if !blocks.is_subset(&self.plugged) => {
                return Err(Verdict::WrongState);
            }
            _ => {}
        }
        Ok(blocks)
    }

    fn plan_runs(&self, change: Change, runs: &[LmbRange]) -> Result<BTreeSet<u64>, Verdict> {
        let mut blocks = BTreeSet::new();
        for run in runs {
            let run = run.first().get()..run.end().get();
            let after_all = blocks.last().is_none_or(|last| *last < run.start);
            if run.end > self.total || !after_all {
                return Err(Verdict::BadRange);
            }
            blocks.extend(run);
        }
        if self.open.is_some() {
            return Err(Verdict::Busy);
        }
        let right = match change {
            Change::Plug => blocks.is_disjoint(&self.plugged),
            Change::Unplug => blocks.is_subset(&self.plugged),
        };
        right.then_some(blocks).ok_or(Verdict::WrongState)
    }

    fn commit(&mut self) {
        if let Some((kind, blocks)) = self.open.take() {
            for block in blocks {
                match kind {
                    PlanKind::Plug => self.plugged.insert(block),
                    _ => self.plugged.remove(&block),
                };
            }
        }
    }
}

fn verdict(refusal: &Refusal) -> Verdict {
    match refusal {
        Refusal::BadRange { .. } => Verdict::BadRange,
        Refusal::OverRequest { .. } => Verdict::OverRequest,
        Refusal::WrongState { .. } => Verdict::WrongState,
        Refusal::Busy => Verdict::Busy,
    }
}

#[derive(Clone, Debug)]
enum Step {
    Request(u64),
    Plan(PlanKind, u64, u64),
    Runs(Change, Vec<LmbRange>),
    State(u64, u64),
    Commit,
    Abort,
    Reset,
}

fn address() -> impl Strategy<Value = u64> {
    prop_oneof![
        12 => (0_u64..90).prop_map(|index| START + index * LMB),
        1 => (0_u64..90 * LMB).prop_map(|offset| START + offset),
        1 => any::<u64>(),
        1 => Just(u64::MAX - LMB + 1),
        1 => Just(START - LMB),
    ]
}

fn blocks() -> impl Strategy<Value = u64> {
    prop_oneof![
        10 => 0_u64..20,
        2 => 0_u64..100,
        1 => any::<u64>(),
        1 => Just(u64::MAX / LMB + 1),
    ]
}

fn runs() -> impl Strategy<Value = Vec<LmbRange>> {
    let run = (0_u64..95, 1_u64..6).prop_map(|(first, count)| run_of(first, count).unwrap());
    (prop::collection::vec(run, 0..4), any::<bool>()).prop_map(|(mut runs, sorted)| {
        if sorted {
            runs.sort_by_key(|run| run.first());
        }
        runs
    })
}

fn step() -> impl Strategy<Value = Step> {
    let kind = prop_oneof![
        6 => Just(PlanKind::Plug),
        4 => Just(PlanKind::Unplug),
        1 => Just(PlanKind::UnplugAll),
    ];
    prop_oneof![
        2 => (0_u64..100).prop_map(Step::Request),
        8 => (kind, address(), blocks()).prop_map(|(kind, addr, nb)| Step::Plan(kind, addr, nb)),
        6 => (any::<bool>(), runs()).prop_map(|(plug, runs)| {
            Step::Runs(if plug { Change::Plug } else { Change::Unplug }, runs)
        }),
        3 => (address(), blocks()).prop_map(|(addr, nb)| Step::State(addr, nb)),
        6 => Just(Step::Commit),
        1 => Just(Step::Abort),
        1 => Just(Step::Reset),
    ]
}

/// A plan or a refusal is what the model says, and a plan is kept open.
fn judge(
    planned: Result<Plan, Refusal>,
    expected: Result<BTreeSet<u64>, Verdict>,
    kind: PlanKind,
    model: &mut Model,
    plan: &mut Option<Plan>,
) {
    match (planned, expected) {
        (Ok(made), Ok(blocks)) => {
            let indices: Vec<u64> = made
                .runs()
                .iter()
                .flat_map(|run| run.first().get()..run.end().get())
                .collect();
            assert!(indices.iter().eq(blocks.iter()));
            assert_eq!(made.lmbs().get(), blocks.len() as u64);
            assert_eq!(made.kind(), kind);
            model.open = Some((kind, blocks));
            *plan = Some(made);
        }
        (Err(refusal), Err(expected)) => assert_eq!(verdict(&refusal), expected),
        (planned, expected) => panic!("{planned:?} where {expected:?} is right"),
    }
}

fn run(ledger: &mut Ledger, model: &mut Model, plan: &mut Option<Plan>, step: Step) {
    match step {
        Step::Request(lmbs) => {
            let set = ledger.set_requested(LmbCount::new(lmbs));
            assert_eq!(set.is_ok(), lmbs <= model.total);
            if set.is_ok() {
                model.requested = lmbs;
            }
        }
        Step::Plan(kind, addr, nb) => {
            let planned = match kind {
                PlanKind::Plug => ledger.plan_plug(addr, nb),
                PlanKind::Unplug => ledger.plan_unplug(addr, nb),
                PlanKind::UnplugAll => ledger.plan_unplug_all(),
            };
            let expected = model.plan(kind, addr, nb);
            judge(planned, expected, kind, model, plan);
        }
        Step::Runs(change, runs) => {
            let expected = model.plan_runs(change, &runs);
            let kind = match change {
                Change::Plug => PlanKind::Plug,
                Change::Unplug => PlanKind::Unplug,
            };
            judge(ledger.plan_runs(change, &runs), expected, kind, model, plan);
        }
        Step::State(addr, nb) => {
            let expected = model.blocks(addr, nb).map(|blocks| {
                match blocks.intersection(&model.plugged).count() {
                    0 => RangeState::Unplugged,
                    all if all == blocks.len() => RangeState::Plugged,
                    _ => RangeState::Mixed,
                }
            });
            assert_eq!(ledger.state(addr, nb).map_err(|r| verdict(&r)), expected);
        }
        Step::Commit => {
            if let Some(plan) = plan.take() {
                assert_eq!(ledger.commit(plan), model.open.is_some());
                model.commit();
            }
        }
        Step::Abort => {
            if let Some(plan) = plan.take() {
                assert_eq!(ledger.abort(plan), model.open.take().is_some());
            }
        }
        Step::Reset => {
            ledger.reset();
            model.plugged.clear();
            model.open = None;
        }
    }
}

fn compare(ledger: &Ledger, model: &Model) {
    assert_eq!(ledger.plugged_lmbs().get(), model.plugged.len() as u64);
    assert_eq!(ledger.requested_lmbs().get(), model.requested);
    assert_eq!(ledger.is_busy(), model.open.is_some());
    for index in 0..model.total + 70 {
        let plugged = model.plugged.contains(&index);
        assert_eq!(ledger.is_plugged(LmbIndex::new(index)), plugged);
    }
    let runs: Vec<LmbRange> = ledger.plugged_runs().collect();
    let indices: Vec<u64> = runs
        .iter()
        .flat_map(|run| run.first().get()..run.end().get())
        .collect();
    assert!(indices.iter().eq(model.plugged.iter()));
    assert!(runs.windows(2).all(|pair| pair[0].end() < pair[1].first()));
    let config = ledger.config();
    assert_eq!(config.plugged_size, model.plugged.len() as u64 * LMB);
    assert_eq!(config.requested_size, model.requested * LMB);
    assert_eq!(config.usable_region_size, model.total * LMB);
    assert_eq!((config.addr, config.block_size), (START, LMB));
}

proptest! {
    #[test]
    fn agrees_with_the_naive_book(
        total in prop_oneof![1_u64..90, Just(64), Just(65)],
        steps in prop::collection::vec(step(), 0..80),
    ) {
        let mut book = ledger(total);
        let mut model = Model {
            total,
            plugged: BTreeSet::new(),
            requested: 0,
            open: None,
        };
        let mut plan = None;
        for step in steps {
            run(&mut book, &mut model, &mut plan, step);
            compare(&book, &model);
        }
    }

    #[test]
    fn addresses_and_indices_are_inverse(total in 1_u64..90, address in address()) {
        let book = ledger(total);
        let inside = address >= START && address < START + total * LMB;
        let index = book.index_of(GuestAddr::new(address));
        prop_assert_eq!(index.is_some(), inside);
        if let Some(index) = index {
            let start = book.address_of(index).unwrap().get();
            prop_assert!(start <= address && address - start < LMB);
        }
        prop_assert_eq!(book.address_of(LmbIndex::new(total)), None);
        prop_assert_eq!(book.address_of(LmbIndex::new(u64::MAX)), None);
    }
}

#[test]
fn a_plan_overtaken_by_a_reset_changes_nothing() {
    let mut book = ledger(8);
    book.set_requested(LmbCount::new(4)).unwrap();
    let stale = book.plan_plug(START, 2).unwrap();
    book.reset();
    let fresh = book.plan_plug(START + 4 * LMB, 1).unwrap();
    assert!(!book.commit(stale));
    assert_eq!(book.plugged_lmbs(), LmbCount::ZERO);
    assert!(book.is_busy(), "the stale plan must not close the open one");
    assert!(book.commit(fresh));
    assert_eq!(book.plugged_lmbs(), LmbCount::new(1));
}

#[test]
fn unplugging_all_of_nothing_is_an_empty_plan() {
    let mut book = ledger(8);
    let plan = book.plan_unplug_all().unwrap();
    assert_eq!((plan.runs().len(), plan.lmbs()), (0, LmbCount::ZERO));
    assert_eq!(book.plan_unplug_all(), Err(Refusal::Busy));
    assert!(book.commit(plan));
}

#[test]
fn a_request_past_the_window_is_refused_and_changes_nothing() {
    let mut book = ledger(8);
    book.set_requested(LmbCount::new(8)).unwrap();
    let error = book.set_requested(LmbCount::new(9)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "9 LMBs do not fit the window of 8 LMBs; ask for at most 8 LMBs"
    );
    assert_eq!(book.requested_lmbs(), LmbCount::new(8));
    let error = book.lmbs_of(Bytes::new(3 << 20)).unwrap_err();
    assert!(error.to_string().ends_with("nearest legal: 2 MiB or 4 MiB"));
}

#[test]
fn the_book_of_64_tib_is_a_bitmap() {
    let lmb = LmbSize::new(Bytes::new(128 << 20)).unwrap();
    let range = GuestRange::new(GuestAddr::new(START), Bytes::new(64 << 40)).unwrap();
    let lmbs = LmbCount::new(524_288);
    let mut book = Ledger::new(&WindowLayout { range, lmbs }, lmb);
    book.set_requested(lmbs).unwrap();
    let plan = book.plan_plug(START, 524_288).unwrap();
    assert!(book.commit(plan));
    assert_eq!(book.config().plugged_size, 64 << 40);
    let last = START + (524_287 << 27);
    let plan = book.plan_unplug(last, 1).unwrap();
    assert!(book.commit(plan));
    assert_eq!(book.state(START, 524_288), Ok(RangeState::Mixed));
    assert_eq!(book.state(last, 1), Ok(RangeState::Unplugged));
    assert!(matches!(book.state(last, 2), Err(Refusal::BadRange { .. })));
}
