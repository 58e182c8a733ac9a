//! Units of memory as separate checked types.
//!
//! None of them implements an arithmetic operator: sums and products are
//! `checked_*` and say so when they do not fit. Values are immutable and
//! `Copy`; a value that exists is legal (a range is never empty and never
//! wraps, an LMB size is a power of two).

mod addr;
mod bytes;
mod lmb;

pub use addr::{GuestAddr, GuestRange};
pub use bytes::Bytes;
pub(crate) use lmb::nearest_powers;
pub use lmb::{LmbCount, LmbIndex, LmbRange, LmbSize};

/// Why a size, address or range is not legal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnitError {
    /// The text is no size at all.
    #[error(
        "'{text}' is not a size; write a whole number of bytes (1073741824, 0x40000000) \
         or one with a unit K, M, G or T (256M, 4GiB; powers of 1024)"
    )]
    NotASize {
        /// The text as given.
        text: String,
    },
    /// The text is a size that 64 bits do not hold.
    #[error(
        "'{text}' is larger than 64 bits hold; the largest size is {}",
        Bytes::new(u64::MAX)
    )]
    SizeTooLarge {
        /// The text as given.
        text: String,
    },
    /// Not a legal LMB size.
    #[error(
        "an LMB of {given} is not possible: it is a power of two from {} to {}; nearest legal: {}",
        LmbSize::MIN, LmbSize::MAX, either(.below, .above)
    )]
    LmbSize {
        /// The size asked for.
        given: Bytes,
        /// The next legal size below, if there is one.
        below: Option<Bytes>,
        /// The next legal size above, if there is one.
        above: Option<Bytes>,
    },
    /// A range of no bytes or no LMBs.
    #[error("a range that starts at {start:#x} has no length; it needs at least one unit")]
    EmptyRange {
        /// Its start (an address or an LMB index).
        start: u64,
    },
    /// A range that leaves the address space.
    #[error("a range of {len:#x} that starts at {start:#x} ends past {limit:#x}")]
    RangeTooLong {
        /// Its start (an address or an LMB index).
        start: u64,
        /// Its length.
        len: u64,
        /// The end it may not pass.
        limit: u64,
    },
}

/// "A or B" of up to two nearest legal values.
pub(crate) fn either(below: &Option<Bytes>, above: &Option<Bytes>) -> String {
    match (below, above) {
        (Some(below), Some(above)) => format!("{below} or {above}"),
        (Some(only), None) | (None, Some(only)) => only.to_string(),
        (None, None) => "none".to_owned(),
    }
}
