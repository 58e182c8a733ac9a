//! A coordinator whose window is of ACPI devices, and a guest that does what
//! Linux's ACPI hotplug does: one request after the other, in the order of the
//! notices.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use lmb_devices::testing::{AcpiGuest, Counter, Level, Statuses};
use lmb_devices::{AcpiMem, OwnerWake, Stamp};
use lmb_memory::{Layout, LmbIndex};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

use super::rig::{
    BOOT_LMBS, Host, HostHalf, TestClock, WINDOW_LMBS, host_half, layout, wait_readable,
};
use crate::coordinator::{Coordinator, HotplugDevice, OperationId, RequestError, WindowParts};
use crate::protocol::{
    Hotplug, LmbChange, LmbOutcome, LmbSpan, LmbState, MemoryAction, MemoryRequest, Operation,
};
use crate::sandbox::Sandbox;
use crate::timeline::Clock;

const PRESENT: u8 = 0x0f;
const DEVICE_CHECK: u8 = 1;
const EJECT_REQUEST: u8 = 3;
/// _OST: non-specific failure, device busy, eject in progress.
const FAILURE: u8 = 1;
const BUSY: u8 = 0x82;
const IN_PROGRESS: u8 = 0x84;

/// The guest's half.
pub(crate) struct Guest {
    acpi: AcpiGuest,
    line: Arc<Level>,
    statuses: Arc<Statuses>,
    /// LMBs that its memory management has.
    pub(crate) has: BTreeSet<u32>,
    /// What it has read and not done yet.
    todo: VecDeque<(u32, u32)>,
    /// LMBs that it cannot take offline.
    pub(crate) unmovable: BTreeSet<u32>,
    /// LMBs that it tries to take offline without end.
    pub(crate) pinned: BTreeSet<u32>,
    /// LMBs that it cannot add.
    pub(crate) unaddable: BTreeSet<u32>,
    /// What it works on without end.
    stuck: Option<u32>,
}

impl Guest {
    /// Boots: takes what is present, then looks for notices.
    fn boot(device: &AcpiMem, line: Arc<Level>, statuses: Arc<Statuses>) -> Self {
        let acpi = AcpiGuest::new(device.bus_device());
        let has = (0..u32::try_from(WINDOW_LMBS).unwrap())
            .filter(|lmb| statuses.get(*lmb) == PRESENT)
            .collect();
        Self {
            acpi,
            line,
            statuses,
            has,
            todo: VecDeque::new(),
            unmovable: BTreeSet::new(),
            pinned: BTreeSet::new(),
            unaddable: BTreeSet::new(),
            stuck: None,
        }
    }

    /// Reads the notices, if the line is high.
    pub(crate) fn interrupt(&mut self) {
        if self.line.is_high() {
            self.todo.extend(self.acpi.drain());
            assert!(!self.line.is_high(), "the line stays high");
        }
    }

    /// Does the next thing; false if there is none.
    pub(crate) fn step(&mut self) -> bool {
        self.interrupt();
        if let Some(lmb) = self.stuck {
            if self.pinned.contains(&lmb) {
                return false;
            }
            self.stuck = None;
            self.give_back(lmb);
            return true;
        }
        let Some((lmb, notice)) = self.todo.pop_front() else {
            return false;
        };
        match u8::try_from(notice).unwrap() {
            DEVICE_CHECK => self.check(lmb),
            EJECT_REQUEST => self.eject(lmb),
            other => panic!("notice {other}"),
        }
        true
    }

    fn check(&mut self, lmb: u32) {
        let present = self.statuses.get(lmb) == PRESENT;
        let fine = present && !self.unaddable.contains(&lmb) && self.has.insert(lmb);
        self.acpi
            .ost(lmb, DEVICE_CHECK, if fine { 0 } else { FAILURE });
    }

    fn eject(&mut self, lmb: u32) {
        self.acpi.ost(lmb, EJECT_REQUEST, IN_PROGRESS);
        if self.unmovable.contains(&lmb) && self.has.contains(&lmb) {
            self.acpi.ost(lmb, EJECT_REQUEST, BUSY);
        } else if self.pinned.contains(&lmb) {
            self.stuck = Some(lmb);
        } else {
            self.give_back(lmb);
        }
    }

    pub(crate) fn give_back(&mut self, lmb: u32) {
        self.has.remove(&lmb);
        self.acpi.eject(lmb);
        assert_eq!(self.statuses.get(lmb), 0, "Linux reads _STA right after");
        self.acpi.ost(lmb, EJECT_REQUEST, 0);
    }

