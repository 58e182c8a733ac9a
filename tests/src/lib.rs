//! The harness of the tests with real guests.
//!
//! [`GuestVm`] is one lmb-vmm process with a guest in it: its serial console
//! is read all along, [`GuestVm::sh`] runs a command in the guest's shell, and
//! the control socket is reached by the project's own client or by curl. Every
//! wait has a deadline, and [`wait`] is the only place that sleeps. Whatever
//! goes wrong, the logs of every VM of the test end up in its report, and no
//! VM outlives its test.

mod console;
mod curl;
mod dmesg;
mod host_memory;
mod place;
pub mod report;
mod spec;
mod vm;
pub mod wait;

pub use curl::{Curl, Reply};
pub use place::{Kernel, curl_program, lmb_program, vmlinux, vmm_program, why_no_guests};
pub use spec::{Entry, GuestSpec};
pub use vm::{GuestVm, Output};

/// Bytes of a MiB.
pub const MIB: u64 = 1 << 20;
/// Bytes of a GiB.
pub const GIB: u64 = 1 << 30;
