//! A bar that shows how far a long operation is, on a terminal alone.
//!
//! The bar asks the VM for its memory five times a second; what it learns is
//! for the eye. Every figure that is printed or saved comes from the
//! operation's own stamps.

use std::io::IsTerminal;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use lmb_vmm::protocol::MemoryInfo;

use crate::client::Client;
use crate::units::format_size;

/// Operations shorter than this show no bar.
const QUIET: Duration = Duration::from_secs(2);
const PERIOD: Duration = Duration::from_millis(200);

/// A bar that appears after two seconds and goes when it is dropped.
#[derive(Debug)]
pub(crate) struct Watch {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Starts watching the VM at `client` if standard error is a terminal.
    #[must_use]
    pub(crate) fn start(client: &Client) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self {
                stop: None,
                thread: None,
            };
        }
        let client = client.clone().with_timeout(QUIET);
        let (stop, stopped) = channel();
        Self {
            stop: Some(stop),
            thread: std::thread::Builder::new()
                .name("progress".to_owned())
                .spawn(move || watch(&client, &stopped))
                .ok(),
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A failed bar is no reason to fail the operation it showed.
            let _ = thread.join();
        }
    }
}

fn watch(client: &Client, stopped: &Receiver<()>) {
    let stopped_within =
        |time| !matches!(stopped.recv_timeout(time), Err(RecvTimeoutError::Timeout));
    if stopped_within(QUIET) {
        return;
    }
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template("{spinner} {bar:30} {msg} [{elapsed_precise}]")
    {
        bar.set_style(style);
    }
    let mut origin = None;
    loop {
        if let Ok(info) = client.memory() {
            let origin = *origin.get_or_insert(start_of(&info));
            let step = step(origin, info.total_bytes, info.target_bytes);
            bar.set_length(step.1);
            bar.set_position(step.0);
            bar.set_message(format!(
                "{} of {}",
                format_size(info.total_bytes),
                format_size(info.target_bytes)
            ));
        }
        bar.tick();
        if stopped_within(PERIOD) {
            break;
        }
    }
    bar.finish_and_clear();
}

fn start_of(info: &MemoryInfo) -> u64 {
    info.operation
        .as_ref()
        .map_or(info.total_bytes, |operation| operation.from_bytes)
}

/// How far along and how far in all, in bytes, for growing and shrinking.
fn step(origin: u64, now: u64, target: u64) -> (u64, u64) {
    let length = origin.abs_diff(target);
    (length.saturating_sub(now.abs_diff(target)), length)
}

#[cfg(test)]
mod tests {
    use super::step;

    #[test]
    fn growing_and_shrinking_both_move_forward() {
        assert_eq!(step(4, 4, 8), (0, 4));
        assert_eq!(step(4, 7, 8), (3, 4));
        assert_eq!(step(8, 8, 4), (0, 4));
        assert_eq!(step(8, 4, 4), (4, 4));
        // A superseding operation may move the target past the origin.
        assert_eq!(step(4, 0, 8), (0, 4));
    }
}
