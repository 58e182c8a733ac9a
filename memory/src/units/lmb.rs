//! LMB sizes, counts, indices and ranges.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::{Bytes, UnitError};

/// Size of a Logical Memory Block: a power of two from 2 MiB to 4 GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LmbSize(Bytes);

impl LmbSize {
    /// 2 MiB: one PMD-sized page, virtio-mem's smallest useful block on x86.
    pub const MIN: Bytes = Bytes::new(2 << 20);
    /// 4 GiB.
    pub const MAX: Bytes = Bytes::new(4 << 30);

    /// A legal LMB size.
    ///
    /// # Errors
    /// [`UnitError::LmbSize`], which names the nearest legal sizes.
    pub fn new(bytes: Bytes) -> Result<Self, UnitError> {
        if bytes.is_power_of_two() && bytes >= Self::MIN && bytes <= Self::MAX {
            return Ok(Self(bytes));
        }
        let (below, above) = nearest_powers(bytes, Self::MIN, Self::MAX);
        Err(UnitError::LmbSize {
            given: bytes,
            below,
            above,
        })
    }

    /// The size in bytes.
    pub const fn bytes(self) -> Bytes {
        self.0
    }

    /// How many bytes `count` LMBs are, unless that needs more than 64 bits.
    pub const fn checked_bytes_of(self, count: LmbCount) -> Option<Bytes> {
        self.0.checked_mul(count.get())
    }

    /// How many whole LMBs `bytes` are; `None` if not a whole number.
    pub fn lmbs_in(self, bytes: Bytes) -> Option<LmbCount> {
        bytes
            .is_multiple_of(self.0)
            .then(|| LmbCount::new(bytes.get() >> self.0.get().trailing_zeros()))
    }
}

/// The powers of two within `[min, max]` next to `given`.
pub(crate) fn nearest_powers(
    given: Bytes,
    min: Bytes,
    max: Bytes,
) -> (Option<Bytes>, Option<Bytes>) {
    let below = (given >= min).then(|| {
        let power = 1_u64 << (63 - given.get().leading_zeros());
        Bytes::new(power).min(max)
    });
    let above = (given <= max).then(|| {
        // A value at or below `max`, itself a power of two, has a next one.
        Bytes::new(given.get().checked_next_power_of_two().unwrap_or(max.get())).max(min)
    });
    (below, above)
}

impl fmt::Display for LmbSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for LmbSize {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        Self::new(text.parse()?)
    }
}

impl Serialize for LmbSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for LmbSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(Bytes::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

/// A number of LMBs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LmbCount(u64);

impl LmbCount {
    /// None.
    pub const ZERO: Self = Self(0);

    /// A number of LMBs.
    pub const fn new(count: u64) -> Self {
        Self(count)
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The sum, unless it needs more than 64 bits.
    pub const fn checked_add(self, other: Self) -> Option<Self> {
        match self.0.checked_add(other.0) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }

    /// The difference, unless it is negative.
    pub const fn checked_sub(self, other: Self) -> Option<Self> {
        match self.0.checked_sub(other.0) {
            Some(difference) => Some(Self(difference)),
            None => None,
        }
    }
}

impl fmt::Display for LmbCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} LMB{}", self.0, if self.0 == 1 { "" } else { "s" })
    }
}

/// Number of an LMB within its window (or within boot memory), from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LmbIndex(u64);

impl LmbIndex {
    /// The LMB with this number.
    pub const fn new(index: u64) -> Self {
        Self(index)
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for LmbIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LMB {}", self.0)
    }
}

/// A non-empty run of neighbouring LMBs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LmbRange {
    first: LmbIndex,
    count: LmbCount,
}

impl LmbRange {
    /// `count` LMBs from `first`.
    ///
    /// # Errors
    /// [`UnitError::EmptyRange`] for no LMBs, [`UnitError::RangeTooLong`] if
    /// the end needs more than 64 bits.
    pub fn new(first: LmbIndex, count: LmbCount) -> Result<Self, UnitError> {
        if count.0 == 0 {
            return Err(UnitError::EmptyRange { start: first.0 });
        }
        if first.0.checked_add(count.0).is_none() {
            return Err(UnitError::RangeTooLong {
                start: first.0,
                len: count.0,
                limit: u64::MAX,
            });
        }
        Ok(Self { first, count })
    }

    /// First LMB.
    pub const fn first(&self) -> LmbIndex {
        self.first
    }

    /// How many, at least one.
    pub const fn count(&self) -> LmbCount {
        self.count
    }

    /// First LMB past the run.
    pub const fn end(&self) -> LmbIndex {
        LmbIndex(self.first.0 + self.count.0)
    }
}

impl fmt::Display for LmbRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.count.0 {
            1 => self.first.fmt(f),
            _ => write!(f, "LMBs {} to {}", self.first.0, self.end().0 - 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn legal_lmb_sizes_are_the_powers_from_2_mib_to_4_gib() {
        let legal: Vec<u32> = (0..64)
            .filter(|shift| LmbSize::new(Bytes::new(1 << shift)).is_ok())
            .collect();
        assert_eq!(legal, (21..=32).collect::<Vec<_>>());
    }

    #[test]
    fn a_refused_lmb_size_names_the_nearest_legal_ones() {
        for (given, names) in [
            (Bytes::new(6 << 20), "4 MiB or 8 MiB"),
            (Bytes::MIB, "2 MiB"),
            (Bytes::ZERO, "2 MiB"),
            (Bytes::new(3 << 30), "2 GiB or 4 GiB"),
            (Bytes::new(8 << 30), "4 GiB"),
            (Bytes::new(u64::MAX), "4 GiB"),
        ] {
            let text = LmbSize::new(given).unwrap_err().to_string();
            assert!(
                text.ends_with(&format!("nearest legal: {names}")),
                "{given}: {text}"
            );
        }
    }

    #[test]
    fn whole_lmbs_only() {
        let lmb: LmbSize = "4G".parse().unwrap();
        assert_eq!(lmb.lmbs_in(Bytes::new(16 << 30)), Some(LmbCount::new(4)));
        assert_eq!(lmb.lmbs_in(Bytes::new((16 << 30) + 1)), None);
        assert_eq!(
            lmb.checked_bytes_of(LmbCount::new(16384)),
            Some(Bytes::new(64 << 40))
        );
        assert_eq!(lmb.checked_bytes_of(LmbCount::new(1 << 32)), None);
    }

    #[test]
    fn runs_are_neither_empty_nor_wrapping() {
        assert!(LmbRange::new(LmbIndex::new(3), LmbCount::ZERO).is_err());
        assert!(LmbRange::new(LmbIndex::new(u64::MAX), LmbCount::new(1)).is_err());
        let run = LmbRange::new(LmbIndex::new(3), LmbCount::new(2)).unwrap();
        assert_eq!(
            (run.end(), run.to_string().as_str()),
            (LmbIndex::new(5), "LMBs 3 to 4")
        );
    }
}
