//! The device against a driver in real guest memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};
use zerocopy::IntoBytes;

use super::wire::{STATE_MIXED, STATE_PLUGGED, STATE_UNPLUGGED, TYPE_ACK, TYPE_BUSY, TYPE_ERROR};
use super::wire::{TYPE_NACK, TYPE_PLUG};
use super::{MemConfig, MemCounters, MemFeatures, MemRequest, MemResponse, RangeState, VirtioMem};
use super::{QUEUE_SIZE, Ticket};
use crate::mmio::registers::*;
use crate::mmio::{Completion, DriverEvents};
use crate::testing::encode_request as encode;
use crate::testing::{Answer, Buffer, Counter, FeaturesRefused, MemDriver};

type Driver<'m> = MemDriver<'m, GuestMemoryMmap>;

const BASE: u64 = 0x4000;
const MEM_END: u64 = 0x2_0000;
const MEM_LEN: usize = 0x2_0000;
const MIB: u64 = 1 << 20;
const WITHOUT_EVENT_IDX: u64 = !(1 << 29);

const CONFIG: MemConfig = MemConfig {
    block_size: 256 * MIB,
    addr: 0x1_8000_0000,
    region_size: 16384 * MIB,
    usable_region_size: 16384 * MIB,
    plugged_size: 0,
    requested_size: 1024 * MIB,
};

const PLUG: MemRequest = MemRequest::Plug {
    addr: CONFIG.addr,
    nb_blocks: 4,
};

struct Rig {
    mem: GuestMemoryMmap,
    device: VirtioMem,
    line: Arc<Counter>,
    wake: Arc<Counter>,
}

impl Rig {
    fn new() -> Self {
        Self::with(MemFeatures { acpi_pxm: Some(3) })
    }

    fn with(features: MemFeatures) -> Self {
        let line = Arc::new(Counter::default());
        let wake = Arc::new(Counter::default());
        Self {
            mem: GuestMemoryMmap::from_ranges(&[(GuestAddress(0), MEM_LEN)]).unwrap(),
            device: VirtioMem::new(CONFIG, features, line.clone(), wake.clone()),
            line,
            wake,
        }
    }

    /// The parts, so that driver and owner can be used in turns.
    fn probed(&mut self) -> (Driver<'_>, Owner<'_>) {
        let driver = MemDriver::probe(self.device.bus_device(), &self.mem, BASE);
        let owner = Owner {
            mem: &self.mem,
            device: &mut self.device,
        };
        (driver, owner)
    }
}

struct Owner<'r> {
    mem: &'r GuestMemoryMmap,
    device: &'r mut VirtioMem,
}

impl Owner<'_> {
    fn next(&mut self) -> Option<(Ticket, MemRequest)> {
        self.device.next_request(self.mem)
    }

    fn answer(&mut self, ticket: Ticket, response: MemResponse) -> Completion {
        self.device.answer(self.mem, ticket, response)
    }

    fn malformed(&self) -> u64 {
        self.device.counters().malformed
    }
}

fn answer(head: u16, response_type: u16, state: u16) -> Option<Answer> {
    Some(Answer {
        head,
        written_bytes: 10,
        response_type: Some(response_type),
        state: Some(state),
    })
}

#[test]
fn linux_probes_it_and_reads_the_window() {
    let mut rig = Rig::new();
    let wake = rig.wake.clone();
    let (driver, owner) = rig.probed();
    assert_eq!(driver.config(), CONFIG);
    assert_eq!(driver.mmio.read(0x100 + 8), 3, "node and its padding");
    assert_eq!(driver.mmio.read(0x100 + 56), 0, "56 bytes and no more");
    assert!(owner.device.driver_active());
    let activated = DriverEvents {
        activated: true,
        ..DriverEvents::default()
    };
    assert_eq!(owner.device.take_events(), activated);
    assert_eq!(owner.device.take_events(), DriverEvents::default());
    assert_eq!(wake.take(), 1);
    assert_eq!(owner.device.counters(), MemCounters::default());
}

