//! What a failed test shows beside its error: the logs of the VMs it used.
//!
//! A VM hands its logs in when it is dropped; the test's runner takes them
//! when the test failed and forgets them otherwise. They are kept by thread,
//! since a test runs in one.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use anyhow::Result;

thread_local! {
    static LOGS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Has panics kept for the report in place of being printed in the middle of
/// a line of results. For test programs with one runner.
pub fn keep_panics() {
    std::panic::set_hook(Box::new(|panic| PANIC.set(Some(panic.to_string()))));
}

/// Hands in a log for the report of the running test.
pub fn attach(log: String) {
    LOGS.with_borrow_mut(|logs| logs.push(log));
}

/// Runs a test; its failure comes with the logs handed in meanwhile.
///
/// # Errors
/// The report of a test that returned an error or panicked.
pub fn run(test: impl FnOnce() -> Result<()>) -> Result<(), String> {
    LOGS.take();
    let outcome = catch_unwind(AssertUnwindSafe(test));
    let logs = LOGS.take();
    let reason = match outcome {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(error)) => format!("{error:?}"),
        Err(_) => PANIC
            .take()
            .unwrap_or_else(|| "the test panicked".to_owned()),
    };
    Err(format!("{reason}\n{}", logs.join("\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_carries_the_logs_of_its_own_test() {
        attach("of an earlier test".to_owned());
        let report = run(|| {
            attach("serial: oops".to_owned());
            anyhow::bail!("no memory")
        })
        .unwrap_err();
        assert!(report.starts_with("no memory"), "{report}");
        assert!(report.contains("serial: oops"), "{report}");
        assert!(!report.contains("earlier"), "{report}");
        assert_eq!(run(|| Ok(())), Ok(()));
    }

    #[test]
    fn a_panic_is_a_failure_with_its_text_and_place() {
        let hook = std::panic::take_hook();
        keep_panics();
        let report = run(|| panic!("three of {}", 4)).unwrap_err();
        std::panic::set_hook(hook);
        assert!(report.contains("three of 4"), "{report}");
        assert!(report.contains("report.rs"), "{report}");
    }
}
