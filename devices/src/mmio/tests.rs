//! The transport's registers, without a device type on top.

use std::sync::Arc;

use proptest::prelude::*;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use super::registers::*;
use super::{Completion, DriverEvents, MmioTransport, TransportConfig};
use crate::bus::BusDevice;
use crate::testing::{Buffer, Counter, FeaturesRefused, MmioDriver, Ring};

const DEVICE_TYPE: u32 = 42;
const FEATURE_OPTIONAL: u64 = 1 << 3;
const FEATURE_REQUIRED: u64 = 1 << 5;
const VERSION_1: u64 = 1 << 32;
const EVENT_IDX: u64 = 1 << 29;
const RING_BASE: u64 = 0x1000;
const QUEUE_MAX: u16 = 128;
/// First address past the lower region, and in the hole.
const HOLE: u64 = 0x10000;

struct Rig {
    mem: GuestMemoryMmap,
    transport: Arc<MmioTransport>,
    driver: MmioDriver,
    line: Arc<Counter>,
    wake: Arc<Counter>,
}

impl Rig {
    fn new() -> Self {
        let line = Arc::new(Counter::default());
        let wake = Arc::new(Counter::default());
        let config = TransportConfig {
            device_id: DEVICE_TYPE,
            features: FEATURE_OPTIONAL,
            required_features: FEATURE_REQUIRED,
            queue_sizes: vec![QUEUE_MAX],
            config_space: (1..=10).collect(),
        };
        let transport = Arc::new(MmioTransport::new(&config, line.clone(), wake.clone()));
        Self {
            mem: memory(),
            driver: MmioDriver::new(transport.clone()),
            transport,
            line,
            wake,
        }
    }

    fn negotiate(&self) {
        self.driver.begin(DEVICE_TYPE);
        let offered = self.driver.offered_features();
        assert_eq!(self.driver.accept_features(offered), Ok(()));
    }

    fn activate(&self) -> Ring<'_, GuestMemoryMmap> {
        self.negotiate();
        let ring = Ring::new(&self.mem, RING_BASE, QUEUE_MAX, true);
        assert!(self.driver.set_up_queue(0, &ring));
        self.driver.add_status(STATUS_DRIVER_OK);
        ring
    }

    fn ignored(&self) -> u64 {
        self.transport.counters().ignored_accesses
    }

    /// A driver that behaves gets a buffer through.
    fn assert_works(&self) {
        let mut ring = self.activate();
        assert!(self.transport.driver_active());
        ring.add_chain(&[Buffer::writable(0x8000, 4)]);
        let popped = self.transport.pop(0, &self.mem).expect("chain is there");
        let completion = self.transport.complete(&self.mem, popped, b"done");
        assert_eq!(completion, Completion::Delivered);
        assert_eq!(ring.take_used(), Some((0, 4)));
        let mut data = [0; 4];
        self.mem
            .read_slice(&mut data, GuestAddress(0x8000))
            .unwrap();
        assert_eq!(&data, b"done");
    }
}

fn memory() -> GuestMemoryMmap {
    GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 0x10000), (GuestAddress(0x20000), 0x10000)])
        .unwrap()
}

fn content(mem: &GuestMemoryMmap) -> Vec<u8> {
    let mut all = vec![0; 0x20000];
    let (low, high) = all.split_at_mut(0x10000);
    mem.read_slice(low, GuestAddress(0)).unwrap();
    mem.read_slice(high, GuestAddress(0x20000)).unwrap();
    all
}

#[test]
fn identifies_itself() {
    let rig = Rig::new();
    assert_eq!(rig.driver.read(MAGIC_VALUE), 0x7472_6976);
    assert_eq!(rig.driver.read(VERSION), 2);
    assert_eq!(rig.driver.read(DEVICE_ID), DEVICE_TYPE);
    assert_eq!(rig.driver.read(VENDOR_ID).to_le_bytes(), *b"LMBV");
    let all = VERSION_1 | EVENT_IDX | FEATURE_OPTIONAL | FEATURE_REQUIRED;
    assert_eq!(rig.driver.offered_features(), all);
    rig.driver.write(DEVICE_FEATURES_SEL, 2);
    assert_eq!(rig.driver.read(DEVICE_FEATURES), 0);
    for register in [SHM_LEN_LOW, SHM_LEN_HIGH, SHM_BASE_LOW, SHM_BASE_HIGH] {
        rig.driver.write(SHM_SEL, 0);
        assert_eq!(rig.driver.read(register), u32::MAX);
    }
    assert_eq!(rig.ignored(), 0);
}

