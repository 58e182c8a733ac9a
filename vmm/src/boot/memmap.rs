//! The memory map that the guest gets (e820 / PVH memory map entries).
//!
//! Only boot memory is in it. A hotplug window must not be: Linux would take
//! it for RAM, or refuse to add it later as a conflict.

use lmb_memory::Layout;

use super::{HIGH_START, LOW_END};

/// Usable RAM (E820_TYPE_RAM).
pub const RAM: u32 = 1;
/// Not to be used (E820_TYPE_RESERVED).
pub const RESERVED: u32 = 2;

/// One entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapEntry {
    /// First guest-physical address.
    pub start: u64,
    /// Bytes.
    pub size_bytes: u64,
    /// [`RAM`] or [`RESERVED`].
    pub kind: u32,
}

/// Entries in ascending order: conventional memory, the legacy hole as
/// reserved, then each boot piece.
#[must_use]
pub fn entries(layout: &Layout) -> Vec<MapEntry> {
    let mut map = vec![
        MapEntry {
            start: 0,
            size_bytes: LOW_END,
            kind: RAM,
        },
        MapEntry {
            start: LOW_END,
            size_bytes: HIGH_START - LOW_END,
            kind: RESERVED,
        },
    ];
    for piece in &layout.boot {
        let start = piece.range.start().get().max(HIGH_START);
        let end = piece.range.end();
        if end > start {
            map.push(MapEntry {
                start,
                size_bytes: end - start,
                kind: RAM,
            });
        }
    }
    map
}

/// End of the RAM that starts at address 0.
#[must_use]
pub fn low_end(layout: &Layout) -> u64 {
    layout
        .boot
        .iter()
        .find(|piece| piece.range.start().get() == 0)
        .map_or(0, |piece| piece.range.end())
}
