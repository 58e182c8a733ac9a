//! The registers of ACPI memory devices: a guest and an owner that do anything,
//! against a model that keeps plain lists.

#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use lmb_devices::testing::{Counter, Level, Statuses};
use lmb_devices::{
    AcpiMem, AcpiMemCounters, AcpiMemEvent, BusDevice, LevelLine, Notice, OstSource, OwnerWake,
    Stamp, StatusTable,
};
use lmb_fuzz::input::Input;

const LMBS: u32 = 6;
const PRESENT: u8 = 0x0f;

fn stamp() -> Stamp {
    Stamp::default()
}

/// What the guest is known to have done to an LMB, not yet taken.
#[derive(Clone, Copy, Default)]
struct Lmb {
    present: bool,
    ejected: bool,
    ost: Option<(u8, u8)>,
}

/// The device as plain lists.
#[derive(Default)]
struct Model {
    lmbs: [Lmb; LMBS as usize],
    notices: Vec<(u32, Notice)>,
    /// LMBs with events, by their first.
    order: Vec<u32>,
    up: bool,
    greeting_taken: bool,
    counters: AcpiMemCounters,
}

impl Model {
    fn high(&self) -> bool {
        !self.up || !self.notices.is_empty()
    }

    fn lmb(&mut self, lmb: u32) -> Option<&mut Lmb> {
        self.lmbs.get_mut(lmb as usize)
    }

    fn note(&mut self, lmb: u32) {
        if !self.order.contains(&lmb) {
            self.order.push(lmb);
        }
    }

    /// What a read gives.
    fn read(&mut self, offset: u64, len: usize) -> Vec<u8> {
        if (offset, len) != (0, 4) {
            self.counters.bad_accesses += 1;
            return vec![0xff; len];
        }
        self.up = true;
        let value = if self.notices.is_empty() {
            u32::MAX
        } else {
            let (lmb, notice) = self.notices.remove(0);
            let kind = match notice {
                Notice::DeviceCheck => 1,
                Notice::EjectRequest => 3,
            };
            kind * 0x1_0000 + lmb
        };
        value.to_le_bytes().to_vec()
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        let &[a, b, c, d] = data else {
            self.counters.bad_accesses += 1;
            return;
        };
        match offset {
            4 => self.eject(u32::from_le_bytes([a, b, c, d])),
            8 => {
                let lmb = u32::from(a) + 256 * u32::from(b);
                let Some(entry) = self.lmb(lmb) else {
                    self.counters.bad_lmbs += 1;
                    return;
                };
                if entry.ost.replace((c, d)).is_some() {
                    self.counters.overwritten_osts += 1;
                }
                self.note(lmb);
            }
            _ => self.counters.bad_accesses += 1,
        }
    }

    fn eject(&mut self, lmb: u32) {
        let Some(entry) = self.lmb(lmb) else {
            self.counters.bad_lmbs += 1;
            return;
        };
        if !entry.present {
            self.counters.stray_ejects += 1;
            return;
        }
        entry.present = false;
        entry.ejected = true;
        self.notices.retain(|(of, _)| *of != lmb);
        self.note(lmb);
    }

    fn show(&mut self, lmb: u32, present: bool) -> bool {
        match self.lmb(lmb) {
            None => !present,
            Some(entry) if present && entry.ejected => false,
            Some(entry) => {
                entry.present = present;
                true
            }
        }
    }

    fn notify(&mut self, lmb: u32, notice: Notice) {
        if lmb >= LMBS {
            return;
        }
        match self.notices.iter_mut().find(|(of, _)| *of == lmb) {
            Some(pending) => pending.1 = notice,
            None => self.notices.push((lmb, notice)),
        }
    }

    fn withdraw(&mut self, lmb: u32) -> Option<Notice> {
        let at = self.notices.iter().position(|(of, _)| *of == lmb)?;
        Some(self.notices.remove(at).1)
    }

    /// The next event, as kind, LMB, and what was reported.
    fn event(&mut self) -> Option<(char, u32, u8, u8)> {
        if self.up && !self.greeting_taken {
            self.greeting_taken = true;
            return Some(('u', 0, 0, 0));
        }
        let lmb = *self.order.first()?;
        let entry = self.lmb(lmb)?;
        let event = if std::mem::take(&mut entry.ejected) {
            ('e', lmb, 0, 0)
        } else {
            let (source, status) = entry.ost.take()?;
            ('o', lmb, source, status)
        };
        if !entry.ejected && entry.ost.is_none() {
            self.order.remove(0);
        }
        Some(event)
    }
}

