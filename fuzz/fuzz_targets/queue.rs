//! The whole virtio-mem device under the coordinator: a guest that does
//! anything with registers, descriptors and memory, clients that change the
//! target, a host that fails, resets at any time.
//!
//! What a well-behaved driver asks in between is answered as a naive book says.
//! Whatever else happens, the host's half refuses to plug what is plugged or
//! more than is requested, all books agree whenever nothing is in flight, and a
//! new driver gets what is requested at the end.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lmb_devices::MemRequest;
use lmb_devices::mmio::registers::*;
use lmb_devices::testing::Buffer;
use lmb_fuzz::host::Host;
use lmb_fuzz::input::Input;
use lmb_fuzz::machine::{
    BOOT_LMBS, DRIVER_BASE, DRIVER_END, LMB_BYTES, Machine, WINDOW_LMBS, fault_of, layout, memory,
};
use lmb_vmm::protocol::MemoryAction;
use vm_memory::{Bytes, GuestAddress};

/// Registers worth a driver's while.
const REGISTERS: [u64; 20] = [
    STATUS,
    QUEUE_SEL,
    QUEUE_NUM,
    QUEUE_READY,
    QUEUE_NOTIFY,
    QUEUE_DESC_LOW,
    QUEUE_DESC_HIGH,
    QUEUE_DRIVER_LOW,
    QUEUE_DRIVER_HIGH,
    QUEUE_DEVICE_LOW,
    QUEUE_DEVICE_HIGH,
    DRIVER_FEATURES,
    DRIVER_FEATURES_SEL,
    DEVICE_FEATURES,
    DEVICE_FEATURES_SEL,
    INTERRUPT_STATUS,
    INTERRUPT_ACK,
    CONFIG_GENERATION,
    CONFIG,
    MAGIC_VALUE,
];

fn register(input: &mut Input<'_>) -> u64 {
    match usize::from(input.u8()) {
        known if known < 200 => REGISTERS[known % REGISTERS.len()],
        _ => u64::from(input.u16() % 0x220),
    }
}

/// An address in or around the queue, boot memory or the window.
fn address(input: &mut Input<'_>, machine: &Machine<'_>) -> u64 {
    let window = machine.book.addr;
    match input.below(8) {
        0..=3 => DRIVER_BASE + u64::from(input.u16()) % (DRIVER_END - DRIVER_BASE),
        4 => u64::from(input.u32()) % (BOOT_LMBS * LMB_BYTES + 64),
        5 => window + u64::from(input.u32()) % (WINDOW_LMBS * LMB_BYTES + 64),
        // Across the border of two LMBs.
        6 => (window + u64::from(input.below(14)) * LMB_BYTES) - u64::from(input.below(32)),
        _ => input.u64(),
    }
}

fn request(input: &mut Input<'_>, machine: &Machine<'_>) -> MemRequest {
    let kind = input.u8();
    let lmb = u64::from(input.below(WINDOW_LMBS as u8 + 2));
    let odd = match kind / 16 {
        15 => u64::from(input.u32()),
        14 => input.u64(),
        _ => 0,
    };
    let addr = (machine.book.addr + lmb * LMB_BYTES).wrapping_add(odd);
    let nb_blocks = match input.u8() {
        255 => input.u16(),
        few => u16::from(few % 6),
    };
    match kind % 8 {
        0..=3 => MemRequest::Plug { addr, nb_blocks },
        4 | 5 => MemRequest::Unplug { addr, nb_blocks },
        6 => MemRequest::State { addr, nb_blocks },
        _ => MemRequest::UnplugAll,
    }
}

/// A request of a driver that has done nothing wrong, or of one that has just
/// come if there is none.
fn ask(input: &mut Input<'_>, machine: &mut Machine<'_>, count: u8) {
    machine.settle();
    machine.follow_host();
    if machine.driver.is_none() {
        machine.probe();
        machine.follow_host();
    }
    let requests: Vec<MemRequest> = (0..count).map(|_| request(input, machine)).collect();
    machine.ask(&requests);
    machine.check();
}

/// A request whose answer nobody waits for.
fn send(input: &mut Input<'_>, machine: &mut Machine<'_>) {
    let request = request(input, machine);
    if let Some(driver) = machine.driver.as_mut() {
        driver.send(request);
    }
    machine.driver = None;
}

