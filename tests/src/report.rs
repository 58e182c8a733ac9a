//! What a failed test shows beside its error: the logs of the VMs it used.
//!
//! A VM hands its logs in when it is dropped; the test's runner takes them
//! when the test failed and forgets them otherwise. They are kept by thread,
//! since a test runs in one.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use anyhow::Result;

thread_local! {
    static LOGS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
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
        Err(panic) => panic_text(panic.as_ref()),
    };
    Err(format!("{reason}\n{}", logs.join("\n")))
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("the test panicked")
        .to_owned()
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
    fn a_panic_is_a_failure_with_its_text() {
        let report = run(|| panic!("three of {}", 4)).unwrap_err();
        assert!(report.starts_with("three of 4"), "{report}");
    }
}