    /// Anything a hostile guest may write.
    pub(crate) fn scribble(&self, lmb: u32, source: u8, status: u8, eject: bool) {
        if eject {
            self.acpi.eject(lmb);
        } else {
            self.acpi.ost(lmb, source, status);
        }
    }
}

/// See the module's head.
pub(crate) struct AcpiRig {
    pub(crate) coordinator: Coordinator,
    pub(crate) clock: Arc<TestClock>,
    pub(crate) host: Host,
    pub(crate) faults: lmb_memory::host::fault::FaultControl,
    pub(crate) guest: Guest,
    access: lmb_memory::AccessMap,
    effect_done: Arc<EventFd>,
    layout: Layout,
}

fn stamp() -> Stamp {
    Stamp {
        // Past any acceptance of the test's clock.
        monotonic_ns: 1 << 50,
        cpu_ns: 0,
    }
}

struct Machine {
    host: Host,
    faults: lmb_memory::host::fault::FaultControl,
    guest: Guest,
    access: lmb_memory::AccessMap,
}

fn build(coordinator: &mut Coordinator, layout: &Layout, fail_first_open: bool) -> Machine {
    let HostHalf {
        ram,
        access,
        effects,
        host,
        faults,
    } = host_half(layout);
    if fail_first_open {
        faults.fail(
            lmb_memory::WindowOp::Open,
            1,
            lmb_memory::FaultKind::OutOfMemory,
        );
    }
    let (line, statuses) = (
        Arc::new(Level::default()),
        Arc::new(Statuses::new(usize::try_from(WINDOW_LMBS).unwrap())),
    );
    let wake: Arc<dyn OwnerWake> = Arc::new(Counter::default());
    let device = AcpiMem::new(
        u32::try_from(WINDOW_LMBS).unwrap(),
        statuses.clone(),
        line.clone(),
        wake,
        stamp,
    );
    coordinator
        .attach(WindowParts {
            device: HotplugDevice::Acpi(device.clone()),
            ram,
            access: access.clone(),
            effects,
            sandbox: Sandbox::off(),
        })
        .unwrap();
    Machine {
        host,
        faults,
        guest: Guest::boot(&device, line, statuses),
        access,
    }
}

impl AcpiRig {
    /// A guest that is up, with nothing plugged.
    pub(crate) fn new() -> Self {
        let mut rig = Self::booting(0, false);
        rig.run();
        rig
    }

    /// A guest that was started with LMBs requested and has looked at what is
    /// present, and no more.
    pub(crate) fn booting(requested_lmbs: u64, fail_first_open: bool) -> Self {
        // LMBs smaller than any guest's block make a test that is quick.
        let layout = Layout {
            hotplug: Hotplug::Acpi,
            ..layout(true)
        };
        let clock = TestClock::new();
        let effect_done = Arc::new(EventFd::new(EFD_CLOEXEC | EFD_NONBLOCK).unwrap());
        let shared: Arc<dyn Clock> = Arc::clone(&clock) as _;
        let done = Arc::clone(&effect_done);
        let mut coordinator = Coordinator::with_clock(&layout, 500, done, shared);
        if requested_lmbs > 0 {
            let total = layout.lmb_size.bytes().get() * (BOOT_LMBS + requested_lmbs);
            coordinator
                .request_at_start(lmb_memory::Bytes::new(total))
                .unwrap();
        }
        let machine = build(&mut coordinator, &layout, fail_first_open);
        Self {
            coordinator,
            clock,
            host: machine.host,
            faults: machine.faults,
            guest: machine.guest,
            access: machine.access,
            effect_done,
            layout,
        }
    }

    /// The guest resets the VM and boots again.
    pub(crate) fn reboot(&mut self) {
        self.coordinator.system_reset(self.clock.now_ns());
        let machine = build(&mut self.coordinator, &self.layout, false);
        self.host = machine.host;
        self.faults = machine.faults;
        self.guest = machine.guest;
        self.access = machine.access;
    }

    pub(crate) fn busy(&self) -> bool {
        self.coordinator.windows[0].busy()
    }

    /// Waits for the effect in flight, and takes its end.
    pub(crate) fn await_effect(&mut self) {
        while self.busy() {
            wait_readable(&self.effect_done);
            self.coordinator.on_effect_done();
        }
    }

    /// Guest and host go on until neither has anything to do.
    pub(crate) fn run(&mut self) {
        loop {
            self.guest.interrupt();
            self.coordinator.on_device_wake();
            self.await_effect();
            if !self.guest.step() {
                self.coordinator.on_device_wake();
                self.await_effect();
                self.guest.interrupt();
                if self.guest.todo.is_empty() || self.guest.stuck.is_some() {
                    return;
                }
            }
        }
    }