#[test]
fn the_proximity_domain_is_offered_only_if_there_is_one() {
    for acpi_pxm in [None, Some(0), Some(7)] {
        let mut rig = Rig::with(MemFeatures { acpi_pxm });
        let (driver, _) = rig.probed();
        let offered = driver.mmio.offered_features();
        assert_eq!(offered & 1, u64::from(acpi_pxm.is_some()));
        let node = u32::from(acpi_pxm.unwrap_or(0));
        assert_eq!(driver.mmio.read(0x108), node);
    }
}

#[test]
fn a_driver_that_would_read_unplugged_memory_is_refused() {
    let rig = Rig::new();
    for (without, features) in [
        ("UNPLUGGED_INACCESSIBLE", !(1 << 1)),
        ("VERSION_1", !(1 << 32)),
    ] {
        let bus = rig.device.bus_device();
        let refused = MemDriver::probe_with(bus, &rig.mem, BASE, features).err();
        assert_eq!(refused, Some(FeaturesRefused), "without {without}");
        assert!(!rig.device.driver_active());
    }
    let bus = rig.device.bus_device();
    let minimal = MemDriver::probe_with(bus, &rig.mem, BASE, (1 << 1) | (1 << 32));
    assert!(minimal.is_ok());
    assert!(rig.device.driver_active());
}

#[test]
fn all_requests_come_through_with_garbage_in_their_padding() {
    let (addr, nb_blocks) = (u64::MAX - 1, 0xffff);
    let mut rig = Rig::new();
    let line = rig.line.clone();
    let (mut driver, mut owner) = rig.probed();
    for (request, response, response_type, state) in [
        (PLUG, MemResponse::Ack, TYPE_ACK, 0),
        (
            MemRequest::Plug { addr, nb_blocks },
            MemResponse::Nack,
            TYPE_NACK,
            0,
        ),
        (
            MemRequest::Unplug { addr, nb_blocks: 0 },
            MemResponse::Busy,
            TYPE_BUSY,
            0,
        ),
        (MemRequest::UnplugAll, MemResponse::Error, TYPE_ERROR, 0),
        (
            MemRequest::State { addr: 0, nb_blocks },
            MemResponse::AckState(RangeState::Plugged),
            TYPE_ACK,
            STATE_PLUGGED,
        ),
        (
            MemRequest::State { addr, nb_blocks: 1 },
            MemResponse::AckState(RangeState::Unplugged),
            TYPE_ACK,
            STATE_UNPLUGGED,
        ),
        (
            MemRequest::State { addr: 7, nb_blocks },
            MemResponse::AckState(RangeState::Mixed),
            TYPE_ACK,
            STATE_MIXED,
        ),
    ] {
        let head = driver.queue_bytes(encode(request, 0xa5).as_bytes());
        assert!(driver.notify());
        let (ticket, got) = owner.next().expect("request is there");
        assert_eq!(got, request);
        assert!(owner.next().is_none());
        assert_eq!(driver.take_answer(), None, "nothing before the answer");
        assert_eq!(owner.answer(ticket, response), Completion::Delivered);
        assert_eq!(driver.take_answer(), answer(head, response_type, state));
        assert_eq!(line.take(), 1);
        assert_eq!(driver.mmio.handle_interrupt(), INTERRUPT_USED);
    }
    assert_eq!(owner.device.counters(), MemCounters::default());
}

#[test]
fn an_answer_writes_ten_bytes_and_leaves_the_rest() {
    let mut rig = Rig::new();
    let (mut driver, mut owner) = rig.probed();
    let slot = driver.slot(encode(PLUG, 0).as_bytes());
    driver.queue_chain(
        slot,
        &[Buffer::readable(slot, 24), Buffer::writable(slot + 32, 32)],
    );
    let (ticket, _) = owner.next().unwrap();
    let response = MemResponse::AckState(RangeState::Mixed);
    assert_eq!(owner.answer(ticket, response), Completion::Delivered);
    assert_eq!(driver.take_answer().unwrap().written_bytes, 10);
    let mut written = [0; 12];
    owner
        .mem
        .read_slice(&mut written, GuestAddress(slot + 32))
        .unwrap();
    assert_eq!(written, [0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0xee, 0xee]);
}

