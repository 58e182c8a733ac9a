//! The register block against its guest: each rule by itself, and random
//! moves of owner and guest against a naive model.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;

use super::wire::{Notice, OstSource, OstStatus};
use super::{AcpiMem, AcpiMemCounters, AcpiMemEvent, MAX_LMBS};
use super::{STATUS_ABSENT, STATUS_PRESENT};
use crate::bus::{BusDevice, Stamp};
use crate::testing::{AcpiGuest, Counter, Level, Statuses};

const LMBS: u32 = 8;
const ALL: usize = usize::MAX;

fn ticking() -> Stamp {
    static NOW_NS: AtomicU64 = AtomicU64::new(1000);
    Stamp {
        monotonic_ns: NOW_NS.fetch_add(1, Ordering::Relaxed),
        cpu_ns: 0,
    }
}

struct Rig {
    device: AcpiMem,
    guest: AcpiGuest,
    bus: Arc<dyn BusDevice>,
    line: Arc<Level>,
    table: Arc<Statuses>,
    wake: Arc<Counter>,
}

impl Rig {
    fn new(lmbs: u32) -> Self {
        let line = Arc::new(Level::default());
        let table = Arc::new(Statuses::new(lmbs.min(MAX_LMBS) as usize));
        let wake = Arc::new(Counter::default());
        let device = AcpiMem::new(lmbs, table.clone(), line.clone(), wake.clone(), ticking);
        Self {
            guest: AcpiGuest::new(device.bus_device()),
            bus: device.bus_device(),
            device,
            line,
            table,
            wake,
        }
    }

    /// One whose guest has looked once.
    fn greeted() -> Self {
        let rig = Self::new(LMBS);
        assert_eq!(rig.guest.next(), None);
        assert_eq!(rig.device.take_events(ALL).len(), 1);
        rig.wake.take();
        rig
    }

    fn events(&self) -> Vec<Seen> {
        self.device.take_events(ALL).iter().map(seen).collect()
    }
}

/// An event without its stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Up,
    Ejected(u32),
    Ost(u32, u8, u8),
}

fn seen(event: &AcpiMemEvent) -> Seen {
    match *event {
        AcpiMemEvent::GuestUp { .. } => Seen::Up,
        AcpiMemEvent::Ejected { lmb, .. } => Seen::Ejected(lmb),
        AcpiMemEvent::Ost {
            lmb,
            notice,
            status,
            ..
        } => Seen::Ost(lmb, notice.raw(), status.raw()),
    }
}

#[test]
fn the_line_greets_once_and_the_first_look_tells_the_owner() {
    let rig = Rig::new(LMBS);
    assert!(rig.line.is_high() && !rig.device.guest_up());
    assert!(rig.device.take_events(ALL).is_empty());
    assert_eq!(rig.wake.take(), 0);

    let before = ticking();
    assert_eq!(rig.guest.next(), None);
    let after = ticking();
    assert!(!rig.line.is_high() && rig.device.guest_up());
    assert_eq!(rig.wake.take(), 1);
    let events = rig.device.take_events(ALL);
    let [AcpiMemEvent::GuestUp { at }] = events[..] else {
        panic!("{events:?}");
    };
    assert!(before.monotonic_ns < at.monotonic_ns && at.monotonic_ns < after.monotonic_ns);

    assert_eq!(rig.guest.next(), None);
    assert_eq!(rig.wake.take(), 0);
    assert!(rig.device.take_events(ALL).is_empty());
}

#[test]
fn notices_before_the_first_look_are_kept() {
    let rig = Rig::new(LMBS);
    rig.device.notify(2, Notice::DeviceCheck);
    assert_eq!(rig.guest.next(), Some((2, 1)));
    assert!(rig.device.guest_up() && !rig.line.is_high());
    assert_eq!(rig.guest.next(), None);
}

#[test]
fn one_interrupt_serves_a_batch_and_falls_with_its_last_notice() {
    let rig = Rig::greeted();
    rig.device.notify(5, Notice::DeviceCheck);
    rig.device.notify(1, Notice::EjectRequest);
    rig.device.notify(7, Notice::DeviceCheck);
    for expected in [(5, 1), (1, 3), (7, 1)] {
        assert!(rig.line.is_high());
        assert_eq!(rig.guest.next(), Some(expected));
    }
    assert!(!rig.line.is_high());
    assert_eq!(rig.guest.next(), None);
}

#[test]
fn a_later_notice_of_an_lmb_takes_the_place_of_the_earlier() {
    let rig = Rig::greeted();
    rig.device.notify(3, Notice::DeviceCheck);
    rig.device.notify(4, Notice::DeviceCheck);
    rig.device.notify(3, Notice::EjectRequest);
    assert_eq!(rig.guest.drain(), [(3, 3), (4, 1)]);
}

