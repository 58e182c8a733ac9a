//! What the tests stand on: a coordinator with a machine, all parts real but
//! KVM, and a driver that does what Linux's does, as plainly as it can be put.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Duration;

use lmb_devices::mmio::registers::INTERRUPT_CONFIG;
use lmb_devices::testing::{Counter, MemDriver, MmioDriver};
use lmb_devices::{
    BusDevice, InterruptLine, Mark, MarkKind, MemConfig, MemFeatures, MemRequest, OwnerWake, Stamp,
    VirtioMem,
};
use lmb_memory::{
    AccessMap, BackingOptions, Bytes, FaultyWindow, GuestBlock, GuestRam, Hotplug, Layout,
    LmbIndex, LmbRange, LmbSize, MemoryRequest as Definition, MmapWindow, PageSize, WindowMemory,
};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};
use vmm_sys_util::poll::PollContext;

use crate::coordinator::window::virtio::VirtioWindow;
use crate::coordinator::{
    Coordinator, EffectError, HotplugDevice, OperationId, RequestError, WindowEffects, WindowParts,
};
use crate::protocol::{MemoryAction, MemoryRequest, Operation};
use crate::sandbox::Sandbox;
use crate::timeline::Clock;

pub(crate) const LMB_BYTES: u64 = 2 << 20;
pub(crate) const BOOT_LMBS: u64 = 32;
pub(crate) const WINDOW_LMBS: u64 = 16;
/// Boot memory that the driver takes for its queue.
const DRIVER_BASE: u64 = 1 << 20;
const ACK: u16 = 0;
const NACK: u16 = 1;
const BUSY: u16 = 2;

/// A clock that the test moves; each look at it takes a nanosecond.
#[derive(Debug)]
pub(crate) struct TestClock(AtomicU64);

impl TestClock {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(AtomicU64::new(1_000)))
    }

    pub(crate) fn advance_ms(&self, ms: u64) {
        self.0.fetch_add(ms * 1_000_000, Ordering::Relaxed);
    }
}

impl Clock for TestClock {
    fn now_ns(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }

    fn stamp(&self) -> Stamp {
        let monotonic_ns = self.now_ns();
        Stamp {
            monotonic_ns,
            cpu_ns: monotonic_ns / 2,
        }
    }
}

/// Holds effects back while it is shut.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    shut: Mutex<bool>,
    moved: Condvar,
}

impl Gate {
    pub(crate) fn shut(&self, shut: bool) {
        *self.shut.lock().unwrap() = shut;
        self.moved.notify_all();
    }

    fn pass(&self) {
        let mut shut = self.shut.lock().unwrap();
        while *shut {
            shut = self.moved.wait(shut).unwrap();
        }
    }
}

/// An interrupt line that counts, and on demand notes what a driver that
/// reacts at once finds in the configuration.
#[derive(Default)]
pub(crate) struct Line {
    count: Counter,
    bus: OnceLock<Arc<dyn BusDevice>>,
    seen: Mutex<Option<Vec<MemConfig>>>,
}

impl Line {
    /// Notes the configuration at each interrupt from now on.
    pub(crate) fn watch(&self) {
        *self.seen.lock().unwrap() = Some(Vec::new());
    }

    /// What was noted.
    pub(crate) fn seen(&self) -> Vec<MemConfig> {
        self.seen.lock().unwrap().clone().unwrap_or_default()
    }
}

impl InterruptLine for Line {
    fn trigger(&self) {
        self.count.trigger();
        if let Some(seen) = &mut *self.seen.lock().unwrap() {
            let mmio = MmioDriver::new(Arc::clone(self.bus.get().unwrap()));
            seen.push(MemConfig {
                plugged_size: mmio.config_u64(40),
                requested_size: mmio.config_u64(48),
                ..MemConfig::default()
            });
        }
    }
}

/// What effects share with the test.
#[derive(Clone, Default)]
pub(crate) struct Host {
    /// LMBs that are open on the host, by the effects' own record.
    pub(crate) open: Arc<Mutex<BTreeSet<u64>>>,
    pub(crate) gate: Arc<Gate>,
    /// Set: the next effect panics.
    pub(crate) bomb: Arc<Mutex<bool>>,
    /// The device's interrupts.
    pub(crate) line: Arc<Line>,
}

/// Effects on real host memory; KVM slots are only counted.
struct HostEffects {
    memory: FaultyWindow<MmapWindow>,
    host: Host,
}

fn lmbs_of(run: LmbRange) -> impl Iterator<Item = u64> {
    run.first().get()..run.end().get()
}

impl HostEffects {
    fn enter(&self) {
        self.host.gate.pass();
        let bomb = std::mem::take(&mut *self.host.bomb.lock().unwrap());
        assert!(!bomb, "the bomb went off");
    }

