//! The codes of marks.

use crate::bus::Stamp;

/// What a guest marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MarkKind {
    /// The kernel was entered (only kernels built to say so).
    KernelEntry,
    /// The guest's init runs.
    Init,
    /// The hotplug driver is loaded.
    DriverLoaded,
    /// Hotplugged memory is usable, seen by an event.
    Usable,
    /// The same, found by looking after events were lost: the stamp is late.
    UsableLate,
}

impl MarkKind {
    /// The kind with this code.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::KernelEntry,
            2 => Self::Init,
            3 => Self::DriverLoaded,
            4 => Self::Usable,
            5 => Self::UsableLate,
            _ => return None,
        })
    }

    /// The kind's code.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::KernelEntry => 1,
            Self::Init => 2,
            Self::DriverLoaded => 3,
            Self::Usable => 4,
            Self::UsableLate => 5,
        }
    }
}

/// One mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// What is marked.
    pub kind: MarkKind,
    /// For [`MarkKind::Usable`] and [`MarkKind::UsableLate`]: bytes of
    /// hotplugged memory online in the guest.
    pub value: u64,
    /// When the code was written.
    pub stamp: Stamp,
}