#[test]
fn a_well_behaved_driver_is_served_and_nothing_is_counted() {
    let rig = Rig::new();
    rig.assert_works();
    rig.assert_works();
    // Taking a queue down after a reset, as Linux does at remove.
    rig.driver.write(STATUS, 0);
    rig.driver.write(QUEUE_SEL, 0);
    rig.driver.write(QUEUE_READY, 0);
    assert_eq!(rig.transport.counters(), Default::default());
}

#[test]
fn status_bits_are_taken_in_order_only() {
    let rig = Rig::new();
    let (ack, driver) = (STATUS_ACKNOWLEDGE, STATUS_DRIVER);
    for wrong in [
        STATUS_DRIVER,
        STATUS_FEATURES_OK,
        STATUS_DRIVER_OK,
        STATUS_NEEDS_RESET,
        1 << 4,
        0xffff_ff00 | ack,
    ] {
        rig.driver.write(STATUS, 0);
        let before = rig.ignored();
        rig.driver.write(STATUS, wrong);
        assert_eq!(rig.driver.read(STATUS), 0, "status {wrong:#x}");
        assert_eq!(rig.ignored(), before + 1, "status {wrong:#x}");
    }
    rig.driver.write(STATUS, ack | driver);
    assert_eq!(
        rig.driver.read(STATUS),
        ack | driver,
        "both at once is legal"
    );
    rig.driver.write(STATUS, ack);
    assert_eq!(rig.driver.read(STATUS), ack | driver, "no bit goes back");
    rig.driver.add_status(STATUS_DRIVER_OK);
    assert_eq!(rig.driver.read(STATUS), ack | driver, "features come first");
    rig.driver.add_status(STATUS_FAILED);
    assert_eq!(rig.driver.read(STATUS), ack | driver | STATUS_FAILED);
    rig.driver.add_status(STATUS_FEATURES_OK);
    assert_eq!(rig.driver.read(STATUS), ack | driver | STATUS_FAILED);
    assert!(rig.transport.take_events().failed);
}

#[test]
fn features_are_refused_unless_required_ones_are_accepted_and_no_other() {
    let required = VERSION_1 | FEATURE_REQUIRED;
    for (features, expected) in [
        (required, Ok(())),
        (required | FEATURE_OPTIONAL | EVENT_IDX, Ok(())),
        (VERSION_1, Err(FeaturesRefused)),
        (FEATURE_REQUIRED, Err(FeaturesRefused)),
        (0, Err(FeaturesRefused)),
        (required | 1 << 4, Err(FeaturesRefused)),
        (required | 1 << 63, Err(FeaturesRefused)),
    ] {
        let rig = Rig::new();
        rig.driver.begin(DEVICE_TYPE);
        let accepted = rig.driver.accept_features(features);
        assert_eq!(accepted, expected, "features {features:#x}");
        let refused = rig.transport.counters().refused_features;
        assert_eq!(refused, u64::from(expected.is_err()));
        rig.driver.add_status(STATUS_DRIVER_OK);
        let live = rig.driver.read(STATUS) & STATUS_DRIVER_OK != 0;
        assert_eq!(live, expected.is_ok(), "features {features:#x}");
        rig.assert_works();
    }
}

#[test]
fn features_and_queues_stay_as_they_were_outside_of_their_phase() {
    let rig = Rig::new();
    rig.driver.write(DRIVER_FEATURES, 1);
    assert_eq!(rig.ignored(), 1, "features before DRIVER");
    rig.driver.begin(DEVICE_TYPE);
    rig.driver.write(QUEUE_NUM, 4);
    rig.driver.write(QUEUE_READY, 1);
    assert_eq!(rig.ignored(), 3, "queue before FEATURES_OK");
    assert_eq!(rig.driver.read(QUEUE_READY), 0);

    let _ring = rig.activate();
    let before = rig.ignored();
    rig.driver.write(DRIVER_FEATURES, 0);
    rig.driver.write(QUEUE_NUM, 4);
    rig.driver.write(QUEUE_DESC_LOW, 0xdead_0000);
    rig.driver.write(QUEUE_READY, 1);
    assert_eq!(rig.ignored(), before + 4);
    assert!(rig.transport.pop(0, &rig.mem).is_none());
    assert!(rig.transport.driver_active(), "the live queue is untouched");
}

