//! `lmb plan`: what an LMB size comes to before anything is started.
//!
//! - [`rules`]: how Linux's virtio-mem driver works through memory: mode,
//!   requests, memory blocks, the guest memory that describes memory.
//! - [`counts`]: the table of LMBs for partition sizes × LMB sizes.
//! - [`vm`]: one VM's configuration, a row for each LMB size. Where memory
//!   lies is not computed here but by `lmb_memory::Layout`, as the VMM does.
//! - [`choose`]: the LMB size for a wanted granularity, and why; with the cost
//!   model of saved results, if there are any.
//! - [`text`]: the same as tables for people.
//!
//! All of it is pure; [`cli`] reads the files and prints.

pub mod choose;
pub mod cli;
pub mod counts;
pub mod rules;
pub mod text;
pub mod vm;
