//! Sizes and times as people write and read them.
//!
//! Sizes are powers of 1024: `256M`, `1G`, `4GiB`, `0x10000000`, plain bytes.
//! Times are `500ms`, `60s`, `2m`, `1h`, or a plain number of seconds.
//! Printed sizes are exact: the largest unit that divides them, so that
//! nothing is lost between what a table shows and what the next command takes.

use std::time::Duration;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

/// The longest deadline an operation may have: one day, the control socket's
/// own limit.
pub const MAX_TIMEOUT: Duration = Duration::from_secs(86_400);

/// Why a size or a time was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// Not a number with a known unit.
    #[error("`{0}` is no size; write it like 256M, 1G, 4GiB, 0x10000000 or in bytes")]
    NotASize(String),
    /// More than 64 bits of bytes.
    #[error("`{0}` is more than 16 EiB; give a smaller size")]
    SizeTooLarge(String),
    /// Zero bytes, where an amount is needed.
    #[error("a size of 0 changes nothing; give at least one LMB")]
    ZeroSize,
    /// Not a number with a known unit.
    #[error("`{0}` is no time; write it like 500ms, 60s, 2m, 1h or in seconds")]
    NotATime(String),
    /// Outside what the control socket takes.
    #[error("`{0}` is out of range; a deadline is 1ms to 24h")]
    TimeOutOfRange(String),
}

/// Reads a size in bytes, 1 byte or more.
///
/// # Errors
/// [`UnitError`] names the text and the forms that are understood.
pub fn parse_size(text: &str) -> Result<u64, UnitError> {
    let bad = || UnitError::NotASize(text.to_owned());
    let trimmed = text.trim();
    let bytes = if let Some(hex) = strip_hex(trimmed) {
        if hex.is_empty() || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(bad());
        }
        u64::from_str_radix(hex, 16).map_err(|_| UnitError::SizeTooLarge(text.to_owned()))?
    } else {
        let (digits, unit) = split_number(trimmed);
        let factor = size_factor(unit).ok_or_else(bad)?;
        if digits.is_empty() {
            return Err(bad());
        }
        digits
            .parse::<u64>()
            .ok()
            .and_then(|count| count.checked_mul(factor))
            .ok_or_else(|| UnitError::SizeTooLarge(text.to_owned()))?
    };
    if bytes == 0 {
        return Err(UnitError::ZeroSize);
    }
    Ok(bytes)
}

/// Reads a deadline: 1 ms to [`MAX_TIMEOUT`].
///
/// # Errors
/// [`UnitError`] names the text and the forms that are understood.
pub fn parse_timeout(text: &str) -> Result<Duration, UnitError> {
    let bad = || UnitError::NotATime(text.to_owned());
    let range = || UnitError::TimeOutOfRange(text.to_owned());
    let (digits, unit) = split_number(text.trim());
    let factor_ms: u64 = match unit.to_ascii_lowercase().as_str() {
        "ms" => 1,
        "" | "s" => 1000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        _ => return Err(bad()),
    };
    if digits.is_empty() {
        return Err(bad());
    }
    let ms = digits
        .parse::<u64>()
        .ok()
        .and_then(|count| count.checked_mul(factor_ms))
        .ok_or_else(range)?;
    let timeout = Duration::from_millis(ms);
    if timeout.is_zero() || timeout > MAX_TIMEOUT {
        return Err(range());
    }
    Ok(timeout)
}

