//! The coordinator against a naive driver, real guest memory and a window
//! whose effects can be held and made to fail.

mod log;
mod operations;
mod random;
mod requests;
pub(crate) mod rig;