#[test]
fn a_notice_is_withdrawn_only_before_it_was_read() {
    let rig = Rig::greeted();
    rig.device.notify(3, Notice::DeviceCheck);
    rig.device.notify(4, Notice::EjectRequest);
    assert_eq!(rig.guest.next(), Some((3, 1)));
    assert_eq!(rig.device.withdraw(3), None);
    assert_eq!(rig.device.withdraw(4), Some(Notice::EjectRequest));
    assert!(!rig.line.is_high());
    assert_eq!(rig.guest.next(), None);
    assert_eq!(rig.device.withdraw(LMBS), None);
}

#[test]
fn an_eject_shows_before_the_write_returns_and_stays_until_the_owner_knows() {
    let rig = Rig::greeted();
    assert!(rig.device.show(2, true));
    assert_eq!(rig.table.get(2), STATUS_PRESENT);
    rig.device.notify(2, Notice::EjectRequest);

    let before = ticking();
    rig.guest.eject(2);
    let after = ticking();
    assert_eq!(rig.table.get(2), STATUS_ABSENT);
    assert_eq!(rig.wake.take(), 1);
    // The request is fulfilled.
    assert!(!rig.line.is_high());
    assert_eq!(rig.guest.next(), None);

    // A second one is none, and the owner cannot show what it does not know.
    rig.guest.eject(2);
    assert_eq!(rig.device.counters().stray_ejects, 1);
    assert!(!rig.device.show(2, true));
    assert_eq!(rig.table.get(2), STATUS_ABSENT);
    assert!(rig.device.show(2, false));

    let events = rig.device.take_events(ALL);
    let [AcpiMemEvent::Ejected { lmb: 2, at }] = events[..] else {
        panic!("{events:?}");
    };
    assert!(before.monotonic_ns < at.monotonic_ns && at.monotonic_ns < after.monotonic_ns);
    assert!(rig.device.show(2, true));
    assert_eq!(rig.table.get(2), STATUS_PRESENT);
}

#[test]
fn reports_come_after_their_eject_and_the_latest_counts() {
    let rig = Rig::greeted();
    rig.device.show(6, true);
    rig.guest.ost(6, 3, 0x84);
    rig.guest.ost(1, 1, 0);
    rig.guest.eject(6);
    rig.guest.ost(6, 3, 0);
    assert_eq!(rig.wake.take(), 2);
    assert_eq!(
        rig.events(),
        [Seen::Ejected(6), Seen::Ost(6, 3, 0), Seen::Ost(1, 1, 0)]
    );
    assert_eq!(rig.device.counters().overwritten_osts, 1);
}

#[test]
fn what_a_limit_leaves_behind_wakes_the_owner_again() {
    let rig = Rig::greeted();
    rig.device.show(6, true);
    rig.guest.eject(6);
    rig.guest.ost(6, 3, 0);
    rig.guest.ost(0, 1, 0);
    rig.wake.take();
    let take = |limit| -> Vec<Seen> { rig.device.take_events(limit).iter().map(seen).collect() };
    assert_eq!(take(1), [Seen::Ejected(6)]);
    assert_eq!(rig.wake.take(), 1);
    assert_eq!(take(0), []);
    assert_eq!(rig.wake.take(), 1);
    assert_eq!(take(2), [Seen::Ost(6, 3, 0), Seen::Ost(0, 1, 0)]);
    assert_eq!(rig.wake.take(), 0);
}

#[test]
fn accesses_that_meet_no_register_do_nothing_and_are_counted() {
    let rig = Rig::greeted();
    rig.device.show(0, true);
    rig.device.notify(0, Notice::EjectRequest);
    let mut bad = 0;
    for offset in (0..20).chain([u64::MAX]) {
        for width in [0, 1, 2, 4, 8] {
            if !(offset == 0 && width == 4) {
                let mut data = vec![0; width];
                rig.bus.read(offset, &mut data);
                assert!(data.iter().all(|byte| *byte == 0xff), "{offset} {width}");
                bad += 1;
            }
            if !((offset == 4 || offset == 8) && width == 4) {
                rig.bus.write(offset, &vec![0; width]);
                bad += 1;
            }
        }
    }
    let expected = AcpiMemCounters {
        bad_accesses: bad,
        ..AcpiMemCounters::default()
    };
    assert_eq!(rig.device.counters(), expected);
    assert_eq!(rig.wake.take(), 0);
    assert_eq!(rig.table.get(0), STATUS_PRESENT);
    assert_eq!(rig.guest.next(), Some((0, 3)));
}

