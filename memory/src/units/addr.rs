//! Guest-physical addresses and ranges.

use std::fmt;

use super::{Bytes, UnitError};

/// A guest-physical address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GuestAddr(u64);

impl GuestAddr {
    /// An address.
    pub const fn new(address: u64) -> Self {
        Self(address)
    }

    /// The address as a number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The address `offset` above, unless it needs more than 64 bits.
    pub const fn checked_add(self, offset: Bytes) -> Option<Self> {
        match self.0.checked_add(offset.get()) {
            Some(address) => Some(Self(address)),
            None => None,
        }
    }

    /// How far this lies above `base`, unless it lies below.
    pub const fn checked_offset_from(self, base: Self) -> Option<Bytes> {
        match self.0.checked_sub(base.0) {
            Some(offset) => Some(Bytes::new(offset)),
            None => None,
        }
    }
}

impl fmt::Display for GuestAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A non-empty range of guest-physical addresses `[start, end)` that does not
/// reach past 2^63.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GuestRange {
    start: GuestAddr,
    len: Bytes,
}

impl GuestRange {
    /// The end that no range passes.
    pub const END_LIMIT: u64 = 1 << 63;

    /// The range `[start, start + len)`.
    ///
    /// # Errors
    /// [`UnitError::EmptyRange`] if `len` is zero, [`UnitError::RangeTooLong`]
    /// if the end passes 2^63.
    pub fn new(start: GuestAddr, len: Bytes) -> Result<Self, UnitError> {
        if len.is_zero() {
            return Err(UnitError::EmptyRange { start: start.0 });
        }
        match start.0.checked_add(len.get()) {
            Some(end) if end <= Self::END_LIMIT => Ok(Self { start, len }),
            _ => Err(UnitError::RangeTooLong {
                start: start.0,
                len: len.get(),
                limit: Self::END_LIMIT,
            }),
        }
    }

    /// First address.
    pub const fn start(&self) -> GuestAddr {
        self.start
    }

    /// Length, at least one byte.
    pub const fn len(&self) -> Bytes {
        self.len
    }

    /// Always false: a range holds at least one byte.
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// First address past the range.
    pub const fn end(&self) -> u64 {
        self.start.0 + self.len.get()
    }

    /// Whether the address lies in the range.
    pub const fn contains(&self, address: GuestAddr) -> bool {
        address.0 >= self.start.0 && address.0 < self.end()
    }

    /// What both ranges cover, if anything.
    pub fn intersection(&self, other: &Self) -> Option<Self> {
        let start = self.start.max(other.start);
        let end = self.end().min(other.end());
        let len = Bytes::new(end.checked_sub(start.0)?);
        Self::new(start, len).ok()
    }
}

impl fmt::Display for GuestRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, {:#x})", self.start, self.end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_range_is_neither_empty_nor_wrapping() {
        let at = |start, len| GuestRange::new(GuestAddr::new(start), Bytes::new(len));
        assert_eq!(at(5, 0), Err(UnitError::EmptyRange { start: 5 }));
        assert_eq!(at(1 << 62, 1 << 62).unwrap().end(), 1 << 63);
        for (start, len) in [((1 << 62) + 1, 1 << 62), (u64::MAX, 1), (1, u64::MAX)] {
            assert!(matches!(
                at(start, len),
                Err(UnitError::RangeTooLong { .. })
            ));
        }
    }

    proptest! {
        #[test]
        fn intersection_is_what_both_contain(
            a in 0_u64..64, a_len in 1_u64..64, b in 0_u64..64, b_len in 1_u64..64
        ) {
            let one = GuestRange::new(GuestAddr::new(a), Bytes::new(a_len)).unwrap();
            let two = GuestRange::new(GuestAddr::new(b), Bytes::new(b_len)).unwrap();
            let both = one.intersection(&two);
            prop_assert_eq!(both, two.intersection(&one));
            for address in (0..130).map(GuestAddr::new) {
                let inside = one.contains(address) && two.contains(address);
                prop_assert_eq!(both.is_some_and(|range| range.contains(address)), inside);
            }
        }
    }
}
