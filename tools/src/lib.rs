//! The parts of `lmb`: the control socket's client, guest images, the virtual
//! KVM host, and the command line over them. Tests and `cargo xtask` use the
//! same parts as the tool does.
//!
//! The VMM is known here by the types of its control protocol and by its
//! command line's flags alone.

mod watch;

/// Benchmarks: their raw samples.
pub mod bench;
pub mod cli;
pub mod client;
pub mod exit;
pub mod guest;
pub mod host;
pub mod http;
pub mod initramfs;
pub mod lmbs;
pub mod mem;
pub mod output;
pub mod packages;
pub mod plan;
pub mod report;
pub mod run;
pub mod runtime;
pub mod units;
pub mod vm;
