//! A number of bytes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::UnitError;

/// A number of bytes, 0 to 2^64 - 1.
///
/// Written as `256M`, `4GiB`, `0x10000000` or plain bytes (units are powers of
/// 1024); shown exactly, in the largest unit that divides it: `256 MiB`,
/// `1536 MiB`, never `1.5 GiB`. In JSON it is a number, and read from a number
/// or such a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(u64);

const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];

impl Bytes {
    /// No bytes.
    pub const ZERO: Self = Self(0);
    /// 1024 bytes.
    pub const KIB: Self = Self(1 << 10);
    /// 1024 KiB.
    pub const MIB: Self = Self(1 << 20);
    /// 1024 MiB.
    pub const GIB: Self = Self(1 << 30);
    /// 1024 GiB.
    pub const TIB: Self = Self(1 << 40);

    /// A number of bytes.
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// The number of bytes.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Whether this is zero bytes.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
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

    /// The product, unless it needs more than 64 bits.
    pub const fn checked_mul(self, factor: u64) -> Option<Self> {
        match self.0.checked_mul(factor) {
            Some(product) => Some(Self(product)),
            None => None,
        }
    }

    /// The next multiple of `unit` at or above this; `None` if `unit` is zero
    /// or the multiple needs more than 64 bits.
    pub const fn round_up(self, unit: Self) -> Option<Self> {
        match self.0.checked_next_multiple_of(unit.0) {
            Some(multiple) => Some(Self(multiple)),
            None => None,
        }
    }

    /// The next multiple of `unit` at or below this (0 if `unit` is zero).
    pub const fn round_down(self, unit: Self) -> Self {
        match self.0.checked_rem(unit.0) {
            Some(rest) => Self(self.0 - rest),
            None => Self(0),
        }
    }

    /// Whether this is a multiple of `unit`; only zero is a multiple of zero.
    pub const fn is_multiple_of(self, unit: Self) -> bool {
        self.0.is_multiple_of(unit.0)
    }

    /// Whether this is a power of two.
    pub const fn is_power_of_two(self) -> bool {
        self.0.is_power_of_two()
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, shift) in UNITS {
            if self.0 != 0 && self.0.trailing_zeros() >= shift {
                return write!(f, "{} {unit}", self.0 >> shift);
            }
        }
        write!(f, "{} B", self.0)
    }
}

impl FromStr for Bytes {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let wrong = || UnitError::NotASize {
            text: text.to_owned(),
        };
        let large = || UnitError::SizeTooLarge {
            text: text.to_owned(),
        };
        let trimmed = text.trim();
        let hex = trimmed
            .strip_prefix("0x")
            .or_else(|| trimmed.strip_prefix("0X"));
        let (digits, shift, radix) = match hex {
            Some(digits) => (digits, 0, 16),
            None => {
                let end = trimmed
                    .find(|c: char| !c.is_ascii_digit())
                    .unwrap_or(trimmed.len());
                let (digits, unit) = trimmed.split_at(end);
                (digits, shift_of(unit.trim_start()).ok_or_else(wrong)?, 10)
            }
        };
        if digits.is_empty() || !digits.chars().all(|c| c.is_digit(radix)) {
            return Err(wrong());
        }
        // Only digits are left, so the one way to fail is by size.
        let number = u64::from_str_radix(digits, radix).map_err(|_| large())?;
        number.checked_mul(1 << shift).map(Self).ok_or_else(large)
    }
}

/// The power of two a unit stands for.
fn shift_of(unit: &str) -> Option<u32> {
    if unit.is_empty() || unit == "B" {
        return Some(0);
    }
    let mut chars = unit.chars();
    let shift = match chars.next()?.to_ascii_uppercase() {
        'K' => 10,
        'M' => 20,
        'G' => 30,
        'T' => 40,
        _ => return None,
    };
    matches!(chars.as_str(), "" | "B" | "iB" | "b" | "ib").then_some(shift)
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Bytes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of bytes or a size such as \"256M\"")
            }

            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<Bytes, E> {
                Ok(Bytes(bytes))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Bytes, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn texts_and_what_they_mean() {
        for (text, bytes) in [
            ("256M", 256 << 20),
            ("256m", 256 << 20),
            ("1G", 1 << 30),
            ("4GiB", 4 << 30),
            ("4GB", 4 << 30),
            ("2TiB", 2 << 40),
            ("16K", 16 << 10),
            ("256 MiB", 256 << 20),
            (" 7 ", 7),
            ("512B", 512),
            ("0x10000000", 0x1000_0000),
            ("0Xff", 255),
            ("1073741824", 1 << 30),
            ("0", 0),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(text.parse(), Ok(Bytes::new(bytes)), "{text}");
        }
    }

    #[test]
    fn what_is_not_a_size_is_refused() {
        for text in [
            "", "M", "1.5G", "-1", "+1", "1X", "1MM", "0x", "0xG", "0x1M", "1 2", "1GiBs", "G1",
        ] {
            let error = text.parse::<Bytes>().unwrap_err();
            assert_eq!(
                error,
                UnitError::NotASize { text: text.into() },
                "{text}: {error}"
            );
        }
        for text in ["18446744073709551616", "16777216T", "0x10000000000000000"] {
            let error = text.parse::<Bytes>().unwrap_err();
            assert_eq!(error, UnitError::SizeTooLarge { text: text.into() });
        }
    }

    #[test]
    fn the_largest_whole_unit_is_shown() {
        for (bytes, text) in [
            (0, "0 B"),
            (1, "1 B"),
            (1 << 10, "1 KiB"),
            (256 << 20, "256 MiB"),
            (1536 << 20, "1536 MiB"),
            (4 << 30, "4 GiB"),
            (64 << 40, "64 TiB"),
            ((1 << 30) + 1, "1073741825 B"),
        ] {
            assert_eq!(Bytes::new(bytes).to_string(), text);
        }
    }

    #[test]
    fn json_is_a_number_and_reads_both() {
        assert_eq!(
            serde_json::to_string(&Bytes::new(1 << 28)).unwrap(),
            "268435456"
        );
        assert_eq!(
            serde_json::from_str::<Bytes>("268435456").unwrap(),
            Bytes::new(1 << 28)
        );
        assert_eq!(
            serde_json::from_str::<Bytes>("\"256M\"").unwrap(),
            Bytes::new(1 << 28)
        );
        for wrong in ["-1", "1.5", "\"1.5G\"", "true", "null"] {
            assert!(serde_json::from_str::<Bytes>(wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_reads_back(bytes: u64, shift in 0_u32..64) {
            let size = Bytes::new(bytes << shift);
            prop_assert_eq!(size.to_string().parse(), Ok(size));
        }

        #[test]
        fn no_text_panics(text in "\\PC*") {
            let _ = text.parse::<Bytes>();
        }

        #[test]
        fn rounding_meets_its_definition(bytes: u64, unit: u64) {
            let (size, unit) = (Bytes::new(bytes), Bytes::new(unit));
            let down = size.round_down(unit);
            prop_assert!(down <= size && down.is_multiple_of(unit));
            if let Some(up) = size.round_up(unit) {
                prop_assert!(up >= size && up.is_multiple_of(unit));
                prop_assert!(up.get() - size.get() < unit.get());
            }
        }
    }
}