#[test]
fn requests_and_answers_may_be_split_anywhere() {
    let mut rig = Rig::new();
    let (mut driver, mut owner) = rig.probed();
    for (first, second) in [(1, 1), (9, 5), (8, 8), (17, 9), (23, 2)] {
        let slot = driver.slot(encode(PLUG, 0xff).as_bytes());
        let head = driver.queue_chain(
            slot,
            &[
                Buffer::readable(slot, first),
                // An empty descriptor is no fault.
                Buffer::readable(0xdead_beef_0000, 0),
                Buffer::readable(slot + u64::from(first), 24 - first),
                Buffer::writable(slot + 32, second),
                Buffer::writable(slot + 32 + u64::from(second), 10 - second),
                Buffer::writable(0xdead_beef_0000, 100),
            ],
        );
        let (ticket, request) = owner.next().expect("split request");
        assert_eq!(request, PLUG);
        assert_eq!(
            owner.answer(ticket, MemResponse::Nack),
            Completion::Delivered
        );
        assert_eq!(driver.take_answer(), answer(head, TYPE_NACK, 0));
    }
    assert_eq!(owner.malformed(), 0);
}

/// What a malformed chain gets back.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Back {
    Error,
    Empty,
}

/// A malformed chain: what is wrong, its buffers in terms of its slot, and what
/// it gets back.
type Malformed = (&'static str, fn(u64) -> Vec<Buffer>, Back);

const MALFORMED: &[Malformed] = &[
    (
        "truncated",
        |s| vec![Buffer::readable(s, 23), Buffer::writable(s + 32, 10)],
        Back::Error,
    ),
    (
        "no request",
        |s| vec![Buffer::writable(s + 32, 10)],
        Back::Error,
    ),
    (
        "no response",
        |s| vec![Buffer::readable(s, 24)],
        Back::Empty,
    ),
    (
        "no room",
        |s| vec![Buffer::readable(s, 24), Buffer::writable(s + 32, 9)],
        Back::Empty,
    ),
    (
        "no room in pieces",
        |s| {
            vec![
                Buffer::readable(s, 24),
                Buffer::writable(s + 32, 4),
                Buffer::writable(s + 40, 5),
            ]
        },
        Back::Empty,
    ),
    (
        "response before request",
        |s| vec![Buffer::writable(s + 32, 10), Buffer::readable(s, 24)],
        Back::Error,
    ),
    (
        "request outside",
        |s| vec![Buffer::readable(MEM_END, 24), Buffer::writable(s + 32, 10)],
        Back::Error,
    ),
    (
        "request half outside",
        |s| {
            vec![
                Buffer::readable(MEM_END - 12, 24),
                Buffer::writable(s + 32, 10),
            ]
        },
        Back::Error,
    ),
    (
        "request wraps",
        |s| {
            vec![
                Buffer::readable(u64::MAX - 3, 24),
                Buffer::writable(s + 32, 10),
            ]
        },
        Back::Error,
    ),
    (
        "response outside",
        |s| vec![Buffer::readable(s, 24), Buffer::writable(MEM_END, 10)],
        Back::Empty,
    ),
    (
        "response half outside",
        |s| vec![Buffer::readable(s, 24), Buffer::writable(MEM_END - 5, 10)],
        Back::Empty,
    ),
    (
        "response wraps",
        |s| vec![Buffer::readable(s, 24), Buffer::writable(u64::MAX, 10)],
        Back::Empty,
    ),
    (
        "more than 4 GiB in all",
        |s| {
            vec![
                Buffer::writable(s + 32, 10),
                Buffer::writable(s, u32::MAX),
                Buffer::writable(s, u32::MAX),
            ]
        },
        Back::Error,
    ),
];

fn assert_refused(driver: &mut Driver<'_>, head: u16, back: Back, what: &str) {
    let expected = match back {
        Back::Error => answer(head, TYPE_ERROR, 0),
        Back::Empty => Some(Answer {
            head,
            written_bytes: 0,
            response_type: None,
            state: None,
        }),
    };
    assert_eq!(driver.take_answer(), expected, "{what}");
}

/// Each malformed form stands second in a batch of three: the first and third
/// are served as if it were not there, without another notification.
#[test]
fn a_malformed_chain_is_answered_and_the_batch_goes_on() {
    for (what, chain, back) in MALFORMED {
        let mut rig = Rig::new();
        let (mut driver, mut owner) = rig.probed();
        let first = driver.queue(PLUG);
        let slot = driver.slot(encode(PLUG, 0).as_bytes());
        let bad = driver.queue_chain(slot, &chain(slot));
        let third = driver.queue(MemRequest::UnplugAll);
        driver.notify();

        let (ticket, request) = owner.next().unwrap();
        assert_eq!(request, PLUG, "{what}");
        owner.answer(ticket, MemResponse::Ack);
        let (ticket, request) = owner.next().unwrap();
        assert_eq!(request, MemRequest::UnplugAll, "{what}");
        owner.answer(ticket, MemResponse::Busy);
        assert!(owner.next().is_none(), "{what}");

        assert_eq!(driver.take_answer(), answer(first, TYPE_ACK, 0), "{what}");
        assert_refused(&mut driver, bad, *back, what);
        assert_eq!(driver.take_answer(), answer(third, TYPE_BUSY, 0), "{what}");
        assert_eq!(owner.malformed(), 1, "{what}");
        assert!(owner.device.driver_active(), "{what}");
    }
}

#[test]
fn unknown_request_types_are_errors() {
    let mut rig = Rig::new();
    let (mut driver, mut owner) = rig.probed();
    for (n, request_type) in (1..).zip([4_u16, 0x100, 0xffff]) {
        let mut bytes = [0; 24];
        bytes[..2].copy_from_slice(&request_type.to_le_bytes());
        let head = driver.queue_bytes(&bytes);
        assert!(owner.next().is_none());
        assert_eq!(driver.take_answer(), answer(head, TYPE_ERROR, 0));
        assert_eq!(owner.malformed(), n);
    }
}

/// Chains that do not end: with room for an answer before the fault, ERROR.
#[test]
fn chains_that_do_not_end_are_refused() {
    for (what, next) in [
        ("self loop", 11),
        ("loop over all", 10),
        ("past the table", QUEUE_SIZE),
        ("far past the table", 0xffff),
    ] {
        let mut rig = Rig::new();
        let (mut driver, mut owner) = rig.probed();
        let slot = driver.slot(encode(PLUG, 0).as_bytes());
        let request = Buffer::readable(slot, 24);
        let response = Buffer::writable(slot + 32, 10);
        driver.ring.write_descriptor(10, request, Some(11));
        driver.ring.write_descriptor(11, response, Some(next));
        driver.ring.make_available(10);
        driver.expect_response(10, slot);
        assert!(owner.next().is_none(), "{what}");
        assert_refused(&mut driver, 10, Back::Error, what);
        assert_eq!(owner.malformed(), 1, "{what}");

        // Without any room.
        driver.ring.write_descriptor(12, request, Some(12));
        driver.ring.make_available(12);
        driver.expect_response(12, slot);
        assert!(owner.next().is_none(), "{what}");
        assert_refused(&mut driver, 12, Back::Empty, what);

        let head = driver.send(PLUG);
        let (ticket, _) = owner.next().expect("device goes on");
        owner.answer(ticket, MemResponse::Ack);
        assert_eq!(driver.take_answer(), answer(head, TYPE_ACK, 0), "{what}");
    }
}

/// A whole request behind an indirect descriptor is none, since no driver may
/// send one; with room for an answer before it, ERROR.
#[test]
fn indirect_descriptors_are_refused_and_not_followed() {
    let mut rig = Rig::new();
    let (mut driver, mut owner) = rig.probed();
    let slot = driver.slot(encode(PLUG, 0).as_bytes());
    let table_at = driver.slot(&[]);
    let request = Buffer::readable(slot, 24);
    let response = Buffer::writable(slot + 32, 10);
    driver
        .ring
        .write_indirect(10, &[request, response], table_at);
    driver.ring.make_available(10);
    driver.expect_response(10, slot);
    assert!(owner.next().is_none(), "not followed");
    assert_refused(&mut driver, 10, Back::Empty, "nothing else");

    driver.ring.write_descriptor(11, request, Some(12));
    driver.ring.write_descriptor(12, response, Some(10));
    driver.ring.make_available(11);
    driver.expect_response(11, slot);
    assert!(owner.next().is_none(), "not followed at the end either");
    assert_refused(&mut driver, 11, Back::Error, "after a response");
    assert_eq!(owner.malformed(), 2);

    let head = driver.send(PLUG);
    let (ticket, _) = owner.next().expect("device goes on");
    owner.answer(ticket, MemResponse::Ack);
    assert_eq!(driver.take_answer(), answer(head, TYPE_ACK, 0));
}

#[test]
fn a_full_queue_of_malformed_chains_is_bounded_work() {
    let mut rig = Rig::new();
    let wake = rig.wake.clone();
    let (mut driver, mut owner) = rig.probed();
    for _ in 0..QUEUE_SIZE {
        let slot = driver.slot(&[]);
        driver.queue_chain(slot, &[Buffer::readable(slot, 1)]);
    }
    wake.take();
    assert!(owner.next().is_none());
    assert_eq!(owner.malformed(), u64::from(QUEUE_SIZE));
    assert_eq!(wake.take(), 1, "the owner comes back by itself");
    assert!(owner.next().is_none());
    assert_eq!(wake.take(), 0);
    let mut used = 0;
    while driver.take_answer().is_some() {
        used += 1;
    }
    assert_eq!(used, QUEUE_SIZE);
    driver.send(PLUG);
    assert_eq!(wake.take(), 1);
    assert!(owner.next().is_some());
}

#[test]
fn an_answer_to_a_device_that_was_reset_is_dropped() {
    let mut rig = Rig::new();
    let line = rig.line.clone();
    let (mut driver, mut owner) = rig.probed();
    driver.send(PLUG);
    let (ticket, _) = owner.next().unwrap();
    let _ = owner.device.take_events();
    assert!(owner.device.awaits(&ticket));
    driver.mmio.write(STATUS, 0);
    assert!(!owner.device.awaits(&ticket));

    let mut before = vec![0; MEM_LEN];
    owner.mem.read_slice(&mut before, GuestAddress(0)).unwrap();
    assert_eq!(owner.answer(ticket, MemResponse::Ack), Completion::Stale);
    let mut after = vec![0; MEM_LEN];
    owner.mem.read_slice(&mut after, GuestAddress(0)).unwrap();
    assert!(before == after, "guest memory was touched after the reset");

    assert_eq!(line.take(), 0);
    assert!(!owner.device.driver_active());
    assert!(owner.next().is_none());
    let reset = DriverEvents {
        reset: true,
        ..DriverEvents::default()
    };
    assert_eq!(owner.device.take_events(), reset);
    assert_eq!(owner.device.counters().transport.stale_completions, 1);
}

#[test]
fn a_new_driver_in_the_same_memory_never_sees_the_old_ones_answer() {
    let mut rig = Rig::new();
    let plugged = MemConfig {
        plugged_size: 512 * MIB,
        ..CONFIG
    };
    rig.device.publish(plugged);
    let (mut driver, mut owner) = rig.probed();
    driver.send(PLUG);
    let (old, _) = owner.next().unwrap();

    let bus = owner.device.bus_device();
    let mut driver = MemDriver::probe(bus, owner.mem, BASE);
    assert_eq!(driver.config(), plugged, "a device reset unplugs nothing");
    let head = driver.send(MemRequest::UnplugAll);
    let (ticket, request) = owner.next().unwrap();
    assert_eq!(request, MemRequest::UnplugAll);
    assert_eq!(owner.answer(old, MemResponse::Ack), Completion::Stale);
    assert_eq!(driver.take_answer(), None);
    assert_eq!(
        owner.answer(ticket, MemResponse::Busy),
        Completion::Delivered
    );
    assert_eq!(driver.take_answer(), answer(head, TYPE_BUSY, 0));
    assert_eq!(driver.take_answer(), None);
}

/// A vCPU thread that probes, asks, and resets before the answer, over and
/// over, while the owner answers as fast as it can: nothing is ever used in a
/// ring made after a reset.
#[test]
fn resets_race_with_answers_and_win() {
    let mut rig = Rig::new();
    let bus = rig.device.bus_device();
    let done = AtomicBool::new(false);
    let (mem, device) = (&rig.mem, &mut rig.device);
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..500 {
                let mut driver = MemDriver::probe(bus.clone(), mem, BASE);
                assert_eq!(driver.ring.used_index(), 0);
                driver.send(PLUG);
                thread::yield_now();
                driver.mmio.write(STATUS, 0);
            }
            done.store(true, Ordering::Release);
        });
        let mut owner = Owner { mem, device };
        while !done.load(Ordering::Acquire) {
            if let Some((ticket, request)) = owner.next() {
                assert_eq!(request, PLUG);
                thread::yield_now();
                owner.answer(ticket, MemResponse::Ack);
            }
            thread::yield_now();
        }
    });
    let (mut driver, mut owner) = rig.probed();
    assert_eq!(driver.ring.used_index(), 0);
    let head = driver.send(PLUG);
    let (ticket, _) = owner.next().unwrap();
    owner.answer(ticket, MemResponse::Ack);
    assert_eq!(driver.take_answer(), answer(head, TYPE_ACK, 0));
    assert_eq!(owner.malformed(), 0);
}