    fn take_out(&mut self, run: LmbRange) -> Result<(), EffectError> {
        let undone = |error: lmb_memory::HostMemoryError| EffectError::Undone(error.to_string());
        self.memory.close(run).map_err(undone)?;
        if let Err(error) = self.memory.discard(run) {
            return Err(match self.memory.reopen(run) {
                Ok(()) => undone(error),
                Err(worse) => EffectError::Inconsistent(format!("{error}; {worse}")),
            });
        }
        Ok(())
    }
}

impl WindowEffects for HostEffects {
    fn plug(&mut self, runs: &[LmbRange]) -> Result<(), EffectError> {
        self.enter();
        for (number, &run) in runs.iter().enumerate() {
            if let Err(error) = self.memory.open(run) {
                for &earlier in &runs[..number] {
                    self.take_out(earlier)
                        .map_err(|worse| EffectError::Inconsistent(worse.to_string()))?;
                }
                return Err(EffectError::Undone(error.to_string()));
            }
        }
        let lmbs = runs.iter().flat_map(|run| lmbs_of(*run));
        self.host.open.lock().unwrap().extend(lmbs);
        Ok(())
    }

    fn unplug(&mut self, runs: &[LmbRange]) -> Result<(), EffectError> {
        self.enter();
        for (number, &run) in runs.iter().enumerate() {
            if let Err(error) = self.take_out(run) {
                for &earlier in &runs[..number] {
                    self.memory
                        .open(earlier)
                        .map_err(|worse| EffectError::Inconsistent(worse.to_string()))?;
                    self.host.open.lock().unwrap().extend(lmbs_of(earlier));
                }
                return Err(error);
            }
            let mut open = self.host.open.lock().unwrap();
            lmbs_of(run).for_each(|lmb| {
                open.remove(&lmb);
            });
        }
        Ok(())
    }

    fn slots_in_use(&self) -> u64 {
        let open = self.host.open.lock().unwrap();
        u64::try_from(
            open.iter()
                .map(|lmb| lmb / 4)
                .collect::<BTreeSet<_>>()
                .len(),
        )
        .unwrap()
    }
}

pub(crate) fn layout(window: bool) -> Layout {
    let boot = Bytes::new(BOOT_LMBS * LMB_BYTES);
    let max = Bytes::new((BOOT_LMBS + WINDOW_LMBS) * LMB_BYTES);
    Layout::compute(&Definition {
        memory: boot,
        max_memory: window.then_some(max),
        lmb_size: LmbSize::new(Bytes::new(LMB_BYTES)).unwrap(),
        guest_block: GuestBlock::Follow,
        slot_size: None,
        page_size: PageSize::Small,
        hotplug: Hotplug::VirtioMem,
        phys_bits: 40,
        kernel_reach: None,
        max_map_count: None,
        max_slots: 509,
    })
    .unwrap()
}

/// The guest's half of a machine.
pub(crate) struct Guest {
    pub(crate) driver: MemDriver<'static, GuestRam>,
    pub(crate) plugged: BTreeSet<u64>,
    interrupts: Arc<Line>,
    addr: u64,
    /// The request that is out.
    out: Option<(MemRequest, u64)>,
    /// BUSY was answered: only a change of the configuration wakes it.
    asleep: bool,
    /// The configuration changed while a request was out: its worker runs once
    /// more, whatever the answer (Linux queues it again).
    again: bool,
    pub(crate) nacks: u64,
    pub(crate) busys: u64,
}

impl Guest {
    fn probe(machine: &Plugboard) -> Self {
        let bus = Arc::clone(&machine.bus);
        let driver = MemDriver::probe(bus, machine.ram, DRIVER_BASE);
        let addr = driver.config().addr;
        Self {
            driver,
            plugged: BTreeSet::new(),
            interrupts: Arc::clone(&machine.interrupts),
            addr,
            out: None,
            asleep: false,
            again: false,
            nacks: 0,
            busys: 0,
        }
    }

    pub(crate) fn address_of(&self, lmb: u64) -> u64 {
        self.addr + lmb * LMB_BYTES
    }

    pub(crate) fn config(&self) -> MemConfig {
        self.driver.config()
    }

    /// Interrupts since the last look.
    pub(crate) fn take_interrupts(&mut self) -> u64 {
        self.interrupts.count.take()
    }