#[test]
fn lmbs_that_do_not_exist_are_nobodys() {
    let rig = Rig::greeted();
    for lmb in [LMBS, 0xffff, 0x1_0000, u32::MAX] {
        rig.guest.eject(lmb);
        assert!(!rig.device.show(lmb, true));
        assert!(rig.device.show(lmb, false));
        rig.device.notify(lmb, Notice::DeviceCheck);
    }
    rig.guest.ost(LMBS, 1, 0);
    rig.guest.ost(0xffff, 1, 0);
    assert_eq!(rig.device.counters().bad_lmbs, 6);
    assert!(rig.device.take_events(ALL).is_empty());
    assert!(!rig.line.is_high());
}

#[test]
fn a_device_has_no_more_lmbs_than_it_can() {
    let rig = Rig::new(u32::MAX);
    assert!(rig.device.show(MAX_LMBS - 1, true));
    assert!(!rig.device.show(MAX_LMBS, true));
}

#[test]
fn a_status_means_what_its_source_makes_of_it() {
    let status = |source, raw| OstStatus::new(OstSource::from_raw(source), raw);
    for source in 0..=u8::MAX {
        assert_eq!(OstSource::from_raw(source).raw(), source);
        for raw in 0..=u8::MAX {
            let status = status(source, raw);
            assert_eq!(status.is_success(), raw == 0);
            let pending = [(3, 0x84), (1, 0x80)].contains(&(source, raw));
            assert_eq!(status.in_progress(), pending);
            let text = status.to_string();
            assert_eq!(text.ends_with("in progress"), pending, "{text}");
        }
    }
    assert_eq!(status(3, 0x82).to_string(), "device busy");
    assert_eq!(status(1, 0x82).to_string(), "insertion not supported");
    assert_eq!(status(9, 0x82).to_string(), "status 0x82");
    assert_eq!(status(9, 1).to_string(), "non-specific failure");
}

/// One move of owner or guest.
#[derive(Clone, Debug)]
enum Move {
    Show(u32, bool),
    Notify(u32, bool),
    Withdraw(u32),
    Take(usize),
    Next,
    Eject(u32),
    Ost(u32, u8, u8),
    /// Any write or read at all.
    Write(u64, Vec<u8>),
    Read(u64, usize),
}

fn a_move() -> impl Strategy<Value = Move> {
    // One past the end is among them.
    let lmb = || 0..=LMBS;
    prop_oneof![
        3 => (lmb(), any::<bool>()).prop_map(|(lmb, present)| Move::Show(lmb, present)),
        3 => (lmb(), any::<bool>()).prop_map(|(lmb, eject)| Move::Notify(lmb, eject)),
        1 => lmb().prop_map(Move::Withdraw),
        2 => (0_usize..6).prop_map(Move::Take),
        4 => Just(Move::Next),
        3 => lmb().prop_map(Move::Eject),
        3 => (lmb(), 0_u8..5, any::<u8>()).prop_map(|(lmb, s, r)| Move::Ost(lmb, s, r)),
        1 => (0_u64..18, proptest::collection::vec(any::<u8>(), 0..9))
            .prop_map(|(offset, data)| Move::Write(offset, data)),
        1 => (0_u64..18, 0_usize..9).prop_map(|(offset, width)| Move::Read(offset, width)),
    ]
}

/// The device as lists that are searched, without bounds or sharing.
#[derive(Default)]
struct Model {
    greeting: bool,
    present: Vec<u32>,
    notices: Vec<(u32, u32)>,
    events: Vec<Seen>,
    counters: AcpiMemCounters,
}

impl Model {
    fn add(&mut self, event: Seen) {
        let of = |seen: &Seen| match *seen {
            Seen::Up => None,
            Seen::Ejected(lmb) | Seen::Ost(lmb, ..) => Some(lmb),
        };
        let lmb = of(&event);
        let mine = |seen: &Seen| of(seen) == lmb;
        let report = self
            .events
            .iter()
            .position(|seen| mine(seen) && matches!(seen, Seen::Ost(..)));
        match (event, report) {
            (Seen::Up, _) => self.events.insert(0, event),
            (Seen::Ost(..), Some(at)) => {
                self.events[at] = event;
                self.counters.overwritten_osts += 1;
            }
            (Seen::Ejected(_), Some(at)) => self.events.insert(at, event),
            (_, None) => match self.events.iter().rposition(mine) {
                Some(at) => self.events.insert(at + 1, event),
                None => self.events.push(event),
            },
        }
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        let Ok(data) = <[u8; 4]>::try_from(data) else {
            self.counters.bad_accesses += 1;
            return;
        };
        match offset {
            4 => self.eject(u32::from_le_bytes(data)),
            8 => {
                let lmb = u32::from(data[0]) | u32::from(data[1]) << 8;
                self.ost(lmb, data[2], data[3]);
            }
            _ => self.counters.bad_accesses += 1,
        }
    }

