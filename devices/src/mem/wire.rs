//! Wire format of virtio-mem requests and responses (virtio 1.2, section
//! 5.15.6; Linux: include/uapi/linux/virtio_mem.h), and what they mean.
//!
//! | bytes | request | | bytes | response |
//! |---|---|---|---|---|
//! | 0..2 | type | | 0..2 | type |
//! | 8..16 | addr | | 8..10 | state |
//! | 16..18 | nb_blocks | | | |
//!
//! All numbers are little-endian; what lies between is padding and ignored.

use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Length of a request.
pub const REQUEST_BYTES: usize = size_of::<WireRequest>();
/// Length of a response.
pub const RESPONSE_BYTES: usize = size_of::<WireResponse>();

/// Request type: plug blocks.
pub const TYPE_PLUG: u16 = 0;
/// Request type: unplug blocks.
pub const TYPE_UNPLUG: u16 = 1;
/// Request type: unplug all blocks.
pub const TYPE_UNPLUG_ALL: u16 = 2;
/// Request type: ask whether blocks are plugged.
pub const TYPE_STATE: u16 = 3;

/// Response type: done.
pub const TYPE_ACK: u16 = 0;
/// Response type: not done, and not wanted now.
pub const TYPE_NACK: u16 = 1;
/// Response type: not done, try later.
pub const TYPE_BUSY: u16 = 2;
/// Response type: the request was wrong.
pub const TYPE_ERROR: u16 = 3;

/// State: all blocks of the range are plugged.
pub const STATE_PLUGGED: u16 = 0;
/// State: none is.
pub const STATE_UNPLUGGED: u16 = 1;
/// State: some are.
pub const STATE_MIXED: u16 = 2;

/// A request as it lies in guest memory.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct WireRequest {
    /// One of `TYPE_PLUG` to `TYPE_STATE`.
    pub request_type: U16,
    /// Ignored.
    pub padding: [u8; 6],
    /// First guest-physical address of the range.
    pub addr: U64,
    /// Number of blocks.
    pub nb_blocks: U16,
    /// Ignored.
    pub padding2: [u8; 6],
}

/// A response as it lies in guest memory.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct WireResponse {
    /// One of `TYPE_ACK` to `TYPE_ERROR`.
    pub response_type: U16,
    /// Zero.
    pub padding: [u8; 6],
    /// With `TYPE_ACK` of a state request: one of the states. Else zero.
    pub state: U16,
}

/// What a driver asks for. Any address and count may come here; the ledger
/// judges them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemRequest {
    /// Plug blocks.
    Plug {
        /// Guest-physical address of the first block.
        addr: u64,
        /// Number of device blocks.
        nb_blocks: u16,
    },
    /// Unplug blocks.
    Unplug {
        /// Guest-physical address of the first block.
        addr: u64,
        /// Number of device blocks.
        nb_blocks: u16,
    },
    /// Unplug all blocks of the device.
    UnplugAll,
    /// Tell whether blocks are plugged.
    State {
        /// Guest-physical address of the first block.
        addr: u64,
        /// Number of device blocks.
        nb_blocks: u16,
    },
}

/// Whether the blocks of a range are plugged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeState {
    /// All of them.
    Plugged,
    /// None of them.
    Unplugged,
    /// Some of them.
    Mixed,
}

/// The device's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemResponse {
    /// Done as asked.
    Ack,
    /// Answer to [`MemRequest::State`].
    AckState(RangeState),
    /// Not done: more than is requested. Linux tries again at once.
    Nack,
    /// Not done: something passing. Linux tries again after 50 s or at the
    /// next configuration interrupt.
    Busy,
    /// The request was wrong. Linux gives the device up for good.
    Error,
}

impl WireRequest {
    /// The request, unless its type is unknown.
    #[must_use]
    pub fn decode(&self) -> Option<MemRequest> {
        let (addr, nb_blocks) = (self.addr.get(), self.nb_blocks.get());
        match self.request_type.get() {
            TYPE_PLUG => Some(MemRequest::Plug { addr, nb_blocks }),
            TYPE_UNPLUG => Some(MemRequest::Unplug { addr, nb_blocks }),
            TYPE_UNPLUG_ALL => Some(MemRequest::UnplugAll),
            TYPE_STATE => Some(MemRequest::State { addr, nb_blocks }),
            _ => None,
        }
    }
}

impl From<MemResponse> for WireResponse {
    fn from(response: MemResponse) -> Self {
        let (response_type, state) = match response {
            MemResponse::Ack => (TYPE_ACK, 0),
            MemResponse::AckState(RangeState::Plugged) => (TYPE_ACK, STATE_PLUGGED),
            MemResponse::AckState(RangeState::Unplugged) => (TYPE_ACK, STATE_UNPLUGGED),
            MemResponse::AckState(RangeState::Mixed) => (TYPE_ACK, STATE_MIXED),
            MemResponse::Nack => (TYPE_NACK, 0),
            MemResponse::Busy => (TYPE_BUSY, 0),
            MemResponse::Error => (TYPE_ERROR, 0),
        };
        Self {
            response_type: U16::new(response_type),
            padding: [0; 6],
            state: U16::new(state),
        }
    }
}
