//! One VM's memory configuration, a row for each LMB size.
//!
//! Where memory lies, the guest's block and the slots come from
//! [`Layout::compute`], the VMM's own rules. The host is not known here: its
//! physical addresses are taken as wide as there are, and its limits as
//! Linux's defaults.

use std::collections::BTreeSet;

use lmb_memory::{Bytes, GuestBlock, Hotplug, Layout, LmbSize, MemoryRequest, PageSize};
use serde::Serialize;

use super::rules::{self, DriverMode, TIB_BYTES};

/// vm.max_map_count of a Linux host unless it was changed.
const MAX_MAP_COUNT: u64 = 65_530;
/// KVM's memory slots for users on x86 (KVM_USER_MEM_SLOTS).
const MAX_SLOTS: u64 = 32_764;
/// The widest physical addresses of x86.
const PHYS_BITS: u8 = 52;

/// What is planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VmRequest {
    /// Boot memory.
    pub memory_bytes: u64,
    /// All memory the guest can have; `None` for no hotplug window.
    pub max_memory_bytes: Option<u64>,
    /// The guest's memory block.
    pub guest_block: GuestBlock,
    /// KVM slot size; `None` for the VMM's default.
    pub slot_size_bytes: Option<u64>,
    /// By what means memory comes and goes.
    pub hotplug: Hotplug,
}

/// What one LMB size comes to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VmRow {
    /// LMB size.
    pub lmb_size_bytes: u64,
    /// LMBs of boot memory.
    pub boot_lmbs: u64,
    /// LMBs of the window: the device's blocks, or the ACPI devices.
    pub device_blocks: u64,
    /// Boot memory, in whole LMBs.
    pub boot_bytes: u64,
    /// The window.
    pub window_bytes: u64,
    /// Linux's memory block.
    pub guest_block_bytes: u64,
    /// Memory blocks that Linux manages after boot.
    pub guest_blocks_at_boot: u64,
    /// Memory blocks of the whole window.
    pub guest_blocks_in_window: u64,
    /// KVM slots of boot memory.
    pub boot_slots: u64,
    /// KVM slots of the window when all of it is plugged.
    pub window_slots: u64,
    /// Size of the window's slots.
    pub slot_size_bytes: u64,
    /// virtio-mem requests, or ACPI devices, for each TiB added or removed.
    pub requests_per_tib: u64,
    /// Requests to plug the whole window.
    pub requests_for_window: u64,
    /// Guest memory that describes boot memory.
    pub memmap_boot_bytes: u64,
    /// Guest memory that describes the window; it comes out of boot memory.
    pub memmap_window_bytes: u64,
    /// What of it remains with memory_hotplug.memmap_on_memory=1 in the guest,
    /// by which ACPI LMBs of the size of a memory block hold it themselves.
    pub memmap_window_on_memory_bytes: u64,
    /// How the guest takes and returns memory.
    pub driver_mode: DriverMode,
    /// What the user should know.
    pub notices: Vec<String>,
}

/// A row, or why this LMB size is not possible.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum VmPlan {
    /// Possible.
    Row(Box<VmRow>),
    /// Refused.
    Refused {
        /// LMB size.
        lmb_size_bytes: u64,
        /// Why, and what would be legal.
        refused: String,
    },
}

impl VmPlan {
    /// The row, if the size is possible.
    #[must_use]
    pub fn row(&self) -> Option<&VmRow> {
        match self {
            Self::Row(row) => Some(row),
            Self::Refused { .. } => None,
        }
    }
}

/// Plans the VM for one LMB size.
#[must_use]
pub fn plan(request: &VmRequest, lmb_size_bytes: u64) -> VmPlan {
    match compute(request, lmb_size_bytes) {
        Ok(row) => VmPlan::Row(Box::new(row)),
        Err(refused) => VmPlan::Refused {
            lmb_size_bytes,
            refused,
        },
    }
}

fn compute(request: &VmRequest, lmb_size_bytes: u64) -> Result<VmRow, String> {
    let lmb_size = LmbSize::new(Bytes::new(lmb_size_bytes)).map_err(|e| e.to_string())?;
    let layout = Layout::compute(&MemoryRequest {
        memory: Bytes::new(request.memory_bytes),
        max_memory: request.max_memory_bytes.map(Bytes::new),
        lmb_size,
        guest_block: request.guest_block,
        slot_size: request.slot_size_bytes.map(Bytes::new),
        page_size: PageSize::Thp,
        hotplug: request.hotplug,
        phys_bits: PHYS_BITS,
        kernel_reach: None,
        max_map_count: Some(MAX_MAP_COUNT),
        max_slots: MAX_SLOTS,
    })
    .map_err(|e| e.to_string())?;
    Ok(row(&layout))
}