#[test]
fn the_generation_changes_with_the_configuration_only() {
    let mut rig = Rig::new();
    let (driver, owner) = rig.probed();
    let before = driver.mmio.read(CONFIG_GENERATION);
    owner.device.publish(CONFIG);
    assert_eq!(driver.mmio.read(CONFIG_GENERATION), before);
    owner.device.publish(MemConfig {
        plugged_size: 256 * MIB,
        ..CONFIG
    });
    assert_ne!(driver.mmio.read(CONFIG_GENERATION), before);
    assert_eq!(driver.config().plugged_size, 256 * MIB);
}

/// Values whose halves are equal are published while a driver reads them in
/// two words: by its generation check it never sees halves of two values.
#[test]
fn multi_word_reads_see_one_snapshot() {
    let rig = Rig::new();
    let driver = crate::testing::MmioDriver::new(rig.device.bus_device());
    let halves_equal = |n: u64| MemConfig {
        requested_size: (n << 32) | n,
        ..CONFIG
    };
    rig.device.publish(halves_equal(0));
    let done = AtomicBool::new(false);
    let (reads, torn) = thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let (mut reads, mut torn) = (0_u32, 0_u32);
            loop {
                let value = driver.config_u64(48);
                reads += 1;
                torn += u32::from(value >> 32 != value & 0xffff_ffff);
                if done.load(Ordering::Acquire) {
                    return (reads, torn);
                }
            }
        });
        for n in 0..20_000_u64 {
            rig.device.publish(halves_equal(n));
        }
        done.store(true, Ordering::Release);
        reader.join().unwrap()
    });
    assert_eq!(torn, 0, "of {reads}");
    assert_eq!(driver.config_u64(48), (19_999 << 32) | 19_999);
}

