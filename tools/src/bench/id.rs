//! What names a sweep: its start, and the revision of the sources.

use std::path::Path;
use std::process::Command;

/// A file by which a checkout of this project is known.
const OF_THIS_PROJECT: &str = "tools/src/bench/sample.rs";

/// `seconds` since 1970 as RFC 3339 in UTC: `2026-11-30T16:15:13Z`.
pub(super) fn rfc3339(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z",
        rest / 3600,
        rest / 60 % 60,
        rest % 60
    )
}

/// The day's date in the Gregorian calendar, by counting from 1 March 0000,
/// where leap days come last.
fn date(days_since_1970: u64) -> (u64, u64, u64) {
    let days = days_since_1970.saturating_add(719_468);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = era.saturating_mul(400) + year + u64::from(month <= 2);
    (year, month, day_of_month)
}

/// The revision of the checkout that this program, or else the working
/// directory, lies in; `-dirty` behind it where sources are changed; `unknown`
/// outside of one.
#[must_use]
pub fn revision() -> String {
    let program = std::env::current_exe().ok();
    let places = [
        program.as_deref().and_then(Path::parent),
        Some(Path::new(".")),
    ];
    places
        .into_iter()
        .flatten()
        .find_map(revision_at)
        .unwrap_or_else(|| "unknown".to_owned())
}

fn revision_at(place: &Path) -> Option<String> {
    let git = |arguments: &[&str]| {
        let output = Command::new("git")
            .arg("-C")
            .arg(place)
            .args(arguments)
            .output()
            .ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    let root = git(&["rev-parse", "--show-toplevel"])?;
    if !Path::new(&root).join(OF_THIS_PROJECT).is_file() {
        return None;
    }
    let revision = git(&["rev-parse", "--short=12", "HEAD"])?;
    // Documents, and with them saved results, are no part of the programs.
    let sources = ["--", ":(top)", ":(top,exclude)docs"];
    let changed = git(&[
        &["status", "--porcelain", "--untracked-files=no"],
        &sources[..],
    ]
    .concat())?;
    let mark = if changed.is_empty() { "" } else { "-dirty" };
    Some(format!("{revision}{mark}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_that_people_know() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (1_796_055_313, "2026-11-30T16:15:13Z"),
        ] {
            assert_eq!(rfc3339(seconds), text);
        }
    }

    #[test]
    fn every_day_follows_the_one_before() {
        let mut before = date(0);
        for day in 1..200_000 {
            let now = date(day);
            let next_in_month = (before.0, before.1, before.2 + 1);
            let first = |(year, month, day): (u64, u64, u64)| {
                day == 1 && (year * 12 + month) == (before.0 * 12 + before.1) + 1
            };
            assert!(now == next_in_month || first(now), "{before:?} {now:?}");
            before = now;
        }
    }

    #[test]
    fn a_place_outside_of_the_project_has_no_revision() {
        let other = tempfile::tempdir().unwrap();
        assert_eq!(revision_at(other.path()), None);
    }
}
