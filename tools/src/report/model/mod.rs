//! The cost model: what a guest memory block, a request, a KVM slot and a GiB
//! cost, each by itself.
//!
//! - [`fit`]: least squares over rows in which one quantity varies and the
//!   others are fixed (or their cost is known already); refuses what the rows
//!   cannot tell apart.
//! - [`zone`]: what a block costs for each GiB that its zone has already, which
//!   is taken off before.
//! - [`predict`]: from costs to a figure, with its uncertainty, or why not.
//! - [`rows`]: which groups of a report belong to one model, and their
//!   quantities.
//! - [`article`]: the article's 60 TB and 1 TB.
//! - [`text`] draws all of it as tables.

pub mod article;
pub mod fit;
pub mod predict;
pub mod rows;
pub mod text;
pub mod zone;

use serde::Serialize;

/// What an operation's cost may depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    /// Linux's memory blocks.
    Blocks,
    /// virtio-mem requests, or LMBs asked about by ACPI.
    Requests,
    /// KVM slots of the window.
    Slots,
    /// Memory.
    Gib,
}

/// All quantities, in the order of [`Amounts`].
pub const QUANTITIES: [Quantity; 4] = [
    Quantity::Blocks,
    Quantity::Requests,
    Quantity::Slots,
    Quantity::Gib,
];

/// How much of each quantity, in the order of [`QUANTITIES`].
pub type Amounts = [f64; 4];

impl Quantity {
    /// What tables call one of it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Blocks => "guest block",
            Self::Requests => "request",
            Self::Slots => "slot",
            Self::Gib => "GiB",
        }
    }

    /// What tables call several.
    #[must_use]
    pub fn plural(self) -> &'static str {
        match self {
            Self::Blocks => "guest blocks",
            Self::Requests => "requests",
            Self::Slots => "slots",
            Self::Gib => "GiB",
        }
    }

    /// Its place in [`Amounts`].
    #[must_use]
    pub fn index(self) -> usize {
        match self {
            Self::Blocks => 0,
            Self::Requests => 1,
            Self::Slots => 2,
            Self::Gib => 3,
        }
    }
}