#[test]
fn a_word_read_before_and_one_after_a_change_are_told_apart() {
    let mut rig = Rig::new();
    let (driver, owner) = rig.probed();
    let before = driver.mmio.read(CONFIG_GENERATION);
    let low = driver.mmio.read(0x130);
    owner.device.publish(MemConfig {
        requested_size: 8 << 30,
        ..CONFIG
    });
    let high = driver.mmio.read(0x134);
    assert_eq!((low, high), (1 << 30, 2), "torn, as a driver may find it");
    assert_ne!(driver.mmio.read(CONFIG_GENERATION), before, "and can tell");
}

#[test]
fn configuration_interrupts_reach_whoever_needs_them() {
    let mut rig = Rig::new();
    let line = rig.line.clone();
    // Without a driver there is nobody to tell.
    rig.device.config_interrupt();
    assert_eq!(line.take(), 0);
    let (driver, owner) = rig.probed();
    assert_eq!(line.take(), 0);
    owner.device.config_interrupt();
    assert_eq!(line.take(), 1);
    assert_eq!(driver.mmio.handle_interrupt(), INTERRUPT_CONFIG);
    assert_eq!(driver.mmio.read(INTERRUPT_STATUS), 0);

    // A driver on its way is told when it is there.
    driver.mmio.begin(super::DEVICE_ID);
    owner.device.config_interrupt();
    let features = driver.mmio.offered_features();
    assert_eq!(driver.mmio.accept_features(features), Ok(()));
    assert_eq!(line.take(), 0, "none before DRIVER_OK");
    driver.mmio.add_status(STATUS_DRIVER_OK);
    assert_eq!(line.take(), 1);
    assert_eq!(driver.mmio.handle_interrupt(), INTERRUPT_CONFIG);
}

