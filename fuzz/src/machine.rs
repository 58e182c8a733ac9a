//! A machine without KVM: the coordinator with one virtio-mem window, all parts
//! real but KVM itself, and a clock that moves only when it is told to.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lmb_devices::testing::{Counter, MemDriver, REQUEST_AREA_BYTES};
use lmb_devices::{
    BusDevice, InterruptLine, MemConfig, MemFeatures, MemRequest, MemResponse, OwnerWake,
    RangeState, Stamp, VirtioMem,
};
use lmb_memory::{
    AccessMap, BackingOptions, Bytes, GuestBlock, GuestRam, HostRam, Hotplug, Layout, LmbIndex,
    LmbSize, MemoryRequest as Definition, PageSize,
};
use lmb_vmm::coordinator::{Coordinator, HotplugDevice, WindowParts};
use lmb_vmm::protocol::{LmbState, MemoryAction, MemoryRequest, OperationState};
use lmb_vmm::sandbox::Sandbox;
use lmb_vmm::timeline::Clock;
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};
use vmm_sys_util::poll::PollContext;

use crate::host::{Fault, Host};
use crate::model::Book;

/// Size of an LMB.
pub const LMB_BYTES: u64 = 2 << 20;
/// LMBs of boot memory.
pub const BOOT_LMBS: u64 = 2;
/// LMBs of the window.
pub const WINDOW_LMBS: u64 = 12;
/// Boot memory that a driver takes for its queue.
pub const DRIVER_BASE: u64 = 1 << 20;
/// End of what a driver takes.
pub const DRIVER_END: u64 = DRIVER_BASE + REQUEST_AREA_BYTES;

const ACK: u16 = 0;
const NACK: u16 = 1;
const BUSY: u16 = 2;
const ERROR: u16 = 3;

/// A clock that stands still but for a nanosecond at each look.
#[derive(Debug)]
pub struct StillClock(AtomicU64);

impl StillClock {
    /// A clock.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self(AtomicU64::new(1_000)))
    }

    /// Moves it.
    pub fn advance_ms(&self, ms: u64) {
        self.0.fetch_add(ms * 1_000_000, Ordering::Relaxed);
    }
}

impl Clock for StillClock {
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

/// The layout of all machines here.
#[must_use]
pub fn layout() -> Layout {
    Layout::compute(&Definition {
        memory: Bytes::new(BOOT_LMBS * LMB_BYTES),
        max_memory: Some(Bytes::new((BOOT_LMBS + WINDOW_LMBS) * LMB_BYTES)),
        lmb_size: LmbSize::new(Bytes::new(LMB_BYTES)).expect("2 MiB is an LMB size"),
        guest_block: GuestBlock::Follow,
        slot_size: None,
        page_size: PageSize::Small,
        hotplug: Hotplug::VirtioMem,
        phys_bits: 40,
        kernel_reach: None,
        max_map_count: None,
        max_slots: 509,
    })
    .expect("a legal layout")
}

/// Guest memory of such a layout.
#[must_use]
pub fn memory(layout: &Layout) -> HostRam {
    lmb_memory::create(layout, &BackingOptions::default()).expect("the host has memory")
}

/// A virtio-mem device without a driver.
#[must_use]
pub fn device(config: MemConfig) -> VirtioMem {
    let line: Arc<dyn InterruptLine> = Arc::new(Counter::default());
    let wake: Arc<dyn OwnerWake> = Arc::new(Counter::default());
    VirtioMem::new(config, MemFeatures::default(), line, wake)
}

/// Type and state of a response on the wire.
#[must_use]
pub fn wire(response: MemResponse) -> (u16, u16) {
    match response {
        MemResponse::Ack | MemResponse::AckState(RangeState::Plugged) => (ACK, 0),
        MemResponse::AckState(RangeState::Unplugged) => (ACK, 1),
        MemResponse::AckState(RangeState::Mixed) => (ACK, 2),
        MemResponse::Nack => (NACK, 0),
        MemResponse::Busy => (BUSY, 0),
        MemResponse::Error => (ERROR, 0),
    }
}

/// A coordinator with a machine, its guest, and the book that it should have.
///
/// States: *settled* (no effect in flight) ⇄ *held* (an effect waits at the
/// host's gate). While settled, all books must agree.
pub struct Machine<'m> {
    /// Under test.
    pub coordinator: Coordinator,
    /// Its clock.
    pub clock: Arc<StillClock>,
    /// Its host.
    pub host: Host,
    /// The device's bus side.
    pub bus: Arc<dyn BusDevice>,
    /// The driver, if its queue is as it left it.
    pub driver: Option<MemDriver<'m, GuestRam>>,
    /// What the book should be.
    pub book: Book,
    /// Guest memory.
    pub ram: &'m GuestRam,
    access: AccessMap,
    effect_done: Arc<EventFd>,
    /// The target is to become what is plugged once the effect ended.
    follow: bool,
}