    pub(crate) fn ask(&mut self, request: &MemoryRequest) -> Result<OperationId, RequestError> {
        let accepted_ns = self.clock.now_ns();
        self.coordinator.start_operation(request, accepted_ns)
    }

    pub(crate) fn start(&mut self, action: MemoryAction, lmbs: u64) -> OperationId {
        let request = MemoryRequest {
            lmbs: Some(lmbs),
            ..MemoryRequest::new(action)
        };
        self.ask(&request).unwrap()
    }

    /// Starts a change of LMBs of the window, by their number there.
    pub(crate) fn listed(
        &mut self,
        action: MemoryAction,
        runs: &[(u64, u64)],
        all_or_nothing: bool,
    ) -> Result<OperationId, RequestError> {
        let indices = runs
            .iter()
            .map(|&(first, count)| LmbSpan {
                first: BOOT_LMBS + first,
                count,
            })
            .collect();
        let request = MemoryRequest {
            indices: Some(indices),
            all_or_nothing,
            ..MemoryRequest::new(action)
        };
        self.ask(&request)
    }

    /// Adds LMBs by count and lets it end.
    pub(crate) fn added(&mut self, lmbs: u64) {
        let id = self.start(MemoryAction::Add, lmbs);
        self.run();
        assert_eq!(
            self.operation(id).state,
            crate::protocol::OperationState::Done
        );
    }

    pub(crate) fn operation(&self, id: OperationId) -> Operation {
        self.coordinator.operation(id).expect("remembered")
    }

    pub(crate) fn pass_ms(&mut self, ms: u64) {
        self.clock.advance_ms(ms);
        self.coordinator.on_deadline(self.clock.now_ns());
    }

    /// LMBs of the window that the book shows as plugged.
    pub(crate) fn plugged(&self) -> Vec<u64> {
        let ledger = self.coordinator.windows[0].ledger();
        (0..WINDOW_LMBS)
            .filter(|lmb| ledger.is_plugged(LmbIndex::new(*lmb)))
            .collect()
    }

    pub(crate) fn requested(&self) -> u64 {
        self.coordinator.windows[0].ledger().requested_lmbs().get()
    }

    /// How LMB `lmb` of the window stands, for clients.
    pub(crate) fn state(&self, lmb: u64) -> LmbState {
        let index = BOOT_LMBS + lmb;
        let list = self.coordinator.lmb_list();
        let run = list
            .lmbs
            .iter()
            .find(|run| (run.first..run.first + run.count).contains(&index));
        run.expect("every LMB is listed").state
    }

    /// With no effect in flight, every book says the same, and the guest has
    /// nothing that is not there.
    pub(crate) fn assert_agreement(&self) {
        assert!(!self.busy());
        let ledger = self.coordinator.windows[0].ledger();
        assert!(!ledger.is_busy());
        let open = self.host.open.lock().unwrap();
        for lmb in 0..WINDOW_LMBS {
            let plugged = ledger.is_plugged(LmbIndex::new(lmb));
            assert_eq!(plugged, open.contains(&lmb), "host and ledger on LMB {lmb}");
            let access = self.access.is_accessible(LmbIndex::new(lmb));
            assert_eq!(plugged, access, "access map and ledger on LMB {lmb}");
            let number = u32::try_from(lmb).unwrap();
            let shown = self.guest.statuses.get(number) == PRESENT;
            assert!(plugged || !shown, "LMB {lmb} is shown and not there");
            let has = self.guest.has.contains(&number);
            assert!(
                plugged || !has,
                "the guest has LMB {lmb}, which is not there"
            );
            let state = self.state(lmb);
            let there = matches!(
                state,
                LmbState::Plugged | LmbState::Removing | LmbState::Leaving
            );
            assert!(plugged || !there, "LMB {lmb} is told as {state:?}");
            assert!(!plugged || state != LmbState::Unplugged);
        }
        let list = self.coordinator.lmb_list();
        let mut next = 0;
        for run in &list.lmbs {
            assert_eq!(run.first, next);
            next += run.count;
            let bytes: u64 = run.ranges.iter().map(|range| range.size_bytes).sum();
            assert_eq!(bytes, run.count * list.lmb_size_bytes);
        }
        assert_eq!(next, BOOT_LMBS + WINDOW_LMBS);
    }
}

/// What became of LMBs of the window in an operation: (first, count, outcome).
pub(crate) fn outcomes(changes: &[LmbChange]) -> Vec<(u64, u64, LmbOutcome)> {
    changes
        .iter()
        .map(|change| (change.first - BOOT_LMBS, change.count, change.outcome))
        .collect()
}