#[test]
fn queue_sizes_are_judged_in_full() {
    for (size, expected) in [
        (1, 1),
        (64, 1),
        (128, 1),
        (0, 0),
        (3, 0),
        (256, 0),
        // Would be legal if only its low half counted.
        (0x1_0080, 0),
        (u32::MAX, 0),
    ] {
        let rig = Rig::new();
        rig.negotiate();
        rig.driver.write(QUEUE_NUM, size);
        rig.driver.write(QUEUE_DESC_LOW, 0x1000);
        rig.driver.write(QUEUE_DRIVER_LOW, 0x2000);
        rig.driver.write(QUEUE_DEVICE_LOW, 0x3000);
        rig.driver.write(QUEUE_READY, 1);
        assert_eq!(rig.driver.read(QUEUE_READY), expected, "size {size}");
    }
}

#[test]
fn a_queue_that_does_not_exist_is_size_zero_and_deaf() {
    let rig = Rig::new();
    rig.negotiate();
    for queue in [1, 2, u32::MAX] {
        rig.driver.write(QUEUE_SEL, queue);
        assert_eq!(rig.driver.read(QUEUE_NUM_MAX), 0);
        let before = rig.ignored();
        rig.driver.write(QUEUE_NUM, 1);
        rig.driver.write(QUEUE_READY, 1);
        rig.driver.write(QUEUE_READY, 0);
        assert_eq!(rig.ignored(), before + 3);
        assert_eq!(rig.driver.read(QUEUE_READY), 0);
    }
}

#[test]
fn notifications_wake_the_owner_only_when_live() {
    let rig = Rig::new();
    rig.negotiate();
    assert_eq!(rig.wake.take(), 0);
    rig.driver.notify(0);
    assert_eq!(rig.wake.take(), 0);
    let _ring = rig.activate();
    // The reset and the activation.
    assert_eq!(rig.wake.take(), 2);
    rig.driver.notify(0);
    assert_eq!(rig.wake.take(), 1);
    rig.driver.notify(1);
    assert_eq!(rig.wake.take(), 0);
    assert_eq!(rig.ignored(), 2);
}