impl<'m> Machine<'m> {
    /// A machine without a driver on the memory of [`layout`].
    #[must_use]
    pub fn new(layout: &Layout, ram: &'m GuestRam, host: Host, access: AccessMap) -> Self {
        let clock = StillClock::new();
        let effect_done = EventFd::new(EFD_CLOEXEC | EFD_NONBLOCK).expect("an eventfd");
        let effect_done = Arc::new(effect_done);
        let shared: Arc<dyn Clock> = Arc::clone(&clock) as _;
        let coordinator = Coordinator::with_clock(layout, 500, Arc::clone(&effect_done), shared);
        let window = layout.window.expect("a window");
        let book = Book {
            addr: window.range.start().get(),
            lmb_bytes: LMB_BYTES,
            plugged: vec![false; window.lmbs.get() as usize],
            requested: 0,
            failed: false,
        };
        let unused = device(MemConfig::default());
        let mut machine = Self {
            coordinator,
            clock,
            host,
            bus: unused.bus_device(),
            driver: None,
            book,
            ram,
            access,
            effect_done,
            follow: false,
        };
        machine.attach();
        machine
    }

    fn attach(&mut self) {
        let device = device(MemConfig::default());
        self.bus = device.bus_device();
        let parts = WindowParts {
            device: HotplugDevice::VirtioMem(device),
            ram: self.ram.clone(),
            access: self.access.clone(),
            effects: self.host.effects(),
            sandbox: Sandbox::off(),
        };
        self.coordinator.attach(parts).expect("the window is free");
    }

    /// The guest resets the VM; the machine is built anew, without a driver.
    pub fn reset(&mut self) {
        self.driver = None;
        // A reset waits for the effect in flight.
        self.host.shut(false);
        self.coordinator.system_reset(self.clock.now_ns());
        self.host.reset();
        self.access.clear();
        self.attach();
        self.book.plugged.fill(false);
        self.book.failed = false;
        self.follow = false;
        self.host.set_bound(self.book.requested);
        self.check();
    }

    /// A driver resets the device and becomes active.
    pub fn probe(&mut self) {
        let bus = Arc::clone(&self.bus);
        self.driver = Some(MemDriver::probe(bus, self.ram, DRIVER_BASE));
        self.wake();
    }

    /// The owner looks at the device, and effects end unless they are held.
    pub fn wake(&mut self) {
        self.coordinator.on_device_wake();
        if !self.host.is_shut() {
            self.settle();
        }
    }

    /// Effects end, and what they held up goes on.
    pub fn settle(&mut self) {
        self.host.shut(false);
        loop {
            while self.coordinator.effect_in_flight() {
                wait_readable(&self.effect_done);
                self.coordinator.on_effect_done();
            }
            // The owner may have left requests for its next turn.
            if self.effect_done.read().is_err() {
                break;
            }
            self.coordinator.on_effect_done();
        }
    }

    /// What could not be foretold has happened: takes the host's record, whose
    /// every change was judged, for the book.
    pub fn follow_host(&mut self) {
        let open = self.host.open();
        for (lmb, plugged) in (0..).zip(&mut self.book.plugged) {
            *plugged = open.contains(&lmb);
        }
        let window = &self.coordinator.memory_info().windows[0];
        self.book.failed = window.error.is_some();
        if std::mem::take(&mut self.follow) {
            self.book.requested = window.requested_lmbs;
        }
        self.host.set_bound(self.book.requested);
    }

    /// A client asks for a change.
    pub fn start(&mut self, action: MemoryAction, lmbs: u64, timeout_ms: u64) {
        let request = MemoryRequest {
            lmbs: Some(lmbs),
            timeout_ms,
            ..MemoryRequest::new(action)
        };
        let accepted_ns = self.clock.now_ns();
        if self
            .coordinator
            .start_operation(&request, accepted_ns)
            .is_err()
        {
            return;
        }
        self.follow = false;
        self.book.requested = match action {
            MemoryAction::Set => lmbs - BOOT_LMBS,
            MemoryAction::Add => self.book.requested + lmbs,
            MemoryAction::Remove => self.book.requested - lmbs,
        };
        assert!(self.book.requested <= WINDOW_LMBS);
        self.host.raise_bound(self.book.requested);
    }

    /// A client cancels the newest operation.
    pub fn cancel(&mut self) {
        let operations = self.coordinator.operations();
        let Some(newest) = operations.last() else {
            return;
        };
        let running = newest.state == OperationState::Running;
        assert_eq!(self.coordinator.cancel(newest.id).is_ok(), running);
        if running {
            self.book.requested = self.plugged_lmbs();
            self.follow = self.coordinator.effect_in_flight();
        }
    }

    /// LMBs plugged by the coordinator's book.
    #[must_use]
    pub fn plugged_lmbs(&self) -> u64 {
        self.coordinator.memory_info().windows[0].plugged_lmbs
    }

    /// Time passes, and what is due is done.
    pub fn pass_ms(&mut self, ms: u64) {
        self.clock.advance_ms(ms);
        self.coordinator.on_deadline(self.clock.now_ns());
    }

