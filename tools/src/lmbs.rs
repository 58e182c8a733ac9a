//! Indices of LMBs as people write them on a command line.
//!
//! An index is `0x12` or `18`; a range is two of them with `..` between, both
//! ends included, as `0x12..0x1f`. Nothing else is one: a wrong index would
//! take away memory that nobody meant, so there are no blanks, signs, prefixes
//! of other bases or numbers that read differently elsewhere (`012` is 10 in
//! C). Which indices a VM has is the VM's to say.

use lmb_vmm::protocol::LmbSpan;

/// Why a text names no LMBs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LmbError {
    /// Nothing where an index should be.
    #[error("`{0}` lacks an index; write one LMB like 0x12 or 18, several like 0x12..0x1f")]
    Missing(String),
    /// Not a number of the two forms.
    #[error(
        "`{0}` is no LMB index; write it in hexadecimal like 0x12 or in decimal like 18, without \
         blanks, signs or leading zeros"
    )]
    NotAnIndex(String),
    /// More than two ends.
    #[error("`{0}` has more than two ends; write a range like 0x12..0x1f, its end included")]
    NotARange(String),
    /// More than 64 bits.
    #[error("`{0}` is more than 64 bits hold, and no VM has so many LMBs")]
    TooLarge(String),
    /// The end comes before the start.
    #[error("`{text}` ends before it starts; did you mean {last:#x}..{first:#x}?")]
    Reversed {
        /// As it was written.
        text: String,
        /// What stands first.
        first: u64,
        /// What stands last.
        last: u64,
    },
}

/// Reads an index or a range.
///
/// # Errors
/// [`LmbError`] names the text and the forms that are understood.
pub fn parse_span(text: &str) -> Result<LmbSpan, LmbError> {
    let (first, last) = match text.split_once("..") {
        None => {
            let index = parse_index(text, text)?;
            (index, index)
        }
        Some((_, last)) if last.contains("..") => return Err(LmbError::NotARange(text.to_owned())),
        Some((first, last)) => (parse_index(first, text)?, parse_index(last, text)?),
    };
    let Some(beyond) = last.checked_sub(first) else {
        return Err(LmbError::Reversed {
            text: text.to_owned(),
            first,
            last,
        });
    };
    let count = beyond
        .checked_add(1)
        .ok_or_else(|| LmbError::TooLarge(text.to_owned()))?;
    Ok(LmbSpan { first, count })
}

/// Reads one index, a part of `whole`.
fn parse_index(text: &str, whole: &str) -> Result<u64, LmbError> {
    if text.is_empty() {
        return Err(LmbError::Missing(whole.to_owned()));
    }
    let (digits, radix) = match text.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    let all_digits = digits.chars().all(|c| c.is_digit(radix));
    let octal = radix == 10 && digits.len() > 1 && digits.starts_with('0');
    if digits.is_empty() || !all_digits || octal {
        return Err(LmbError::NotAnIndex(text.to_owned()));
    }
    // All digits are of the radix: what fails is too large.
    u64::from_str_radix(digits, radix).map_err(|_| LmbError::TooLarge(text.to_owned()))
}

