//! A child process' output as it comes: kept whole, searched, and waited for.
//!
//! The reader thread owns the pipe; it ends when the other side closes it. It
//! can be held, as a reader that has stopped reading.

use std::io::Read;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

#[derive(Debug, Default)]
struct Text {
    bytes: Vec<u8>,
    closed: bool,
    held: bool,
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
                while text.held {
                    text = shared
                        .grown
                        .wait(text)
                        .unwrap_or_else(PoisonError::into_inner);
                }
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

    /// Holds the reader after what it is reading, at most a few KiB, or lets
    /// it go on.
    pub(crate) fn hold(&self, held: bool) {
        self.shared.lock().held = held;
        self.shared.grown.notify_all();
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

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    #[test]
    fn a_held_reader_leaves_the_pipe_full_until_it_is_released() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let log = Log::of(reader);
        writer.write_all(b"first\n").unwrap();
        log.find("first", 0, LIMIT).unwrap();
        log.hold(true);
        // More than a pipe holds: it can be written only when it is read.
        let thread = thread::spawn(move || writer.write_all(&[b'x'; 1 << 20]).unwrap());
        assert!(log.find("x", 0, Duration::from_millis(50)).is_err());
        assert!(!thread.is_finished());
        log.hold(false);
        thread.join().unwrap();
        assert_eq!(log.whole(LIMIT).unwrap().len(), 6 + (1 << 20));
    }
}