fn row(layout: &Layout) -> VmRow {
    let lmb_size_bytes = layout.lmb_size.bytes().get();
    let guest_block_bytes = layout.guest_block.get();
    let window_bytes = layout.window.map_or(0, |window| window.range.len().get());
    let boot_bytes = layout.boot_bytes.get();
    let memmap_window_bytes = rules::memmap_bytes(window_bytes);
    // mm/memory_hotplug.c, `mhp_supports_memmap_on_memory`.
    let on_memory = layout.hotplug == Hotplug::Acpi && lmb_size_bytes == guest_block_bytes;
    let mut notices: Vec<String> = layout.notices.iter().map(ToString::to_string).collect();
    notices.extend(memmap_notice(boot_bytes, memmap_window_bytes, on_memory));
    VmRow {
        lmb_size_bytes,
        boot_lmbs: layout.boot_lmbs.get(),
        device_blocks: layout.window.map_or(0, |window| window.lmbs.get()),
        boot_bytes,
        window_bytes,
        guest_block_bytes,
        guest_blocks_at_boot: guest_blocks(layout),
        guest_blocks_in_window: window_bytes.checked_div(guest_block_bytes).unwrap_or(0),
        boot_slots: u64::try_from(layout.boot.len()).unwrap_or(u64::MAX),
        window_slots: layout.window_slots(),
        slot_size_bytes: layout.slot_size.get(),
        requests_per_tib: rules::requests(TIB_BYTES, lmb_size_bytes, guest_block_bytes),
        requests_for_window: rules::requests(window_bytes, lmb_size_bytes, guest_block_bytes),
        memmap_boot_bytes: rules::memmap_bytes(boot_bytes),
        memmap_window_bytes,
        memmap_window_on_memory_bytes: if on_memory { 0 } else { memmap_window_bytes },
        driver_mode: DriverMode::with(layout.hotplug, lmb_size_bytes, guest_block_bytes),
        notices,
    }
}

/// Memory blocks that boot memory touches, in whole or in part.
fn guest_blocks(layout: &Layout) -> u64 {
    let block = layout.guest_block.get();
    let mut seen = BTreeSet::new();
    let mut count = 0u64;
    for piece in &layout.boot {
        let first = piece.range.start().get().checked_div(block).unwrap_or(0);
        let end = rules::blocks(piece.range.end(), block);
        // Pieces ascend, so only a piece's first block can be another's last.
        let shared = u64::from(seen.contains(&first));
        count = count.saturating_add(end.saturating_sub(first).saturating_sub(shared));
        seen.insert(end.saturating_sub(1));
    }
    count
}