#[test]
fn event_indices_suppress_interrupts() {
    let mut rig = Rig::new();
    let line = rig.line.clone();
    let (mut driver, mut owner) = rig.probed();
    let mut serve = |driver: &mut Driver<'_>| {
        driver.queue(PLUG);
        let (ticket, _) = owner.next().unwrap();
        owner.answer(ticket, MemResponse::Ack);
        line.take()
    };
    driver.ring.set_interrupts(false);
    // Interrupt at the third used chain (index 2), not before and not after.
    driver.ring.set_used_event(2);
    let interrupts: Vec<u64> = (0..5).map(|_| serve(&mut driver)).collect();
    assert_eq!(interrupts, [0, 0, 1, 0, 0]);
    assert_eq!(driver.mmio.handle_interrupt(), INTERRUPT_USED);
}

#[test]
fn the_no_interrupt_flag_is_respected_without_event_indices() {
    let mut rig = Rig::new();
    let bus = rig.device.bus_device();
    let mut driver = MemDriver::probe_with(bus, &rig.mem, BASE, WITHOUT_EVENT_IDX).unwrap();
    let mut interrupts = Vec::new();
    for wanted in [true, false, false, true] {
        driver.ring.set_interrupts(wanted);
        driver.send(PLUG);
        let (ticket, _) = rig.device.next_request(&rig.mem).unwrap();
        rig.device.answer(&rig.mem, ticket, MemResponse::Ack);
        assert!(driver.take_answer().is_some());
        interrupts.push(rig.line.take());
        let expected = if wanted { INTERRUPT_USED } else { 0 };
        assert_eq!(driver.mmio.handle_interrupt(), expected);
    }
    assert_eq!(interrupts, [1, 0, 0, 1]);
}

