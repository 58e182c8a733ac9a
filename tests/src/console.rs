//! A child process' output as it comes: kept whole, searched, and waited for.
//!
//! The reader thread owns the pipe; it ends when the other side closes it.

use std::io::Read;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

#[derive(Debug, Default)]
struct Text {
    bytes: Vec<u8>,
    closed: bool,
}

#[derive(Debug, Default)]
struct Shared {
    text: Mutex<Text>,
    grown: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Text> {
        self.text.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a process has written so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    shared: Arc<Shared>,
}

impl Log {
    /// Reads `pipe` to its end in a thread.
    pub(crate) fn of(mut pipe: impl Read + Send + 'static) -> Self {
        let log = Self::default();
        let shared = Arc::clone(&log.shared);
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            loop {
                let count = pipe.read(&mut buffer).unwrap_or(0);
                let mut text = shared.lock();
                text.bytes
                    .extend_from_slice(buffer.get(..count).unwrap_or_default());
                text.closed = count == 0;
                shared.grown.notify_all();
                if count == 0 {
                    return;
                }
            }
        });
        log
    }

    /// How much there is.
    pub(crate) fn len(&self) -> usize {
        self.shared.lock().bytes.len()
    }

    /// All of it, with what is no UTF-8 replaced.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.shared.lock().bytes).into_owned()
    }

    /// Waits until the pipe is closed; all of it then.
    ///
    /// # Errors
    /// When the time passed.
    pub(crate) fn whole(&self, limit: Duration) -> Result<String> {
        let what = "the end of a process' output";
        self.wait(what, limit, |text| text.closed.then_some(()))?;
        Ok(self.text())
    }

    /// Waits for `needle` at `from` or later: what stands between the two,
    /// and where the needle ends.
    ///
    /// # Errors
    /// When the time passed or the output ended first.
    pub(crate) fn find(
        &self,
        needle: &str,
        from: usize,
        limit: Duration,
    ) -> Result<(String, usize)> {
        self.wait(&format!("{needle:?} on the console"), limit, |text| {
            let new = text.bytes.get(from..)?;
            let at = new
                .windows(needle.len())
                .position(|part| part == needle.as_bytes())?;
            let before = String::from_utf8_lossy(new.get(..at)?).into_owned();
            Some((before, from + at + needle.len()))
        })
    }

    fn wait<T>(&self, what: &str, limit: Duration, look: impl Fn(&Text) -> Option<T>) -> Result<T> {
        let end = Instant::now() + limit;
        let mut text = self.shared.lock();
        loop {
            if let Some(found) = look(&text) {
                return Ok(found);
            }
            if text.closed {
                bail!("the output ended before {what}");
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                bail!("waited {} s in vain for {what}", limit.as_secs());
            }
            text = self
                .shared
                .grown
                .wait_timeout(text, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}
