//! Figures as people read them, with the unit that they really have.
//!
//! A figure of the virtual KVM host is a count of instructions, or, by its wall
//! clock, seconds of an emulated machine. Plain seconds are of native KVM alone.

use serde::Serialize;

use crate::bench::sample::{Clock, Host};

/// What a figure's nanoseconds are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Wall clock of native KVM.
    Seconds,
    /// The virtual host's instruction clock.
    Instructions,
    /// Wall clock of the virtual host: how busy the emulator was is in it.
    EmulatedSeconds,
}

impl Unit {
    /// The unit of a host's figures.
    #[must_use]
    pub fn of(host: &Host) -> Self {
        match (host.clock, host.native) {
            (Clock::Instructions, _) => Self::Instructions,
            (Clock::Wall, true) => Self::Seconds,
            (Clock::Wall, false) => Self::EmulatedSeconds,
        }
    }

    /// A figure with its unit: `517.9 M instr`, `1.234 s`, `38.113 ms`.
    #[must_use]
    pub fn show(self, ns: f64) -> String {
        match self {
            Self::Instructions => format!("{} M instr", scaled(ns / 1e6)),
            Self::Seconds => seconds(ns, ""),
            Self::EmulatedSeconds => seconds(ns, "emulated "),
        }
    }

    /// The figure as a plain number of [`Unit::axis`], for plots.
    #[must_use]
    pub fn scale(self, ns: f64) -> f64 {
        match self {
            Self::Instructions => ns / 1e6,
            Self::Seconds | Self::EmulatedSeconds => ns / 1e9,
        }
    }

    /// The unit of [`Unit::scale`].
    #[must_use]
    pub fn axis(self) -> &'static str {
        match self {
            Self::Instructions => "million instructions",
            Self::Seconds => "seconds",
            Self::EmulatedSeconds => "emulated seconds",
        }
    }
}

fn seconds(ns: f64, prefix: &str) -> String {
    if ns.abs() >= 1e9 {
        format!("{} {prefix}s", scaled(ns / 1e9))
    } else {
        format!("{} {prefix}ms", scaled(ns / 1e6))
    }
}

/// Four digits at least, and one behind the point: `1,627.5`, `0.0127`.
fn scaled(value: f64) -> String {
    let magnitude = value.abs();
    let digits = match magnitude {
        m if m >= 100.0 => 1,
        m if m >= 10.0 => 2,
        m if m >= 1.0 => 3,
        m if m < 0.000_05 => 0,
        _ => 4,
    };
    group_text(&format!("{value:.digits$}"))
}

/// A count with a comma for each thousand.
#[must_use]
pub fn grouped(count: u64) -> String {
    group_text(&count.to_string())
}

/// A count that may be a median: whole if it is.
#[must_use]
pub fn count(value: f64) -> String {
    if value.fract() == 0.0 {
        group_text(&format!("{value:.0}"))
    } else {
        group_text(&format!("{value:.1}"))
    }
}

/// A share as percent with the digits that small ones need: `0.0031 %`,
/// `1.52 %`, `104 %`.
#[must_use]
pub fn percent(share: f64) -> String {
    let percent = share * 100.0;
    match percent.abs() {
        p if p >= 100.0 => format!("{percent:.0} %"),
        p if p >= 10.0 => format!("{percent:.1} %"),
        p if p >= 0.1 => format!("{percent:.2} %"),
        0.0 => "0 %".to_owned(),
        p if p < 0.0001 => "<0.0001 %".to_owned(),
        _ => format!("{percent:.4} %"),
    }
}

/// The same with its sign.
#[must_use]
pub fn change(share: f64) -> String {
    if share > 0.0 {
        format!("+{}", percent(share))
    } else {
        percent(share)
    }
}

/// Bytes of a process: `5.3 MiB`.
#[must_use]
pub fn mebibytes(bytes: f64) -> String {
    format!("{} MiB", group_text(&format!("{:.1}", bytes / 1_048_576.0)))
}

/// A size as the article writes it: `100 GB`, `1 TB`, `256 MB`, powers of 1024.
#[must_use]
pub fn article_size(bytes: u64) -> String {
    crate::units::format_size(bytes).replace("iB", "B")
}

/// An LMB size as the article writes it, always in MB: `4096 MB`.
#[must_use]
pub fn article_lmb(bytes: u64) -> String {
    if bytes.is_multiple_of(1 << 20) {
        format!("{} MB", bytes >> 20)
    } else {
        article_size(bytes)
    }
}

fn group_text(text: &str) -> String {
    let (sign, rest) = match text.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", text),
    };
    let (whole, fraction) = rest.split_at(rest.find('.').unwrap_or(rest.len()));
    let mut out = sign.to_owned();
    for (index, c) in whole.chars().enumerate() {
        if index > 0 && whole.len().saturating_sub(index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out.push_str(fraction);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn figures_of_the_virtual_host_are_never_plain_seconds() {
        assert_eq!(Unit::Instructions.show(517_948_000.0), "517.9 M instr");
        assert_eq!(Unit::Instructions.show(1_627_456_000.0), "1,627.5 M instr");
        assert_eq!(Unit::Instructions.show(12_700.0), "0.0127 M instr");
        assert_eq!(Unit::EmulatedSeconds.show(8.411e9), "8.411 emulated s");
        assert_eq!(Unit::EmulatedSeconds.show(8.411e6), "8.411 emulated ms");
        assert_eq!(Unit::Seconds.show(12.345e9), "12.35 s");
        assert_eq!(Unit::Seconds.show(38_112_999.0), "38.11 ms");
        assert_eq!(Unit::Seconds.show(0.0), "0 ms");
    }

    #[test]
    fn units_of_hosts() {
        let host = |clock, native| Host {
            kind: String::new(),
            native,
            clock,
            kernel: String::new(),
            cpus: 1,
            memory_bytes: 0,
        };
        assert_eq!(Unit::of(&host(Clock::Wall, true)), Unit::Seconds);
        assert_eq!(Unit::of(&host(Clock::Wall, false)), Unit::EmulatedSeconds);
        assert_eq!(
            Unit::of(&host(Clock::Instructions, false)),
            Unit::Instructions
        );
    }

    #[test]
    fn shares_keep_the_digits_that_matter() {
        assert_eq!(percent(0.000_03), "0.0030 %");
        assert_eq!(percent(0.0152), "1.52 %");
        assert_eq!(percent(0.0), "0 %");
        assert_eq!(percent(1e-9), "<0.0001 %");
        assert_eq!(change(0.015), "+1.50 %");
        assert_eq!(change(-0.25), "-25.0 %");
        assert_eq!(percent(11.1), "1110 %");
    }

    #[test]
    fn sizes_as_the_article_writes_them() {
        assert_eq!(article_size(100 << 30), "100 GB");
        assert_eq!(article_size(32 << 40), "32 TB");
        assert_eq!(article_lmb(4 << 30), "4096 MB");
        assert_eq!(grouped(524_288), "524,288");
        assert_eq!(count(2.5), "2.5");
        assert_eq!(count(8192.0), "8,192");
    }

    proptest! {
        #[test]
        fn grouping_adds_commas_alone(count in any::<u64>()) {
            let text = grouped(count);
            prop_assert_eq!(text.replace(',', ""), count.to_string());
            let first = text.split(',').next().map_or(0, str::len);
            prop_assert!((1..=3).contains(&first));
            prop_assert!(text.split(',').skip(1).all(|part| part.len() == 3));
        }
    }
}