#[test]
fn wrong_widths_and_registers_read_zero_and_change_nothing() {
    let rig = Rig::new();
    for (offset, width) in [(0, 1), (0, 2), (0, 8), (2, 4), (0, 0), (0x0f0, 4), (1, 3)] {
        let before = rig.ignored();
        let mut data = vec![0xaa; width];
        rig.transport.read(offset, &mut data);
        assert!(data.iter().all(|b| *b == 0), "{offset:#x}, {width}");
        rig.transport.write(offset, &vec![0xff; width]);
        assert_eq!(rig.ignored(), before + 2, "{offset:#x}, {width}");
    }
    rig.transport.write(STATUS, &[1]);
    rig.transport.write(STATUS, &[1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(rig.driver.read(STATUS), 0);
    rig.transport.write(u64::MAX, &[1, 0, 0, 0]);
    rig.assert_works();
}

#[test]
fn configuration_is_read_in_any_legal_width_and_ends_in_zeros() {
    let rig = Rig::new();
    for (at, expected) in [
        (0, &[1_u8][..]),
        (3, &[4, 5]),
        (2, &[3, 4, 5, 6]),
        (1, &[2, 3, 4, 5, 6, 7, 8, 9]),
        (8, &[9, 10, 0, 0]),
        (10, &[0, 0]),
        (0xf8, &[0, 0, 0, 0, 0, 0, 0, 0]),
        (u64::MAX - CONFIG, &[0]),
    ] {
        let mut data = vec![0xaa; expected.len()];
        rig.transport.read(CONFIG + at, &mut data);
        assert_eq!(data, expected, "at {at:#x}");
    }
    assert_eq!(rig.ignored(), 0);
    let mut three = [0xaa; 3];
    rig.transport.read(CONFIG, &mut three);
    assert_eq!(three, [0; 3]);
    rig.transport.write(CONFIG, &[9]);
    rig.transport.write(CONFIG, &[9; 4]);
    assert_eq!(rig.ignored(), 3);
    assert_eq!(rig.driver.read(CONFIG), u32::from_le_bytes([1, 2, 3, 4]));
}

#[test]
fn interrupt_causes_stay_until_acknowledged_one_by_one() {
    let rig = Rig::new();
    let mut ring = rig.activate();
    ring.add_chain(&[Buffer::writable(0x8000, 4)]);
    let popped = rig.transport.pop(0, &rig.mem).unwrap();
    rig.transport.complete(&rig.mem, popped, b"done");
    rig.transport.announce_config();
    assert_eq!(rig.line.take(), 2);
    let both = INTERRUPT_USED | INTERRUPT_CONFIG;
    assert_eq!(rig.driver.read(INTERRUPT_STATUS), both);
    rig.driver.write(INTERRUPT_ACK, INTERRUPT_USED);
    assert_eq!(rig.driver.read(INTERRUPT_STATUS), INTERRUPT_CONFIG);
    rig.driver.write(INTERRUPT_ACK, u32::MAX);
    assert_eq!(rig.driver.read(INTERRUPT_STATUS), 0);
    rig.transport.announce_config();
    rig.driver.write(STATUS, 0);
    assert_eq!(
        rig.driver.read(INTERRUPT_STATUS),
        0,
        "a reset clears causes"
    );
}

#[test]
fn events_tell_the_newest_driver() {
    let rig = Rig::new();
    assert!(!rig.transport.take_events().any());
    rig.driver.write(STATUS, 0);
    assert!(
        !rig.transport.take_events().any(),
        "nothing was there to reset"
    );
    let activated = DriverEvents {
        activated: true,
        ..DriverEvents::default()
    };
    let _ring = rig.activate();
    assert_eq!(rig.transport.take_events(), activated);
    rig.driver.write(STATUS, 0);
    let reset = DriverEvents {
        reset: true,
        ..DriverEvents::default()
    };
    assert_eq!(rig.transport.take_events(), reset);
    let _ring = rig.activate();
    let _ring = rig.activate();
    let both = DriverEvents {
        reset: true,
        activated: true,
        ..DriverEvents::default()
    };
    assert_eq!(rig.transport.take_events(), both);
}

/// Each address register, with each kind of bad address: the queue is refused,
/// or breaks at the owner's first look; either way nothing is written to guest
/// memory, and the device can be reset and used.
#[test]
fn hostile_ring_addresses_are_never_used() {
    let good = [0x1000_u64, 0x2000, 0x3000];
    let bad = [
        HOLE,
        HOLE - 16,
        HOLE - 256,
        0x3_0000,
        0x3_0000 - 16,
        1 << 32,
        1 << 63,
        u64::MAX,
        !0xf,
        !0x1f,
        0x1001,
        0x8000_0000_0000_0001,
    ];
    let registers = [
        (QUEUE_DESC_LOW, QUEUE_DESC_HIGH),
        (QUEUE_DRIVER_LOW, QUEUE_DRIVER_HIGH),
        (QUEUE_DEVICE_LOW, QUEUE_DEVICE_HIGH),
    ];
    let mut refused = 0;
    let mut broken = 0;
    for hit in 0..3 {
        for address in bad {
            let rig = Rig::new();
            rig.negotiate();
            let before = content(&rig.mem);
            for (n, (low, high)) in registers.into_iter().enumerate() {
                let address = if n == hit { address } else { good[n] };
                rig.driver.write(low, (address & 0xffff_ffff) as u32);
                rig.driver.write(high, (address >> 32) as u32);
            }
            rig.driver.write(QUEUE_NUM, 128);
            rig.driver.write(QUEUE_READY, 1);
            let ready = rig.driver.read(QUEUE_READY) == 1;
            rig.driver.add_status(STATUS_DRIVER_OK);
            rig.driver.notify(0);
            let popped = rig.transport.pop(0, &rig.mem);
            assert_eq!(popped, None, "area {hit}, {address:#x}");
            let needs_reset = rig.driver.read(STATUS) & STATUS_NEEDS_RESET != 0;
            assert_eq!(needs_reset, ready, "area {hit}, {address:#x}");
            assert_eq!(content(&rig.mem), before, "area {hit}, {address:#x}");
            refused += u32::from(!ready);
            broken += u32::from(ready);
            rig.assert_works();
        }
    }
    assert!(refused >= 6 && broken >= 20, "{refused} {broken}");
}

fn assert_broken(rig: &Rig) {
    assert!(rig.transport.pop(0, &rig.mem).is_none());
    assert!(rig.driver.read(STATUS) & STATUS_NEEDS_RESET != 0);
    assert_eq!(rig.driver.handle_interrupt(), INTERRUPT_CONFIG);
    assert_eq!(rig.line.take(), 1);
    assert!(rig.transport.take_events().needs_reset);
    assert!(!rig.transport.driver_active());
    assert_eq!(rig.transport.counters().broken_queues, 1);
    // Nothing happens any more until the reset.
    assert!(rig.transport.pop(0, &rig.mem).is_none());
    rig.transport.announce_config();
    assert_eq!(rig.line.take(), 0);
    rig.assert_works();
}

#[test]
fn an_available_index_that_runs_away_breaks_the_queue() {
    let rig = Rig::new();
    let ring = rig.activate();
    ring.set_available_index(129);
    assert_broken(&rig);
}

#[test]
fn a_head_outside_of_the_table_breaks_the_queue() {
    let rig = Rig::new();
    let mut ring = rig.activate();
    ring.make_available(128);
    assert_broken(&rig);
}

#[test]
fn a_chain_out_when_the_queue_breaks_is_stale() {
    let rig = Rig::new();
    let mut ring = rig.activate();
    ring.add_chain(&[Buffer::writable(0x8000, 4)]);
    let popped = rig.transport.pop(0, &rig.mem).unwrap();
    ring.make_available(500);
    assert!(rig.transport.pop(0, &rig.mem).is_none());
    let completion = rig.transport.complete(&rig.mem, popped, b"late");
    assert_eq!(completion, Completion::Stale);
    assert_eq!(ring.used_index(), 0);
}

#[test]
fn a_queue_taken_down_voids_its_chains() {
    let rig = Rig::new();
    let mut ring = rig.activate();
    ring.add_chain(&[Buffer::writable(0x8000, 4)]);
    let popped = rig.transport.pop(0, &rig.mem).unwrap();
    rig.driver.write(QUEUE_READY, 0);
    assert_eq!(rig.driver.read(QUEUE_READY), 0);
    let before = content(&rig.mem);
    let completion = rig.transport.complete(&rig.mem, popped, b"late");
    assert_eq!(completion, Completion::Stale);
    assert_eq!(content(&rig.mem), before);
    assert!(rig.transport.pop(0, &rig.mem).is_none());
    assert_eq!(rig.line.take(), 0);
}

/// Something a hostile guest or a busy owner does.
#[derive(Clone, Debug)]
enum Step {
    Register(u64, u32),
    Raw(u64, Vec<u8>),
    Read(u64, usize),
    Memory(u64, u64),
    Pop,
    Complete,
    Announce,
    Activate,
}

fn register() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(STATUS),
        Just(QUEUE_READY),
        Just(QUEUE_NUM),
        Just(QUEUE_SEL),
        Just(QUEUE_NOTIFY),
        Just(DRIVER_FEATURES),
        Just(DRIVER_FEATURES_SEL),
        (0x80_u64..=0xa4).prop_map(|r| r & !3),
        0_u64..0x200,
    ]
}