/// Movable memory cannot hold the description of memory, so boot memory must,
/// unless LMBs hold their own.
fn memmap_notice(boot_bytes: u64, memmap_window_bytes: u64, on_memory: bool) -> Option<String> {
    use crate::units::format_size;
    let (boot, memmap) = (format_size(boot_bytes), format_size(memmap_window_bytes));
    let or = if on_memory {
        ", or boot it with memory_hotplug.memmap_on_memory=1"
    } else {
        ""
    };
    if memmap_window_bytes >= boot_bytes {
        Some(format!(
            "the whole window takes {memmap} of guest memory to describe, and boot memory is \
             {boot}: the guest cannot plug it all; give it more boot memory{or}"
        ))
    } else if memmap_window_bytes >= boot_bytes / 2 {
        Some(format!(
            "the whole window takes {memmap} of the {boot} of boot memory to describe"
        ))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    fn request(memory: u64, max: Option<u64>) -> VmRequest {
        VmRequest {
            memory_bytes: memory,
            max_memory_bytes: max,
            guest_block: GuestBlock::Follow,
            slot_size_bytes: None,
            hotplug: Hotplug::VirtioMem,
        }
    }

    fn acpi(memory: u64, max: Option<u64>) -> VmRequest {
        VmRequest {
            hotplug: Hotplug::Acpi,
            ..request(memory, max)
        }
    }

    #[test]
    fn a_tib_in_lmbs_of_256_mib() {
        let plan = plan(&request(64 * GIB, Some(64 * GIB + TIB_BYTES)), 256 * MIB);
        let row = plan.row().unwrap();
        assert_eq!((row.boot_lmbs, row.device_blocks), (256, 4096));
        assert_eq!(row.guest_block_bytes, 256 * MIB);
        assert_eq!(row.guest_blocks_in_window, 4096);
        assert_eq!((row.window_slots, row.slot_size_bytes), (1024, GIB));
        assert_eq!(
            (row.requests_per_tib, row.requests_for_window),
            (4096, 4096)
        );
        assert_eq!(row.memmap_boot_bytes, GIB);
        assert_eq!(row.memmap_window_bytes, 16 * GIB);
        assert_eq!(row.driver_mode, DriverMode::BigBlock);
        assert_eq!(row.notices, Vec::<String>::new());
    }

    #[test]
    fn blocks_at_boot_as_linux_counts_them() {
        // Seen on a real guest of 1 GiB whose RAM ends where the block wants it.
        for (block, blocks) in [
            (128 * MIB, 8),
            (256 * MIB, 5),
            (512 * MIB, 3),
            (GIB, 2),
            (2 * GIB, 2),
        ] {
            let plan = plan(&request(GIB, None), block);
            let row = plan.row().unwrap();
            assert_eq!(row.guest_block_bytes, block);
            if block > 128 * MIB {
                assert_eq!(row.guest_blocks_at_boot, blocks, "{block}");
            }
        }
    }

    #[test]
    fn a_block_shared_by_two_pieces_counts_once() {
        // RAM [0, 3 GiB) and [4 GiB, ...): with blocks of 2 GiB the hole's block
        // is shared by none, but 3 GiB ends inside block 1.
        let plan = plan(&request(64 * GIB, None), 2 * GIB);
        let row = plan.row().unwrap();
        // Blocks 0, 1 and from 4 GiB on; the end is a boundary of 2 GiB.
        let ram_end_blocks = row.guest_blocks_at_boot;
        assert!((32..=34).contains(&ram_end_blocks), "{ram_end_blocks}");
    }

    #[test]
    fn a_fixed_block_makes_the_driver_work_in_sub_blocks() {
        let fixed = VmRequest {
            guest_block: GuestBlock::Fixed(Bytes::new(2 * GIB)),
            ..request(64 * GIB, Some(128 * GIB))
        };
        let small = plan(&fixed, 256 * MIB);
        assert_eq!(small.row().unwrap().driver_mode, DriverMode::SubBlock);
        assert_eq!(small.row().unwrap().requests_for_window, 32);
        let large = plan(&fixed, 4 * GIB);
        assert_eq!(large.row().unwrap().driver_mode, DriverMode::BigBlock);
        assert_eq!(large.row().unwrap().requests_for_window, 16);
    }

    #[test]
    fn a_window_that_boot_memory_cannot_describe_is_told() {
        let too_small = plan(&request(GIB, Some(GIB + TIB_BYTES)), GIB);
        let notices = &too_small.row().unwrap().notices;
        assert!(
            notices.iter().any(|n| n.contains("cannot plug it all")),
            "{notices:?}"
        );
    }

    #[test]
    fn a_tib_of_acpi_devices_can_describe_itself() {
        let tib = acpi(4 * GIB, Some(4 * GIB + TIB_BYTES));
        let plan_of = |lmb| plan(&tib, lmb);
        let row = plan_of(256 * MIB);
        let row = row.row().unwrap();
        assert_eq!((row.device_blocks, row.requests_for_window), (4096, 4096));
        assert_eq!(row.driver_mode, DriverMode::Acpi);
        assert_eq!(row.memmap_window_bytes, 16 * GIB);
        assert_eq!(row.memmap_window_on_memory_bytes, 0);
        let notices = row.notices.join("\n");
        assert!(notices.contains("memmap_on_memory=1"), "{notices}");
        // An LMB of two memory blocks does not.
        let large = plan_of(4 * GIB);
        let large = large.row().unwrap();
        assert_eq!(large.guest_block_bytes, 2 * GIB);
        assert_eq!(large.memmap_window_on_memory_bytes, 16 * GIB);
        assert!(!large.notices.join("\n").contains("memmap_on_memory"));
    }

    #[test]
    fn what_acpi_cannot_is_refused_with_both_sizes() {
        let refused = |lmb| match plan(&acpi(4 * GIB, Some(4 * GIB + TIB_BYTES)), lmb) {
            VmPlan::Refused { refused, .. } => refused,
            VmPlan::Row(row) => panic!("{row:?}"),
        };
        let small = refused(64 * MIB);
        assert!(
            small.contains("64 MiB") && small.contains("128 MiB"),
            "{small}"
        );
        let many = refused(128 * MIB);
        assert!(many.contains("8192") && many.contains("4096"), "{many}");
    }

    #[test]
    fn an_illegal_size_is_refused_with_its_reason() {
        let VmPlan::Refused { refused, .. } = plan(&request(GIB, None), 3 * MIB) else {
            panic!("3 MiB is no power of two");
        };
        assert!(
            refused.contains("2 MiB") && refused.contains("4 MiB"),
            "{refused}"
        );
    }

    proptest! {
        #[test]
        fn counts_agree_with_sizes(
            memory_gib in 1u64..=1024, window_gib in 0u64..=4096, shift in 21u32..=32,
        ) {
            let lmb = 1u64 << shift;
            let memory = (memory_gib * GIB).next_multiple_of(lmb);
            let window = (window_gib * GIB).next_multiple_of(lmb);
            if let VmPlan::Row(row) = plan(&request(memory, Some(memory + window)), lmb) {
                prop_assert_eq!(row.boot_lmbs * lmb, row.boot_bytes);
                prop_assert_eq!(row.device_blocks * lmb, window);
                prop_assert!(row.guest_blocks_at_boot * row.guest_block_bytes >= row.boot_bytes);
                prop_assert!(row.window_slots * row.slot_size_bytes >= window);
                prop_assert!(row.requests_for_window <= row.device_blocks.max(window / (128 * MIB)));
            }
        }
    }
}
