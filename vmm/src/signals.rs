//! SIGTERM and SIGINT as a descriptor of the event loop, so that a VM ends in
//! order.

use std::io;
use std::sync::OnceLock;

use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};
use vmm_sys_util::signal::register_signal_handler;

/// Written by the handler, for the life of the process.
static SIGNALLED: OnceLock<EventFd> = OnceLock::new();

extern "C" fn on_signal(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    if let Some(event) = SIGNALLED.get() {
        // A full counter is a signal that is pending already.
        let _ = event.write(1);
    }
}

/// Takes the signals over. Before this call they end the process at once.
///
/// # Errors
/// When the handler or its descriptor cannot be had.
pub fn watch() -> io::Result<()> {
    if SIGNALLED.get().is_none() {
        let _ = SIGNALLED.set(EventFd::new(EFD_NONBLOCK)?);
    }
    for signal in [libc::SIGTERM, libc::SIGINT] {
        register_signal_handler(signal, on_signal)
            .map_err(|errno| io::Error::from_raw_os_error(errno.errno()))?;
    }
    Ok(())
}

/// Readable once a signal has come; none before [`watch`].
#[must_use]
pub fn event() -> Option<&'static EventFd> {
    SIGNALLED.get()
}
