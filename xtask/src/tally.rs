//! Counting results from what test programs print.

use std::collections::BTreeSet;
use std::fmt;

/// Results so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
    /// Names of those that failed, as far as they are known.
    pub(crate) failures: Vec<String>,
}

impl Tally {
    /// Adds another's counts.
    pub(crate) fn add(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.failures.extend(other.failures);
    }

    /// Counts a step that is no test of its own, such as a lint.
    pub(crate) fn step(&mut self, name: &str, ok: bool) {
        if ok {
            self.passed += 1;
        } else {
            self.failed += 1;
            self.failures.push(name.to_owned());
        }
    }

    /// Takes in a line of `cargo test` or `cargo nextest run`, if it sums up.
    pub(crate) fn summary_line(&mut self, line: &str) {
        let line = line.trim();
        let counts = if let Some(counts) = line.strip_prefix("test result: ") {
            counts
        } else if let Some((_, counts)) = line
            .strip_prefix("Summary [")
            .and_then(|rest| rest.split_once("run: "))
        {
            counts
        } else {
            return;
        };
        let count = |word: &str| -> u64 {
            counts
                .split([',', ';', '.', '('])
                .filter_map(|part| part.trim().strip_suffix(word)?.trim().parse::<u64>().ok())
                .sum()
        };
        self.passed += count("passed");
        self.failed += count("failed") + count("timed out");
        self.skipped += count("ignored") + count("skipped");
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} passed, {} failed, {} skipped",
            self.passed, self.failed, self.skipped
        )
    }
}

/// Follows one run of the tests with guests, whose names are known before.
#[derive(Debug)]
pub(crate) struct Follower {
    missing: BTreeSet<String>,
    tally: Tally,
}

impl Follower {
    /// A run in which all of `names` shall report.
    pub(crate) fn new(names: impl IntoIterator<Item = String>) -> Self {
        Self {
            missing: names.into_iter().collect(),
            tally: Tally::default(),
        }
    }

    /// Takes in a line of the test program; true when it is a result.
    pub(crate) fn line(&mut self, line: &str) -> bool {
        let Some((name, outcome)) = line
            .strip_prefix("test ")
            .and_then(|rest| rest.split_once(" ... "))
        else {
            return false;
        };
        let name = name.trim();
        if !self.missing.remove(name) {
            return false;
        }
        let outcome = outcome.trim();
        if outcome.ends_with("ok") {
            self.tally.passed += 1;
        } else if outcome.ends_with("ignored") {
            self.tally.skipped += 1;
        } else {
            self.tally.failed += 1;
            self.tally.failures.push(name.to_owned());
        }
        true
    }

    /// The end of the run: what never reported has failed.
    pub(crate) fn end(mut self) -> Tally {
        for name in self.missing {
            self.tally.failed += 1;
            self.tally.failures.push(format!("{name} (no result)"));
        }
        self.tally
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_both_programs_are_read() {
        let mut tally = Tally::default();
        tally.summary_line(
            "test result: FAILED. 5 passed; 2 failed; 1 ignored; 0 measured; 3 filtered out; \
             finished in 0.17s",
        );
        tally.summary_line(
            "     Summary [   1.203s] 312 tests run: 310 passed (1 slow), 1 failed, 1 timed out, \
             4 skipped",
        );
        tally.summary_line("     Summary [   0.203s] 1 test run: 1 passed, 0 skipped");
        tally.summary_line("test boot::elf ... 5 passed");
        assert_eq!(tally.to_string(), "316 passed, 4 failed, 5 skipped");
    }

    #[test]
    fn what_never_reports_has_failed() {
        let names = ["a::b", "a::c", "a::d", "a::e"].map(str::to_owned);
        let mut follower = Follower::new(names);
        assert!(follower.line("test a::b    ... ok"));
        assert!(!follower.line("test a::b    ... ok"), "twice");
        assert!(follower.line("test a::c    ... FAILED"));
        assert!(follower.line("test a::d    ... ignored"));
        assert!(!follower.line("test result: FAILED. 1 passed; 1 failed"));
        let tally = follower.end();
        assert_eq!(tally.to_string(), "1 passed, 2 failed, 1 skipped");
        assert_eq!(tally.failures, ["a::c", "a::e (no result)"]);
    }
}
