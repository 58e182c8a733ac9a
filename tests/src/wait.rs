//! Waiting, always with a deadline. The only place in the tests that sleeps.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Between two looks at something that cannot be waited for.
const PAUSE: Duration = Duration::from_millis(10);

/// A guest's boot, under an emulator on a busy machine.
pub const BOOT: Duration = Duration::from_secs(120);
/// A command in a guest, or the end of a process.
pub const SHORT: Duration = Duration::from_secs(30);
/// A change of the guest's memory.
pub const CHANGE: Duration = Duration::from_secs(120);

/// Looks again and again until `look` finds something. `what` completes the
/// sentence "waited … for".
///
/// # Errors
/// The first error of `look`, or that the time passed.
pub fn until<T>(
    what: &str,
    limit: Duration,
    mut look: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let start = Instant::now();
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if start.elapsed() > limit {
            bail!("waited {} s in vain for {what}", limit.as_secs());
        }
        thread::sleep(PAUSE);
    }
}

/// Lets time pass in which something must *not* happen.
pub fn let_pass(time: Duration) {
    thread::sleep(time);
}