/// With and without event indices: after the owner saw an empty queue, the next
/// request notifies; one queued while another is out is found at the next look.
#[test]
fn no_notification_is_lost() {
    for features in [u64::MAX, WITHOUT_EVENT_IDX] {
        let mut rig = Rig::new();
        let bus = rig.device.bus_device();
        let mut driver = MemDriver::probe_with(bus, &rig.mem, BASE, features).unwrap();
        let mut owner = Owner {
            mem: &rig.mem,
            device: &mut rig.device,
        };
        for round in 0..300 {
            rig.wake.take();
            driver.send(PLUG);
            assert_eq!(rig.wake.take(), 1, "round {round}");
            let (first, _) = owner.next().unwrap();
            driver.send(MemRequest::UnplugAll);
            owner.answer(first, MemResponse::Ack);
            let (second, request) = owner.next().expect("found without a notification");
            assert_eq!(request, MemRequest::UnplugAll);
            owner.answer(second, MemResponse::Ack);
            assert!(owner.next().is_none());
            assert!(driver.take_answer().is_some());
            assert!(driver.take_answer().is_some());
        }
    }
}

#[test]
fn answers_may_come_in_any_order() {
    let mut rig = Rig::new();
    let (mut driver, mut owner) = rig.probed();
    let one = driver.queue(PLUG);
    let two = driver.queue(MemRequest::UnplugAll);
    let (first, _) = owner.next().unwrap();
    let (second, _) = owner.next().unwrap();
    owner.answer(second, MemResponse::Busy);
    owner.answer(first, MemResponse::Ack);
    assert_eq!(driver.take_answer(), answer(two, TYPE_BUSY, 0));
    assert_eq!(driver.take_answer(), answer(one, TYPE_ACK, 0));
}

#[test]
fn drivers_cannot_write_the_configuration() {
    let mut rig = Rig::new();
    let (driver, owner) = rig.probed();
    for offset in (0x100..0x138).step_by(4) {
        driver.mmio.write(offset, u32::MAX);
    }
    assert_eq!(driver.config(), CONFIG);
    assert_eq!(owner.device.counters().transport.ignored_accesses, 14);
}

#[test]
fn the_wire_format_is_the_specifications() {
    let plug = MemRequest::Plug {
        addr: 0x1122_3344_5566_7788,
        nb_blocks: 0xaabb,
    };
    let expected = [
        0, 0, 0, 0, 0, 0, 0, 0, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0xbb, 0xaa, 0, 0,
        0, 0, 0, 0,
    ];
    assert_eq!(encode(plug, 0).as_bytes(), expected);
    assert_eq!(encode(plug, 0).decode(), Some(plug));
    assert_eq!(TYPE_PLUG, 0);
}