    /// One step of Linux's worker (virtio_mem_run_wq), one block a request.
    /// Returns whether it did something.
    pub(crate) fn step(&mut self) -> bool {
        if self.take_interrupts() > 0 && self.driver.mmio.handle_interrupt() & INTERRUPT_CONFIG != 0
        {
            self.asleep = false;
            self.again = self.out.is_some();
        }
        if let Some(answer) = self.driver.take_answer() {
            let (request, lmb) = self.out.take().expect("an answer to nothing");
            self.on_answer(request, lmb, answer.response_type.expect("a whole answer"));
            self.again = false;
            return true;
        }
        if self.out.is_some() || self.asleep {
            return false;
        }
        let config = self.config();
        let wanted = config.requested_size / LMB_BYTES;
        let have = u64::try_from(self.plugged.len()).unwrap();
        assert_eq!(config.plugged_size, have * LMB_BYTES, "the guest's book");
        if have < wanted {
            let free = (0..WINDOW_LMBS).find(|lmb| !self.plugged.contains(lmb));
            self.send_one(true, free.expect("room"));
        } else if have > wanted {
            let last = *self.plugged.last().expect("plugged");
            self.send_one(false, last);
        }
        have != wanted
    }

    pub(crate) fn send_one(&mut self, plug: bool, lmb: u64) {
        let addr = self.address_of(lmb);
        let request = if plug {
            MemRequest::Plug { addr, nb_blocks: 1 }
        } else {
            MemRequest::Unplug { addr, nb_blocks: 1 }
        };
        self.driver.send(request);
        self.out = Some((request, lmb));
    }

    fn on_answer(&mut self, request: MemRequest, lmb: u64, answer: u16) {
        match (answer, request) {
            (ACK, MemRequest::Plug { .. }) => assert!(self.plugged.insert(lmb)),
            (ACK, _) => assert!(self.plugged.remove(&lmb)),
            (NACK, _) => self.nacks += 1,
            (BUSY, _) => {
                self.busys += 1;
                self.asleep = !self.again;
            }
            (other, _) => panic!("the driver marks the device broken: answer {other}"),
        }
    }
}

/// What a new driver needs of a machine.
struct Plugboard {
    bus: Arc<dyn BusDevice>,
    ram: &'static GuestRam,
    interrupts: Arc<Line>,
    access: AccessMap,
}

/// A coordinator with a machine, and its guest.
pub(crate) struct Rig {
    pub(crate) coordinator: Coordinator,
    pub(crate) clock: Arc<TestClock>,
    pub(crate) host: Host,
    pub(crate) faults: lmb_memory::host::fault::FaultControl,
    pub(crate) guest: Option<Guest>,
    effect_done: Arc<EventFd>,
    layout: Layout,
    machine: Plugboard,
}

impl Rig {
    /// Attached, with an active driver.
    pub(crate) fn new() -> Self {
        let mut rig = Self::without_driver();
        rig.probe();
        rig
    }

    /// Attached; no driver yet.
    pub(crate) fn without_driver() -> Self {
        let layout = layout(true);
        let clock = TestClock::new();
        let effect_done = Arc::new(EventFd::new(EFD_CLOEXEC | EFD_NONBLOCK).unwrap());
        let shared: Arc<dyn Clock> = Arc::clone(&clock) as _;
        let mut coordinator =
            Coordinator::with_clock(&layout, 500, Arc::clone(&effect_done), shared);
        let (machine, host, faults) = build(&mut coordinator, &layout);
        Self {
            coordinator,
            clock,
            host,
            faults,
            guest: None,
            effect_done,
            layout,
            machine,
        }
    }

    /// A driver resets the device and becomes active.
    pub(crate) fn probe(&mut self) {
        self.guest = Some(Guest::probe(&self.machine));
        self.coordinator.on_device_wake();
    }

    /// The guest resets the VM and the machine is built anew, without a driver.
    pub(crate) fn reboot(&mut self) {
        self.guest = None;
        self.coordinator.system_reset(self.clock.now_ns());
        let (machine, host, faults) = build(&mut self.coordinator, &self.layout);
        (self.machine, self.host, self.faults) = (machine, host, faults);
    }

    pub(crate) fn guest(&mut self) -> &mut Guest {
        self.guest.as_mut().expect("a driver")
    }

    /// The window, as what it is.
    fn window(&self) -> &VirtioWindow {
        self.coordinator.windows[0].as_any().downcast_ref().unwrap()
    }

    pub(crate) fn busy(&self) -> bool {
        self.coordinator.windows[0].busy()
    }

    /// Waits until the worker has something to say, and takes it.
    pub(crate) fn await_effect(&mut self) {
        while self.busy() {
            wait_readable(&self.effect_done);
            self.coordinator.on_effect_done();
        }
    }

    /// Guest and host go on until neither has anything to do.
    pub(crate) fn run(&mut self) {
        loop {
            self.coordinator.on_device_wake();
            self.await_effect();
            if !self.guest.as_mut().is_some_and(Guest::step) {
                return;
            }
        }
    }

    pub(crate) fn start(
        &mut self,
        action: MemoryAction,
        lmbs: u64,
        timeout_ms: u64,
    ) -> Result<OperationId, RequestError> {
        let request = MemoryRequest {
            action,
            size_bytes: None,
            lmbs: Some(lmbs),
            timeout_ms,
            wait: false,
            wait_usable: false,
            ..MemoryRequest::new(action)
        };
        let accepted_ns = self.clock.now_ns();
        self.coordinator.start_operation(&request, accepted_ns)
    }

