//! `lmb report`: figures, tables, plots and comparisons from raw samples.
//!
//! The way of a sample: [`read`] (lines to samples) → [`group`] (repeats to
//! rows, by [`stats`]) → [`tables`], [`csv`], [`html`]; and from the same rows
//! [`model`] (what a block, a request, a slot and a GiB cost) and [`compare`]
//! (two files, row by row). [`figure`] is the one place that gives a figure its
//! unit; [`environment`] says what stands beside it.
//!
//! All of it is pure but [`cli`], which reads and writes files.

pub mod cli;
pub mod compare;
pub mod csv;
pub mod environment;
pub mod figure;
pub mod group;
pub mod html;
pub mod json;
pub mod model;
pub mod read;
pub mod stats;
pub mod table;
pub mod tables;
#[cfg(test)]
pub(crate) mod testing;

/// `1 line`, `3 lines`.
#[must_use]
pub fn plural(count: u64, thing: &str) -> String {
    let ending = if count == 1 { "" } else { "s" };
    format!("{count} {thing}{ending}")
}
