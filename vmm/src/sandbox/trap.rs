//! What is said when the sandbox stops a system call: the call was not made,
//! and the process ends here. This is one of the files where unsafe code is
//! allowed.
//!
//! A filter answers with SIGSYS, which no thread can put off: a thread that
//! blocks or ignores it is killed with the process by the kernel.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::fmt::{self, Write};
use std::io;
use std::os::fd::AsFd;

use vmm_sys_util::signal::register_signal_handler;

use super::SandboxError;

thread_local! {
    static THREAD: Cell<&'static str> = const { Cell::new("main") };
}

/// Notes which kind of thread this is, for the message.
pub(super) fn name_thread(name: &'static str) {
    THREAD.set(name);
}

/// Takes SIGSYS over.
pub(super) fn watch() -> Result<(), SandboxError> {
    register_signal_handler(libc::SIGSYS, on_stopped_call)
        .map_err(|errno| SandboxError::new("handle SIGSYS", errno))
}

/// Text on the stack: a signal handler must not allocate.
struct Line {
    bytes: [u8; 512],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.bytes.get_mut(self.len..).unwrap_or_default();
        let taken = text.len().min(room.len());
        room[..taken].copy_from_slice(&text.as_bytes()[..taken]);
        self.len += taken;
        Ok(())
    }
}

extern "C" fn on_stopped_call(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel calls a handler that asked for it (SA_SIGINFO, which
    // the registration sets) with the interrupted thread's context.
    let registers = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    // The kernel puts the registers back as they were at the call.
    let at = |register: i32| {
        let index = usize::try_from(register).unwrap_or(usize::MAX);
        registers.get(index).copied().unwrap_or(0)
    };
    let mut line = Line {
        bytes: [0; 512],
        len: 0,
    };
    let _ = writeln!(
        line,
        "lmb-vmm: the sandbox stopped system call {} ({:#x}, {:#x}, {:#x}) of a {} thread: a \
         fault of lmb-vmm, or someone has taken this process over; please report it, with what \
         the guest and its clients did (--sandbox off runs without a sandbox)",
        at(libc::REG_RAX),
        at(libc::REG_RDI),
        at(libc::REG_RSI),
        at(libc::REG_RDX),
        THREAD.get(),
    );
    let text = line.bytes.get(..line.len).unwrap_or_default();
    let _ = rustix::io::write(io::stderr().as_fd(), text);
    // SAFETY: ends the process without running anything of it.
    unsafe { libc::_exit(1) }
}
