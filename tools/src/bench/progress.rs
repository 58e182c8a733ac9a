//! How far a sweep is: a bar with an estimate, on a terminal alone.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A bar over the jobs of a sweep.
#[derive(Debug)]
pub(super) struct SweepProgress {
    bar: Option<ProgressBar>,
}

impl SweepProgress {
    pub(super) fn new(jobs: usize) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(u64::try_from(jobs).unwrap_or(u64::MAX));
            let template = "{bar:24} {pos}/{len} {elapsed} (about {eta} left) {wide_msg}";
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            bar.set_message("starting");
            bar.enable_steady_tick(Duration::from_millis(500));
            bar
        });
        Self { bar }
    }

    pub(super) fn begins(&self, job: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(job.to_owned());
        }
    }

    pub(super) fn ended(&self) {
        if let Some(bar) = &self.bar {
            bar.inc(1);
        }
    }

    /// Prints something above the bar.
    pub(super) fn over(&self, print: impl FnOnce()) {
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }
}

impl Drop for SweepProgress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
