//! The memory map that the guest gets (e820 / PVH memory map entries).
//!
//! Only boot memory is in it. A hotplug window must not be: Linux would take
//! it for RAM, or refuse to add it later as a conflict. The top of low RAM is
//! left out of RAM where ACPI tables stand there.

use lmb_memory::Layout;

use crate::acpi::TopArea;

use super::{HIGH_START, LOW_END};

/// Usable RAM (E820_TYPE_RAM).
pub const RAM: u32 = 1;
/// Not to be used (E820_TYPE_RESERVED).
pub const RESERVED: u32 = 2;
/// ACPI's, to be kept as it is while the guest runs (E820_TYPE_NVS).
pub const NVS: u32 = 4;

/// One entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapEntry {
    /// First guest-physical address.
    pub start: u64,
    /// Bytes.
    pub size_bytes: u64,
    /// [`RAM`], [`RESERVED`] or [`NVS`].
    pub kind: u32,
}

/// Entries in ascending order: conventional memory, the legacy hole as
/// reserved, then each boot piece, the low one without what ACPI takes of it.
#[must_use]
pub fn entries(layout: &Layout, top: Option<&TopArea>) -> Vec<MapEntry> {
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
        let top = top.filter(|top| top.end == end);
        let ram_end = top.map_or(end, |top| top.start);
        if ram_end > start {
            map.push(MapEntry {
                start,
                size_bytes: ram_end - start,
                kind: RAM,
            });
        }
        if let Some(top) = top {
            map.push(MapEntry {
                start: top.start,
                size_bytes: top.end - top.start,
                kind: NVS,
            });
        }
    }
    map
}

/// End of the RAM that starts at address 0.
#[must_use]
pub fn low_ram_end(layout: &Layout) -> u64 {
    layout
        .boot
        .iter()
        .find(|piece| piece.range.start().get() == 0)
        .map_or(0, |piece| piece.range.end())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acpi;
    use crate::config::{HostLimits, VmConfig};

    const GIB: u64 = 1 << 30;

    fn layout(json: &str) -> Layout {
        let limits = HostLimits {
            phys_bits: 46,
            max_map_count: None,
            max_slots: 32_764,
        };
        let options = serde_json::from_str(json).unwrap();
        VmConfig::new(options).unwrap().layout(limits).unwrap()
    }

    fn shown(map: &[MapEntry]) -> Vec<(u64, u64, u32)> {
        map.iter()
            .map(|entry| (entry.start, entry.start + entry.size_bytes, entry.kind))
            .collect()
    }

    #[test]
    fn the_map_is_ram_without_the_legacy_hole_and_the_window() {
        let layout = layout(r#"{"memory": "4G", "max_memory": "8G", "lmb_size": "128M"}"#);
        assert_eq!(
            shown(&entries(&layout, None)),
            [
                (0, LOW_END, RAM),
                (LOW_END, HIGH_START, RESERVED),
                (HIGH_START, 3 * GIB, RAM),
                (4 * GIB, 5 * GIB, RAM),
            ]
        );
    }

    #[test]
    fn acpi_s_part_of_low_ram_is_in_the_map_but_no_ram() {
        let layout = layout(
            r#"{"memory": "4G", "max_memory": "8G", "lmb_size": "128M", "hotplug": "acpi"}"#,
        );
        let tables = acpi::build(&layout, 1, &[]).unwrap();
        let top = tables.top.unwrap();
        assert!(top.start < top.status_table && top.status_table < top.end);
        assert_eq!(
            shown(&entries(&layout, Some(&top))),
            [
                (0, LOW_END, RAM),
                (LOW_END, HIGH_START, RESERVED),
                (HIGH_START, top.start, RAM),
                (top.start, 3 * GIB, NVS),
                (4 * GIB, 5 * GIB, RAM),
            ]
        );
    }
}
