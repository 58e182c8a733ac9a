//! The coordinator against a naive driver, real guest memory and a window
//! whose effects can be held and made to fail.

mod acpi;
mod acpi_rig;
mod log;
mod operations;
mod random;
mod requests;
pub(crate) mod rig;