fn value() -> impl Strategy<Value = u32> {
    prop_oneof![
        0_u32..16,
        Just(0x22),
        (0_u32..0x40).prop_map(|n| n << 12),
        any::<u32>(),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (register(), value()).prop_map(|(r, v)| Step::Register(r, v)),
        1 => (any::<u64>(), prop::collection::vec(any::<u8>(), 0..16))
            .prop_map(|(o, d)| Step::Raw(o, d)),
        1 => (0_u64..0x200, 0_usize..16).prop_map(|(o, n)| Step::Read(o, n)),
        4 => (RING_BASE..RING_BASE + 0x2000, prop_oneof![0_u64..200, any::<u64>()])
            .prop_map(|(a, v)| Step::Memory(a & !7, v)),
        3 => Just(Step::Pop),
        2 => Just(Step::Complete),
        1 => Just(Step::Announce),
        2 => Just(Step::Activate),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_guest_breaks_the_device_for_the_next_driver(
        steps in prop::collection::vec(step(), 1..80)
    ) {
        let rig = Rig::new();
        let mut out = Vec::new();
        for step in steps {
            match step {
                Step::Register(register, value) => rig.driver.write(register, value),
                Step::Raw(offset, data) => rig.transport.write(offset, &data),
                Step::Read(offset, len) => rig.transport.read(offset, &mut vec![0; len]),
                Step::Memory(address, value) => {
                    rig.mem.write_obj(value, GuestAddress(address)).unwrap();
                }
                Step::Pop => out.extend(rig.transport.pop(0, &rig.mem)),
                Step::Complete => {
                    if let Some(popped) = out.pop() {
                        rig.transport.complete(&rig.mem, popped, b"0123456789");
                    }
                }
                Step::Announce => rig.transport.announce_config(),
                Step::Activate => drop(rig.activate()),
            }
        }
        // What is left from before may come back at any time later.
        rig.assert_works();
        let index = rig.mem.read_obj::<u16>(GuestAddress(RING_BASE + 0x1802)).unwrap();
        for popped in out {
            let completion = rig.transport.complete(&rig.mem, popped, b"late");
            prop_assert_eq!(completion, Completion::Stale);
        }
        let after = rig.mem.read_obj::<u16>(GuestAddress(RING_BASE + 0x1802)).unwrap();
        prop_assert_eq!(index, after);
    }
}
