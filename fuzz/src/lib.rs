//! What the fuzz targets share: reading an input as a series of choices, a
//! machine without KVM, and the rules of the layout.
//!
//! Nothing here judges with the code that it tests: the models are as naive
//! as can be, sets and sums over all LMBs.

pub mod host;
pub mod input;
pub mod layout;
pub mod machine;
pub mod model;
