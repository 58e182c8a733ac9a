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

    /// Takes in a line of `cargo test` or `cargo nextest run`, if it sums up or
    /// names a test that failed. A failed test's own output, which nextest
    /// shows indented, may look like the former's.
    pub(crate) fn line(&mut self, line: &str) {
        if let Some(name) = failed_test(line)
            && !self.failures.iter().any(|known| known == name)
        {
            self.failures.push(name.to_owned());
        }
        let counts = if let Some(counts) = line.strip_prefix("test result: ") {
            counts
        } else if let Some((_, counts)) = line
            .trim_start()
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

/// The test that `line` says has failed.
fn failed_test(line: &str) -> Option<&str> {
    if let Some(rest) = line.strip_prefix("test ") {
        return rest.strip_suffix(" ... FAILED").map(str::trim);
    }
    // FAIL [   0.155s] (110/587) package::binary name, and the same without
    // the number in its list at the end.
    let rest = line.trim_start();
    let rest = ["FAIL [", "TIMEOUT ["]
        .iter()
        .find_map(|word| rest.strip_prefix(word))?;
    let (_, name) = rest.split_once("] ")?;
    let name = match name.trim_start().strip_prefix('(') {
        Some(numbered) => numbered.split_once(") ")?.1,
        None => name,
    };
    Some(name.trim())
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
        tally.line(
            "test result: FAILED. 5 passed; 2 failed; 1 ignored; 0 measured; 3 filtered out; \
             finished in 0.17s",
        );
        tally.line(
            "     Summary [   1.203s] 312 tests run: 310 passed (1 slow), 1 failed, 1 timed out, \
             4 skipped",
        );
        tally.line("     Summary [   0.203s] 1 test run: 1 passed, 0 skipped");
        tally.line("test boot::elf ... 5 passed");
        // What a failed test printed.
        tally.line("    test result: FAILED. 0 passed; 1 failed; 0 ignored");
        assert_eq!(tally.to_string(), "316 passed, 4 failed, 5 skipped");
        assert_eq!(tally.failures, [""; 0]);
    }

    #[test]
    fn failed_tests_of_both_programs_are_named_once() {
        let mut tally = Tally::default();
        for line in [
            "        FAIL [   0.155s] (110/587) lmb-memory::huge_pages 1G::short",
            "    test 1G::short ... FAILED",
            "        FAIL [   0.155s] (110/587) lmb-memory::huge_pages 1G::short",
            "     TIMEOUT [  60.155s] lmb-vmm api::tests::slow",
            "        PASS [   0.007s] ( 29/587) lmb-devices mem::fine",
            "test units::tests::odd ... FAILED",
            "test units::tests::even ... ok",
        ] {
            tally.line(line);
        }
        let names = [
            "lmb-memory::huge_pages 1G::short",
            "lmb-vmm api::tests::slow",
            "units::tests::odd",
        ];
        assert_eq!(tally.failures, names);
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
