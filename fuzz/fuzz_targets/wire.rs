//! The wire format: chains of any form around a request of any bytes. Each is
//! read as a naive reading of its 24 bytes says, or refused by the rules, and
//! each answer lies where it belongs.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lmb_devices::testing::{Buffer, MemDriver, REQUEST_AREA_BYTES};
use lmb_devices::{Completion, MemConfig, MemRequest, MemResponse, RangeState};
use lmb_fuzz::input::Input;
use lmb_fuzz::machine::{device, wire};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

const MEMORY_BYTES: u64 = 1 << 16;
/// Pieces of requests and answers, apart from the driver's own area.
const PIECES: u64 = 0x8000;
const REQUEST_BYTES: usize = 24;
const RESPONSE_BYTES: usize = 10;
/// Most chains of an input.
const CHAINS: u8 = 24;

const _: () = assert!(REQUEST_AREA_BYTES <= PIECES);

/// What the bytes mean, by their offsets (virtio 1.2, section 5.15.6).
fn meaning(bytes: &[u8; REQUEST_BYTES]) -> Option<MemRequest> {
    let mut addr = 0;
    for byte in bytes[8..16].iter().rev() {
        addr = addr * 256 + u64::from(*byte);
    }
    let nb_blocks = u16::from(bytes[16]) + 256 * u16::from(bytes[17]);
    match (bytes[0], bytes[1]) {
        (0, 0) => Some(MemRequest::Plug { addr, nb_blocks }),
        (1, 0) => Some(MemRequest::Unplug { addr, nb_blocks }),
        (2, 0) => Some(MemRequest::UnplugAll),
        (3, 0) => Some(MemRequest::State { addr, nb_blocks }),
        _ => None,
    }
}

fn response(byte: u8) -> MemResponse {
    match byte % 7 {
        0 => MemResponse::Ack,
        1 => MemResponse::Nack,
        2 => MemResponse::Busy,
        3 => MemResponse::Error,
        4 => MemResponse::AckState(RangeState::Plugged),
        5 => MemResponse::AckState(RangeState::Unplugged),
        _ => MemResponse::AckState(RangeState::Mixed),
    }
}

/// A chain in pieces that share no memory, some of them perhaps outside of it.
struct Pieces {
    buffers: Vec<Buffer>,
    next: u64,
}

impl Pieces {
    fn add(&mut self, len: u8, outside: bool, writable: bool) {
        let address = if outside { MEMORY_BYTES - 1 } else { self.next };
        self.next += u64::from(len);
        self.buffers.push(Buffer {
            address,
            len_bytes: u32::from(len),
            writable,
        });
    }

    /// Whether the first `len` bytes of a half are there, piece by piece.
    fn reaches(&self, writable: bool, mut len: usize) -> (bool, bool) {
        let mut inside = true;
        for buffer in self.buffers.iter().filter(|b| b.writable == writable) {
            let used = len.min(buffer.len_bytes as usize);
            inside &= used == 0 || buffer.address + used as u64 <= MEMORY_BYTES;
            len -= used;
        }
        (len == 0, inside)
    }

    fn each_byte(&self, writable: bool) -> impl Iterator<Item = u64> + '_ {
        let half = self.buffers.iter().filter(move |b| b.writable == writable);
        half.flat_map(|b| b.address..b.address + u64::from(b.len_bytes))
    }
}

fn chain(input: &mut Input<'_>) -> (Pieces, bool) {
    let mut pieces = Pieces {
        buffers: Vec::new(),
        next: PIECES,
    };
    let shape = input.u8();
    for _ in 0..1 + shape % 4 {
        let len = input.u8();
        // Mostly what a request has; pieces of 0 are legal.
        let len = if len >= 0xc0 { 24 } else { len % 32 };
        pieces.add(len, shape & 0x80 != 0 && len > 1, false);
    }
    for _ in 0..1 + shape / 4 % 4 {
        let len = input.u8();
        let len = if len >= 0xc0 { 10 } else { len % 16 };
        pieces.add(len, shape & 0x40 != 0 && len > 1, true);
    }
    let mixed = shape & 0x30 == 0x30;
    if mixed {
        pieces.buffers.reverse();
    }
    (pieces, mixed)
}

fuzz_target!(|data: &[u8]| {
    let ranges = [(GuestAddress(0), MEMORY_BYTES as usize)];
    let mem: GuestMemoryMmap<()> = GuestMemoryMmap::from_ranges(&ranges).expect("memory");
    let mut device = device(MemConfig::default());
    let mut driver = MemDriver::probe(device.bus_device(), &mem, 0);
    let mut input = Input::new(data);
    let mut malformed = 0;
    for _ in 0..CHAINS {
        if input.is_empty() {
            break;
        }
        let (pieces, mixed) = chain(&mut input);
        let answer = response(input.u8());
        let mut bytes = [0; REQUEST_BYTES];
        let given = input.bytes(REQUEST_BYTES);
        bytes[..given.len()].copy_from_slice(given);
        for (at, byte) in pieces.each_byte(false).zip(bytes) {
            if at < MEMORY_BYTES {
                mem.write_obj(byte, GuestAddress(at)).expect("inside");
            }
        }
        for at in pieces.each_byte(true).filter(|at| *at < MEMORY_BYTES) {
            mem.write_obj(0xee_u8, GuestAddress(at)).expect("inside");
        }
        let head = driver.ring.add_chain(&pieces.buffers);
        driver.notify();

        let whole = pieces.reaches(false, REQUEST_BYTES) == (true, true);
        let room = pieces.reaches(true, RESPONSE_BYTES) == (true, true);
        let due = meaning(&bytes).filter(|_| whole && room && !mixed);
        let taken = device.next_request(&mem);
        assert_eq!(taken.as_ref().map(|(_, request)| *request), due);
        let answer = match taken {
            Some((ticket, _)) => {
                assert!(device.awaits(&ticket));
                assert_eq!(device.answer(&mem, ticket, answer), Completion::Delivered);
                Some(answer)
            }
            None => {
                malformed += 1;
                room.then_some(MemResponse::Error)
            }
        };
        assert_eq!(device.counters().malformed, malformed);
        let written = if answer.is_some() { RESPONSE_BYTES } else { 0 };
        assert_eq!(driver.ring.take_used(), Some((head, written as u32)));
        check_answer(&mem, &pieces, answer);
    }
    assert!(device.driver_active(), "a malformed chain breaks no device");
});

/// The answer lies at the start of the writable part, and nothing else there
/// has changed.
fn check_answer(mem: &GuestMemoryMmap<()>, pieces: &Pieces, answer: Option<MemResponse>) {
    let mut due = Vec::new();
    if let Some(answer) = answer {
        let (kind, state) = wire(answer);
        due.extend(kind.to_le_bytes());
        due.extend([0; 6]);
        due.extend(state.to_le_bytes());
    }
    let mut due = due.into_iter();
    for at in pieces.each_byte(true) {
        let due = due.next().unwrap_or(0xee);
        if at < MEMORY_BYTES {
            let byte: u8 = mem.read_obj(GuestAddress(at)).expect("inside");
            assert_eq!(byte, due, "at {at:#x}");
        }
    }
}