    /// An active, well-behaved driver sends requests all at once; each is
    /// answered as the book says. To be called while settled.
    pub fn ask(&mut self, requests: &[MemRequest]) {
        let mut fault = self.host.fault();
        let due: Vec<(u16, u16)> = requests
            .iter()
            .map(|request| wire(self.book.answer(*request, &mut fault)))
            .collect();
        let Some(mut driver) = self.driver.take() else {
            return;
        };
        for request in requests {
            driver.queue(*request);
        }
        driver.notify();
        self.wake();
        for (request, due) in requests.iter().zip(due) {
            let answer = driver.take_answer().expect("an answer");
            let given = answer.response_type.zip(answer.state);
            assert_eq!(given, Some(due), "to {request:x?}");
        }
        assert_eq!(driver.take_answer(), None, "an answer to nothing");
        self.driver = Some(driver);
    }

    /// What a new driver does: it starts from nothing and plugs what is
    /// requested. To be called while settled.
    pub fn recover(&mut self) {
        if self.book.failed {
            self.reset();
        }
        self.host.forgive();
        self.probe();
        self.ask(&[MemRequest::UnplugAll]);
        let plug = |lmb: u64| MemRequest::Plug {
            addr: self.book.addr + lmb * LMB_BYTES,
            nb_blocks: 1,
        };
        let all: Vec<MemRequest> = (0..self.book.requested).map(plug).collect();
        self.ask(&all);
        self.check();
        assert_eq!(self.book.count(), self.book.requested);
    }

    /// While settled: the coordinator's book, the host's, the map of what the
    /// VMM may touch, what the guest reads and what clients read are the same.
    pub fn check(&self) {
        assert!(!self.coordinator.effect_in_flight());
        let open = self.host.open();
        let flags = (0..).zip(&self.book.plugged);
        let plugged: Vec<u64> = flags
            .filter(|(_, flag)| **flag)
            .map(|(lmb, _)| lmb)
            .collect();
        assert!(open.iter().eq(&plugged), "host {open:?}, book {plugged:?}");
        for lmb in 0..WINDOW_LMBS {
            let accessible = self.access.is_accessible(LmbIndex::new(lmb));
            if self.book.failed {
                assert!(!accessible || open.contains(&lmb));
            } else {
                assert_eq!(accessible, open.contains(&lmb), "access to LMB {lmb}");
            }
        }
        self.check_guest_view();
        self.check_client_view(&plugged);
    }

    fn check_guest_view(&self) {
        let field = |offset: u64| {
            let mut bytes = [0; 8];
            self.bus.read(0x100 + offset, &mut bytes);
            u64::from_le_bytes(bytes)
        };
        let shown = [0, 16, 24, 32, 40, 48].map(field);
        let window_bytes = WINDOW_LMBS * LMB_BYTES;
        let due = [
            LMB_BYTES,
            self.book.addr,
            window_bytes,
            window_bytes,
            self.book.count() * LMB_BYTES,
            self.book.requested * LMB_BYTES,
        ];
        assert_eq!(shown, due, "the configuration space");
    }

    fn check_client_view(&self, plugged: &[u64]) {
        let info = self.coordinator.memory_info();
        let window = &info.windows[0];
        assert_eq!(window.plugged_lmbs, plugged.len() as u64);
        assert_eq!(window.requested_lmbs, self.book.requested);
        assert_eq!(window.error.is_some(), self.book.failed);
        assert_eq!(window.slots, self.host.slots());
        assert_eq!(
            info.total_bytes,
            (BOOT_LMBS + plugged.len() as u64) * LMB_BYTES
        );
        let mut listed = Vec::new();
        let mut next = 0;
        for run in &self.coordinator.lmb_list().lmbs {
            assert_eq!(run.first, next, "runs follow each other");
            assert!(run.count > 0);
            next += run.count;
            match run.state {
                LmbState::Boot => assert!(next <= BOOT_LMBS),
                LmbState::Plugged => listed.extend(run.first - BOOT_LMBS..next - BOOT_LMBS),
                LmbState::Unplugged => {}
                other => panic!("an LMB of virtio-mem is {other:?}"),
            }
        }
        assert_eq!(next, BOOT_LMBS + WINDOW_LMBS);
        assert_eq!(listed, plugged);
        let operations = self.coordinator.operations();
        for (number, operation) in operations.iter().rev().enumerate() {
            let running = operation.state == OperationState::Running;
            assert!(!running || number == 0, "an old operation runs");
            if operation.state == OperationState::Done {
                assert_eq!(operation.plugged_bytes, operation.target_bytes);
            }
        }
    }
}

/// A worker that waits at the gate would never end.
impl Drop for Machine<'_> {
    fn drop(&mut self) {
        self.host.shut(false);
    }
}

/// A fault that a byte names, rarely the worse one.
#[must_use]
pub fn fault_of(byte: u8) -> Fault {
    if byte < 0x20 {
        Fault::Inconsistent
    } else {
        Fault::Undone
    }
}

fn wait_readable(event: &EventFd) {
    let context = PollContext::<u32>::new().expect("an epoll descriptor");
    context.add(event, 0).expect("the descriptor is polled");
    let ready = context
        .wait_timeout(std::time::Duration::from_secs(20))
        .expect("a wait");
    let count = ready.iter_readable().count();
    assert_eq!(count, 1, "no wake-up came on {}", event.as_raw_fd());
}