/// A chain of any buffers.
fn chain(input: &mut Input<'_>, machine: &mut Machine<'_>) {
    let buffers: Vec<Buffer> = (0..input.below(6))
        .map(|_| Buffer {
            address: address(input, machine),
            len_bytes: match input.u8() {
                255 => input.u32(),
                few => u32::from(few % 40),
            },
            writable: input.flag(),
        })
        .collect();
    if let Some(mut driver) = machine.driver.take() {
        if input.flag() {
            driver
                .ring
                .write_indirect(0, &buffers, DRIVER_BASE + 0x2000);
            driver.ring.make_available(0);
        } else if !buffers.is_empty() {
            driver.ring.add_chain(&buffers);
        }
        driver.notify();
    }
}

/// Anything at any place of the ring.
fn spoil_ring(input: &mut Input<'_>, machine: &mut Machine<'_>) {
    let Some(mut driver) = machine.driver.take() else {
        return;
    };
    let index = input.u16() % 130;
    match input.below(4) {
        0 => driver.ring.set_available_index(input.u16()),
        1 => driver.ring.make_available(index),
        2 => driver.ring.set_used_event(input.u16()),
        _ => {
            let buffer = Buffer {
                address: address(input, machine),
                len_bytes: u32::from(input.u8()),
                writable: input.flag(),
            };
            let next = input.flag().then(|| input.u16() % 130);
            driver.ring.write_descriptor(index % 128, buffer, next);
            driver.ring.make_available(index % 128);
        }
    }
    driver.mmio.notify(0);
}

fn write_register(input: &mut Input<'_>, machine: &mut Machine<'_>) {
    machine.driver = None;
    let register = register(input);
    match input.u8() {
        0 => machine.bus.write(register, input.bytes(8)),
        1 => {
            let place = address(input, machine);
            machine.bus.write(register, &(place as u32).to_le_bytes());
        }
        2 => machine.bus.write(register, &input.u32().to_le_bytes()),
        small => machine
            .bus
            .write(register, &u32::from(small - 3).to_le_bytes()),
    }
}

fn step(input: &mut Input<'_>, machine: &mut Machine<'_>) {
    match input.below(20) {
        0..=3 => ask(input, machine, 1),
        4 => {
            // As many as the ring has room for.
            let count = input.below(64);
            ask(input, machine, count);
        }
        5 => send(input, machine),
        6 | 7 => chain(input, machine),
        8 => spoil_ring(input, machine),
        9 | 10 => write_register(input, machine),
        11 => {
            let mut bytes = [0xaa; 8];
            let len = usize::from(input.below(9));
            machine.bus.read(register(input), &mut bytes[..len]);
        }
        12 => {
            let (at, len) = (address(input, machine), usize::from(input.below(64)));
            let bytes = input.bytes(len);
            let end = at.saturating_add(len as u64);
            if at < DRIVER_END && end > DRIVER_BASE {
                machine.driver = None;
            }
            // What the VMM may not touch, the guest does not have either.
            let _ = machine.ram.write_slice(bytes, GuestAddress(at));
        }
        13 => machine.probe(),
        14 | 15 => {
            let action = match input.below(3) {
                0 => MemoryAction::Set,
                1 => MemoryAction::Add,
                _ => MemoryAction::Remove,
            };
            let lmbs = u64::from(input.below(16));
            machine.start(action, lmbs, 1 + u64::from(input.u16()));
        }
        16 => machine.cancel(),
        17 => machine.pass_ms(u64::from(input.u16())),
        18 => machine.host.fail(fault_of(input.u8())),
        _ => match input.below(4) {
            0 => machine.reset(),
            _ => machine.host.shut(input.flag()),
        },
    }
    machine.wake();
    if !machine.coordinator.effect_in_flight() {
        machine.follow_host();
        machine.check();
    }
}

fuzz_target!(|data: &[u8]| {
    let layout = layout();
    let parts = memory(&layout);
    let (Some(window), Some(access)) = (parts.window, parts.access) else {
        panic!("the layout has a window");
    };
    let ram = parts.guest;
    let mut machine = Machine::new(&layout, &ram, Host::new(window), access);
    let mut input = Input::new(data);
    // A guest as it is after boot; what it does from here on is the input's.
    machine.probe();
    for _ in 0..64 {
        if input.is_empty() {
            break;
        }
        step(&mut input, &mut machine);
    }
    machine.settle();
    machine.follow_host();
    machine.check();
    machine.recover();
});