    fn eject(&mut self, lmb: u32) {
        if lmb >= LMBS {
            self.counters.bad_lmbs += 1;
        } else if self.present.contains(&lmb) {
            self.present.retain(|one| *one != lmb);
            self.notices.retain(|notice| notice.0 != lmb);
            self.add(Seen::Ejected(lmb));
        } else {
            self.counters.stray_ejects += 1;
        }
    }

    fn ost(&mut self, lmb: u32, source: u8, raw: u8) {
        if lmb >= LMBS {
            self.counters.bad_lmbs += 1;
        } else {
            self.add(Seen::Ost(lmb, source, raw));
        }
    }

    fn next(&mut self) -> Option<(u32, u32)> {
        if std::mem::take(&mut self.greeting) {
            self.add(Seen::Up);
        }
        (!self.notices.is_empty()).then(|| self.notices.remove(0))
    }

    fn show(&mut self, lmb: u32, present: bool) -> bool {
        if present && (lmb >= LMBS || self.events.contains(&Seen::Ejected(lmb))) {
            return false;
        }
        self.present.retain(|one| *one != lmb);
        if present {
            self.present.push(lmb);
        }
        true
    }

    fn notify(&mut self, lmb: u32, value: u32) {
        match self.notices.iter_mut().find(|notice| notice.0 == lmb) {
            Some(notice) => notice.1 = value,
            None if lmb < LMBS => self.notices.push((lmb, value)),
            None => {}
        }
    }

    fn withdraw(&mut self, lmb: u32) -> Option<u32> {
        let at = self.notices.iter().position(|notice| notice.0 == lmb)?;
        Some(self.notices.remove(at).1)
    }

    fn statuses(&self) -> Vec<u8> {
        (0..LMBS)
            .map(|lmb| if self.present.contains(&lmb) { 0x0f } else { 0 })
            .collect()
    }
}

fn apply(rig: &Rig, model: &mut Model, step: Move) -> Result<(), TestCaseError> {
    match step {
        Move::Show(lmb, present) => {
            prop_assert_eq!(rig.device.show(lmb, present), model.show(lmb, present));
        }
        Move::Notify(lmb, eject) => {
            let notice = if eject {
                Notice::EjectRequest
            } else {
                Notice::DeviceCheck
            };
            rig.device.notify(lmb, notice);
            model.notify(lmb, if eject { 3 } else { 1 });
        }
        Move::Withdraw(lmb) => {
            let taken = rig.device.withdraw(lmb).map(|notice| notice.value().into());
            prop_assert_eq!(taken, model.withdraw(lmb));
        }
        Move::Take(limit) => {
            rig.wake.take();
            let taken: Vec<Seen> = rig.device.take_events(limit).iter().map(seen).collect();
            let rest = model.events.split_off(limit.min(model.events.len()));
            prop_assert_eq!(taken, std::mem::replace(&mut model.events, rest));
            prop_assert_eq!(rig.wake.take() > 0, !model.events.is_empty());
        }
        Move::Next => prop_assert_eq!(rig.guest.next(), model.next()),
        Move::Eject(lmb) => {
            rig.guest.eject(lmb);
            model.eject(lmb);
        }
        Move::Ost(lmb, source, raw) => {
            rig.guest.ost(lmb, source, raw);
            model.ost(lmb, source, raw);
        }
        Move::Write(offset, data) => {
            rig.bus.write(offset, &data);
            model.write(offset, &data);
        }
        Move::Read(offset, width) => {
            let mut data = vec![0; width];
            rig.bus.read(offset, &mut data);
            let expected = if (offset, width) == (0, 4) {
                let value = model.next().map(|(lmb, value)| value << 16 | lmb);
                value.unwrap_or(u32::MAX).to_le_bytes().to_vec()
            } else {
                model.counters.bad_accesses += 1;
                vec![0xff; width]
            };
            prop_assert_eq!(data, expected);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn agrees_with_the_naive_device(moves in proptest::collection::vec(a_move(), 1..80)) {
        let rig = Rig::new(LMBS);
        let mut model = Model { greeting: true, ..Model::default() };
        for step in moves {
            let waiting = !model.events.is_empty();
            apply(&rig, &mut model, step)?;
            prop_assert_eq!(rig.line.is_high(), model.greeting || !model.notices.is_empty());
            prop_assert_eq!(rig.table.all(), model.statuses());
            prop_assert_eq!(rig.device.guest_up(), !model.greeting);
            prop_assert_eq!(rig.device.counters(), model.counters);
            // Nothing waits for an owner that nobody woke.
            if !waiting && !model.events.is_empty() {
                prop_assert!(rig.wake.take() > 0);
            }
        }
        let left: Vec<Seen> = rig.device.take_events(ALL).iter().map(seen).collect();
        prop_assert_eq!(left, model.events);
    }
}