    pub(crate) fn add(&mut self, lmbs: u64) -> OperationId {
        self.start(MemoryAction::Add, lmbs, 60_000).unwrap()
    }

    pub(crate) fn remove(&mut self, lmbs: u64) -> OperationId {
        self.start(MemoryAction::Remove, lmbs, 60_000).unwrap()
    }

    pub(crate) fn operation(&self, id: OperationId) -> Operation {
        self.coordinator.operation(id).expect("remembered")
    }

    /// The clock moves, and what is due is done.
    pub(crate) fn pass_ms(&mut self, ms: u64) {
        self.clock.advance_ms(ms);
        self.coordinator.on_deadline(self.clock.now_ns());
    }

    pub(crate) fn report_usable(&mut self, lmbs: u64) {
        let mark = Mark {
            kind: MarkKind::Usable,
            value: lmbs * LMB_BYTES,
            stamp: self.clock.stamp(),
        };
        self.coordinator.on_mark(mark);
    }

    pub(crate) fn plugged_lmbs(&self) -> u64 {
        self.coordinator.memory_info().windows[0].plugged_lmbs
    }

    pub(crate) fn requested_lmbs(&self) -> u64 {
        self.coordinator.memory_info().windows[0].requested_lmbs
    }

    /// With no effect in flight, every book says the same.
    pub(crate) fn assert_agreement(&self) {
        assert!(!self.busy());
        let ledger = self.coordinator.windows[0].ledger();
        let open = self.host.open.lock().unwrap();
        for lmb in 0..WINDOW_LMBS {
            let plugged = ledger.is_plugged(LmbIndex::new(lmb));
            assert_eq!(plugged, open.contains(&lmb), "host and ledger on LMB {lmb}");
            let access = self.machine.access.is_accessible(LmbIndex::new(lmb));
            assert_eq!(plugged, access, "access map and ledger on LMB {lmb}");
        }
        assert!(!ledger.is_busy());
        if let Some(guest) = &self.guest {
            assert_eq!(guest.config(), self.window().config());
        }
    }
}

/// A test that fails with an effect held back must not wait for it.
impl Drop for Rig {
    fn drop(&mut self) {
        self.host.gate.shut(false);
    }
}

/// A window's host half without KVM.
pub(crate) struct HostHalf {
    pub(crate) ram: GuestRam,
    pub(crate) access: AccessMap,
    pub(crate) effects: Box<dyn WindowEffects>,
    pub(crate) host: Host,
    pub(crate) faults: lmb_memory::host::fault::FaultControl,
}

pub(crate) fn host_half(layout: &Layout) -> HostHalf {
    let memory = lmb_memory::create(layout, &BackingOptions::default()).unwrap();
    let (window, faults) = FaultyWindow::new(memory.window.unwrap());
    let host = Host::default();
    HostHalf {
        ram: memory.guest,
        access: memory.access.unwrap(),
        effects: Box::new(HostEffects {
            memory: window,
            host: host.clone(),
        }),
        host,
        faults,
    }
}

/// Builds a machine and attaches it.
fn build(
    coordinator: &mut Coordinator,
    layout: &Layout,
) -> (Plugboard, Host, lmb_memory::host::fault::FaultControl) {
    let HostHalf {
        ram,
        access,
        effects,
        host,
        faults,
    } = host_half(layout);
    let interrupts = Arc::clone(&host.line);
    let line: Arc<dyn InterruptLine> = Arc::clone(&interrupts) as _;
    let wake: Arc<dyn OwnerWake> = Arc::new(Counter::default());
    let config = MemConfig::default();
    let device = VirtioMem::new(config, MemFeatures::default(), line, wake);
    let _ = interrupts.bus.set(device.bus_device());
    let machine = Plugboard {
        bus: device.bus_device(),
        // The driver double borrows guest memory for as long as it lives.
        ram: Box::leak(Box::new(ram.clone())),
        interrupts,
        access: access.clone(),
    };
    coordinator
        .attach(WindowParts {
            device: HotplugDevice::VirtioMem(device),
            ram,
            access,
            effects,
            sandbox: Sandbox::off(),
        })
        .unwrap();
    (machine, host, faults)
}

/// Blocks until `event` is readable; a test that waits longer than any effect
/// takes has found a lost wake-up.
pub(crate) fn wait_readable(event: &EventFd) {
    let context = PollContext::<u32>::new().unwrap();
    context.add(event, 0).unwrap();
    let ready = context.wait_timeout(Duration::from_secs(20)).unwrap();
    assert_eq!(ready.iter_readable().count(), 1, "no wake-up came");
}