/// A run of LMBs as [`parse_span`] reads it: `0x12`, `0x12..0x1f`.
#[must_use]
pub fn format_span(first: u64, count: u64) -> String {
    let last = first.saturating_add(count.saturating_sub(1));
    if last == first {
        format!("{first:#x}")
    } else {
        format!("{first:#x}..{last:#x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn span(first: u64, count: u64) -> Result<LmbSpan, LmbError> {
        Ok(LmbSpan { first, count })
    }

    #[test]
    fn indices_and_ranges_people_write() {
        for (text, first, count) in [
            ("0", 0, 1),
            ("18", 18, 1),
            ("0x12", 18, 1),
            ("0x0012", 18, 1),
            ("0xaBc", 0xabc, 1),
            ("0x12..0x1f", 18, 14),
            ("18..0x12", 18, 1),
            ("0..4095", 0, 4096),
            ("0xffffffffffffffff", u64::MAX, 1),
        ] {
            assert_eq!(parse_span(text), span(first, count), "{text}");
        }
    }

    #[test]
    fn what_might_mean_another_lmb_is_refused() {
        for text in [
            " 18", "18 ", "+18", "-1", "0X12", "12h", "1_8", "18,", "0x", "0x1g", "x12", "0b1",
            "0o7", "012", "00", "1e3", "1.0", "18M", "٣", "0x 1", "#18", "lmb18",
        ] {
            assert_eq!(
                parse_span(text),
                Err(LmbError::NotAnIndex(text.to_owned())),
                "{text}"
            );
        }
        for text in ["", "..", "1..", "..1"] {
            assert_eq!(
                parse_span(text),
                Err(LmbError::Missing(text.to_owned())),
                "{text:?}"
            );
        }
        for text in ["1..2..3", "1....2", "1..2.."] {
            assert_eq!(
                parse_span(text),
                Err(LmbError::NotARange(text.to_owned())),
                "{text}"
            );
        }
        for text in ["1...2", "1..=2", "1-2", "1:2", "1.. 2", "1..+2", "1..-2"] {
            assert!(
                matches!(parse_span(text), Err(LmbError::NotAnIndex(_))),
                "{text}"
            );
        }
    }

    #[test]
    fn a_reversed_range_is_told_the_other_way_round() {
        let error = parse_span("0x1f..18").unwrap_err().to_string();
        assert!(error.contains("0x12..0x1f?"), "{error}");
    }

    #[test]
    fn numbers_past_64_bits_are_refused() {
        for text in [
            "18446744073709551616",
            "0x10000000000000000",
            "1..18446744073709551616",
            "0..0xffffffffffffffff",
        ] {
            assert!(
                matches!(parse_span(text), Err(LmbError::TooLarge(_))),
                "{text}"
            );
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back_the_same(first: u64, beyond: u64) {
            let count = beyond.min(u64::MAX - first).saturating_add(1).min(u64::MAX - first).max(1);
            prop_assert_eq!(parse_span(&format_span(first, count)), span(first, count));
        }

        #[test]
        fn decimal_and_hexadecimal_agree(first in 0..1_u64 << 40, beyond in 0..1_u64 << 20) {
            let last = first + beyond;
            let wanted = span(first, beyond + 1);
            prop_assert_eq!(parse_span(&format!("{first}..{last}")), wanted.clone());
            prop_assert_eq!(parse_span(&format!("{first:#x}..{last}")), wanted.clone());
            prop_assert_eq!(parse_span(&format!("0x{first:X}..0x{last:X}")), wanted);
        }

        /// Nothing beside a legal text is one, wherever it stands.
        #[test]
        fn a_stray_character_is_always_refused(
            first in 1_u64..1_000_000, at in 0_usize..8, stray in "[^0-9a-fA-F.x]",
        ) {
            for text in [first.to_string(), format!("{first:#x}"), format!("{first:#x}..{first:#x}")] {
                let mut spoilt = text.clone();
                spoilt.insert_str(at.min(text.len()), &stray);
                prop_assert!(parse_span(&spoilt).is_err(), "{}", spoilt);
            }
        }

        /// Whatever is accepted means what a plain reading of it says.
        #[test]
        fn accepted_texts_mean_what_they_say(text in "[0-9a-fx+ ._-]{0,12}") {
            if let Ok(LmbSpan { first, count }) = parse_span(&text) {
                let ends: Vec<&str> = text.split("..").collect();
                let plain = |t: &str| match t.strip_prefix("0x") {
                    Some(hex) => u64::from_str_radix(hex, 16),
                    None => t.parse(),
                };
                prop_assert!(ends.len() <= 2 && count >= 1);
                prop_assert_eq!(plain(ends[0]), Ok(first));
                prop_assert_eq!(plain(ends[ends.len() - 1]), Ok(first + (count - 1)));
                prop_assert!(!text.contains(['+', '-', ' ', '_']));
            }
        }
    }
}