fn plain(event: &AcpiMemEvent) -> (char, u32, u8, u8) {
    match *event {
        AcpiMemEvent::GuestUp { .. } => ('u', 0, 0, 0),
        AcpiMemEvent::Ejected { lmb, .. } => ('e', lmb, 0, 0),
        AcpiMemEvent::Ost {
            lmb,
            notice,
            status,
            ..
        } => {
            assert_eq!(notice, status.source());
            assert_eq!(OstSource::from_raw(notice.raw()), notice);
            assert!(!status.to_string().is_empty());
            assert_eq!(status.is_success(), status.raw() == 0);
            assert!(!(status.is_success() && status.in_progress()));
            ('o', lmb, notice.raw(), status.raw())
        }
    }
}

/// The device, what it drives, and the model.
struct Pair {
    device: AcpiMem,
    bus: Arc<dyn BusDevice>,
    line: Arc<Level>,
    table: Arc<Statuses>,
    wakes: Arc<Counter>,
    model: Model,
}

impl Pair {
    fn new() -> Self {
        let line = Arc::new(Level::default());
        let table = Arc::new(Statuses::new(LMBS as usize));
        let wakes = Arc::new(Counter::default());
        let device = AcpiMem::new(
            LMBS,
            Arc::clone(&table) as Arc<dyn StatusTable>,
            Arc::clone(&line) as Arc<dyn LevelLine>,
            Arc::clone(&wakes) as Arc<dyn OwnerWake>,
            stamp,
        );
        Self {
            bus: device.bus_device(),
            device,
            line,
            table,
            wakes,
            model: Model::default(),
        }
    }

    /// Whether the owner, who slept, was woken for what there is now.
    fn check_wake(&self, slept: bool) {
        let events = self.model.up && !self.model.greeting_taken || !self.model.order.is_empty();
        if slept && events {
            assert!(self.wakes.take() > 0, "the owner sleeps over events");
        }
    }

    fn sleeps(&self) -> bool {
        (!self.model.up || self.model.greeting_taken) && self.model.order.is_empty()
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let slept = self.sleeps();
        if slept {
            self.wakes.take();
        }
        let lmb = u32::from(input.below(LMBS as u8 + 1));
        match input.below(12) {
            0..=2 => self.read(0, 4),
            3 => self.read(u64::from(input.below(20)), usize::from(input.below(9))),
            4 | 5 => self.write(4, &lmb.to_le_bytes()),
            6 => {
                let report = u32::from(input.u16()) << 16 | lmb;
                self.write(8, &report.to_le_bytes());
            }
            7 => {
                let (at, len) = (u64::from(input.below(20)), usize::from(input.below(9)));
                self.write(at, input.bytes(len));
            }
            8 => {
                let present = input.flag();
                let shown = self.device.show(lmb, present);
                assert_eq!(shown, self.model.show(lmb, present));
            }
            9 => {
                let notice = if input.flag() {
                    Notice::EjectRequest
                } else {
                    Notice::DeviceCheck
                };
                self.device.notify(lmb, notice);
                self.model.notify(lmb, notice);
            }
            10 => assert_eq!(self.device.withdraw(lmb), self.model.withdraw(lmb)),
            _ => self.take(usize::from(input.below(5))),
        }
        self.check_wake(slept);
        self.check();
    }

    fn read(&mut self, offset: u64, len: usize) {
        let mut data = vec![0x55; len];
        self.bus.read(offset, &mut data);
        assert_eq!(data, self.model.read(offset, len));
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        self.bus.write(offset, data);
        self.model.write(offset, data);
    }

    fn take(&mut self, limit: usize) {
        self.wakes.take();
        let taken: Vec<_> = self.device.take_events(limit).iter().map(plain).collect();
        let due: Vec<_> = (0..limit).map_while(|_| self.model.event()).collect();
        assert_eq!(taken, due);
        assert_eq!(self.wakes.take() > 0, !self.sleeps(), "woken for the rest");
    }

    fn check(&self) {
        assert_eq!(self.line.is_high(), self.model.high());
        assert_eq!(self.device.guest_up(), self.model.up);
        assert_eq!(self.device.counters(), self.model.counters);
        let status = |lmb: &Lmb| if lmb.present { PRESENT } else { 0 };
        let due: Vec<u8> = self.model.lmbs.iter().map(status).collect();
        assert_eq!(self.table.all(), due);
    }
}

fuzz_target!(|data: &[u8]| {
    let mut pair = Pair::new();
    let mut input = Input::new(data);
    pair.check();
    for _ in 0..512 {
        if input.is_empty() {
            break;
        }
        pair.step(&mut input);
    }
    pair.take(1024);
});
