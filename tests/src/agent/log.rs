//! Messages in the guest's kernel log, which outlives the agent and shows on
//! the console as far as the guest's command line lets it.

use std::fmt::Display;
use std::fs;

/// The kernel log's levels (include/linux/kern_levels.h).
const ERROR: u8 = 3;
const INFO: u8 = 6;

/// Says what failed and why.
pub(crate) fn error(what: &str, why: &dyn Display) {
    write(ERROR, &format!("cannot {what}: {why}"));
}

/// Says what is going on.
pub(crate) fn info(text: &str) {
    write(INFO, text);
}

/// Sends panics to the kernel log: nobody reads PID 1's standard error.
pub(crate) fn take_panics() {
    std::panic::set_hook(Box::new(|panic| write(ERROR, &panic.to_string())));
}

fn write(level: u8, text: &str) {
    let line = format!("<{level}>lmb-guest-agent: {text}\n");
    // There is nowhere else to complain to.
    let _ = fs::write("/dev/kmsg", line);
}