/// A size in the largest unit that divides it: `256 MiB`, `1536 MiB`, `0 B`.
#[must_use]
pub fn format_size(bytes: u64) -> String {
    for (unit, name) in [(TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")] {
        if bytes >= unit && bytes.is_multiple_of(unit) {
            return format!("{} {name}", bytes / unit);
        }
    }
    format!("{bytes} B")
}

/// A size as a count of LMBs, `-` where the LMB size is no divisor (a reply
/// that makes no sense must not end the program).
#[must_use]
pub fn format_lmbs(bytes: u64, lmb_size_bytes: u64) -> String {
    match bytes.checked_div(lmb_size_bytes) {
        Some(count) if bytes.is_multiple_of(lmb_size_bytes) => count.to_string(),
        _ => "-".to_owned(),
    }
}

/// Nanoseconds as milliseconds with microseconds behind the point.
#[must_use]
pub fn format_ms(ns: u64) -> String {
    let us = ns / 1000;
    format!("{}.{:03}", us / 1000, us % 1000)
}

fn strip_hex(text: &str) -> Option<&str> {
    text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"))
}

fn split_number(text: &str) -> (&str, &str) {
    let end = text
        .bytes()
        .position(|b| !b.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    (digits, unit.trim_start())
}

fn size_factor(unit: &str) -> Option<u64> {
    Some(match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" | "kib" => KIB,
        "m" | "mb" | "mib" => MIB,
        "g" | "gb" | "gib" => GIB,
        "t" | "tb" | "tib" => TIB,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_people_write() {
        for (text, bytes) in [
            ("256M", 256 * MIB),
            ("1G", GIB),
            ("4GiB", 4 * GIB),
            ("4 gib", 4 * GIB),
            ("2TiB", 2 * TIB),
            ("64k", 64 * KIB),
            ("0x10000000", 256 * MIB),
            ("1073741824", GIB),
            ("512B", 512),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn sizes_refused_with_their_reason() {
        for text in [
            "", "G", "1.5G", "-1G", "1X", "0x", "0xfg", "1GG", "+1", "٣G",
        ] {
            assert_eq!(
                parse_size(text),
                Err(UnitError::NotASize(text.to_owned())),
                "{text}"
            );
        }
        for text in ["16777216T", "18446744073709551616", "0x10000000000000000"] {
            assert_eq!(
                parse_size(text),
                Err(UnitError::SizeTooLarge(text.to_owned()))
            );
        }
        assert_eq!(parse_size("0G"), Err(UnitError::ZeroSize));
    }

    #[test]
    fn times_people_write() {
        for (text, ms) in [
            ("60", 60_000),
            ("60s", 60_000),
            ("500ms", 500),
            ("2m", 120_000),
            ("24h", 86_400_000),
        ] {
            assert_eq!(parse_timeout(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["0", "0ms", "25h", "86401", "99999999999999999999h"] {
            assert_eq!(
                parse_timeout(text),
                Err(UnitError::TimeOutOfRange(text.to_owned()))
            );
        }
        for text in ["", "s", "1.5s", "1d", "-1s"] {
            assert_eq!(
                parse_timeout(text),
                Err(UnitError::NotATime(text.to_owned()))
            );
        }
    }

    #[test]
    fn counts_survive_a_senseless_lmb_size() {
        assert_eq!(format_lmbs(GIB, 256 * MIB), "4");
        assert_eq!(format_lmbs(GIB, 0), "-");
        assert_eq!(format_lmbs(GIB + 1, 256 * MIB), "-");
    }

    #[test]
    fn milliseconds_keep_their_zeros() {
        assert_eq!(format_ms(0), "0.000");
        assert_eq!(format_ms(1_002_999), "1.002");
    }

    proptest! {
        #[test]
        fn a_printed_size_reads_back_the_same(bytes in 1..=u64::MAX, shift in 0u32..50) {
            let bytes = (bytes >> shift << shift).max(1);
            prop_assert_eq!(parse_size(&format_size(bytes)), Ok(bytes));
        }

        #[test]
        fn no_text_breaks_the_parsers(text in ".*") {
            if let Ok(bytes) = parse_size(&text) {
                prop_assert!(bytes > 0);
            }
            if let Ok(timeout) = parse_timeout(&text) {
                prop_assert!(!timeout.is_zero() && timeout <= MAX_TIMEOUT);
            }
        }
    }
}
