//! What a write to the power ports means.

use super::{RESET, RESET_VALUE, SLEEP_CONTROL, SLEEP_TYPE_S5};

const SLEEP_ENABLE: u8 = 1 << 5;
const SLEEP_TYPE_SHIFT: u8 = 2;
const SLEEP_TYPE_MASK: u8 = 0b111;

/// What the guest wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerRequest {
    /// Power off.
    Off,
    /// Start anew.
    Reset,
}

impl PowerRequest {
    /// The request made by writing `value` at `offset`, if it is one.
    pub(super) fn decode(offset: u64, value: u8) -> Option<Self> {
        let sleep_type = (value >> SLEEP_TYPE_SHIFT) & SLEEP_TYPE_MASK;
        if offset == u64::from(SLEEP_CONTROL) {
            (value & SLEEP_ENABLE != 0 && sleep_type == SLEEP_TYPE_S5).then_some(Self::Off)
        } else if offset == u64::from(RESET) {
            (value == RESET_VALUE).then_some(Self::Reset)
        } else {
            None
        }
    }
}
