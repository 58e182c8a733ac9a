//! How Linux's virtio-mem driver works through memory.
//!
//! From the driver (Linux 6.1 and newer, drivers/virtio/virtio_mem.c,
//! `virtio_mem_init`): the sub-block is max(device block, 2 MiB). If it is
//! smaller than Linux's memory block the driver works in sub-block mode and
//! sends one request for each memory block, whatever the device's block. Else
//! it works in big-block mode, and sends one request for each big block of
//! max(device block, memory block). In either mode Linux adds and onlines each
//! memory block by itself.
//!
//! Where each LMB is an ACPI device there is no driver to load: the VMM names
//! each LMB that is to come or go, so that every LMB is a request of its own.
//! An LMB is whole memory blocks then, and may hold its own description if the
//! guest's kernel is told so (`memory_hotplug.memmap_on_memory`).

use lmb_memory::Hotplug;
use serde::Serialize;

/// The smallest sub-block of the driver.
const SUB_BLOCK_MIN_BYTES: u64 = 2 << 20;
/// Linux's page on x86, and what it keeps to describe one (`struct page`).
const PAGE_BYTES: u64 = 4096;
const STRUCT_PAGE_BYTES: u64 = 64;
/// Smallest and largest memory block of Linux on x86.
const GUEST_BLOCK_MIN_BYTES: u64 = 128 << 20;
const GUEST_BLOCK_MAX_BYTES: u64 = 2 << 30;

/// One TiB: the article's TB.
pub const TIB_BYTES: u64 = 1 << 40;

/// How the guest takes and returns memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DriverMode {
    /// Requests cover a Linux memory block each, which may hold several LMBs.
    SubBlock,
    /// Requests cover a block of max(LMB, Linux memory block) each.
    BigBlock,
    /// No driver: the VMM asks for each LMB, an ACPI device.
    Acpi,
}

impl DriverMode {
    /// The mode with this kind of hotplug, for an LMB and a memory block of
    /// the guest.
    #[must_use]
    pub fn with(hotplug: Hotplug, lmb_size_bytes: u64, guest_block_bytes: u64) -> Self {
        match hotplug {
            Hotplug::VirtioMem => Self::of(lmb_size_bytes, guest_block_bytes),
            Hotplug::Acpi => Self::Acpi,
        }
    }

    /// The virtio-mem driver's mode for a device block (the LMB) and a memory
    /// block of the guest.
    #[must_use]
    pub fn of(device_block_bytes: u64, guest_block_bytes: u64) -> Self {
        if device_block_bytes.max(SUB_BLOCK_MIN_BYTES) < guest_block_bytes {
            Self::SubBlock
        } else {
            Self::BigBlock
        }
    }

    /// The word that samples and tables use.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::SubBlock => "sub-block",
            Self::BigBlock => "big-block",
            Self::Acpi => "acpi",
        }
    }
}

/// Bytes that one request of the driver covers.
#[must_use]
pub fn request_bytes(device_block_bytes: u64, guest_block_bytes: u64) -> u64 {
    match DriverMode::of(device_block_bytes, guest_block_bytes) {
        DriverMode::SubBlock => guest_block_bytes,
        DriverMode::BigBlock | DriverMode::Acpi => device_block_bytes.max(guest_block_bytes),
    }
}

/// Requests of an undisturbed add or removal of `amount_bytes`. An ACPI LMB is
/// at least a memory block, so that each is one here as well.
#[must_use]
pub fn requests(amount_bytes: u64, device_block_bytes: u64, guest_block_bytes: u64) -> u64 {
    blocks(
        amount_bytes,
        request_bytes(device_block_bytes, guest_block_bytes),
    )
}

/// Blocks of `block_bytes` that `amount_bytes` takes, the last one perhaps in
/// part; 0 for a block of 0.
#[must_use]
pub fn blocks(amount_bytes: u64, block_bytes: u64) -> u64 {
    match block_bytes {
        0 => 0,
        block => amount_bytes.div_ceil(block),
    }
}

/// Memory that Linux takes to describe `amount_bytes`: 64 bytes a page. It
/// comes out of memory that is there already, but for ACPI LMBs that hold it
/// themselves.
#[must_use]
pub fn memmap_bytes(amount_bytes: u64) -> u64 {
    (amount_bytes / PAGE_BYTES).saturating_mul(STRUCT_PAGE_BYTES)
}

/// The memory block that lmb-vmm gives a guest whose block follows the LMB.
#[must_use]
pub fn following_block(lmb_size_bytes: u64) -> u64 {
    lmb_size_bytes.clamp(GUEST_BLOCK_MIN_BYTES, GUEST_BLOCK_MAX_BYTES)
}

/// Slots that lmb-vmm takes for a window at most by default, and its smallest
/// default slot.
const SLOTS_WANTED: u64 = 8_192;
const SLOT_DEFAULT_BYTES: u64 = 1 << 30;
const SLOT_MAX_BYTES: u64 = 4 << 40;

/// The slot size that lmb-vmm chooses for a window: max(LMB, 1 GiB), doubled
/// while the window would need more than 8,192 of them.
#[must_use]
pub fn default_slot(lmb_size_bytes: u64, window_bytes: u64) -> u64 {
    let mut slot = lmb_size_bytes.max(SLOT_DEFAULT_BYTES);
    while blocks(window_bytes, slot) > SLOTS_WANTED && slot < SLOT_MAX_BYTES {
        slot = slot.saturating_mul(2);
    }
    slot
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    #[test]
    fn requests_for_each_tib() {
        for (guest_block, lmb, expected) in [
            (128 * MIB, 2 * MIB, 8192),
            (128 * MIB, 128 * MIB, 8192),
            (128 * MIB, 256 * MIB, 4096),
            (128 * MIB, GIB, 1024),
            (128 * MIB, 2 * GIB, 512),
            (128 * MIB, 4 * GIB, 256),
            (2 * GIB, 2 * MIB, 512),
            (2 * GIB, 256 * MIB, 512),
            (2 * GIB, 2 * GIB, 512),
            (2 * GIB, 4 * GIB, 256),
        ] {
            assert_eq!(requests(TIB_BYTES, lmb, guest_block), expected, "{lmb}");
        }
        assert_eq!(blocks(TIB_BYTES, 128 * MIB), 8192);
        assert_eq!(blocks(TIB_BYTES, 2 * GIB), 512);
    }

    #[test]
    fn a_block_that_follows_is_taken_whole() {
        for lmb in [128 * MIB, 256 * MIB, GIB, 2 * GIB, 4 * GIB] {
            assert_eq!(
                DriverMode::of(lmb, following_block(lmb)),
                DriverMode::BigBlock
            );
        }
        assert_eq!(
            DriverMode::of(64 * MIB, following_block(64 * MIB)),
            DriverMode::SubBlock
        );
        assert_eq!(DriverMode::of(GIB, 2 * GIB), DriverMode::SubBlock);
        let with = |hotplug| DriverMode::with(hotplug, 256 * MIB, 256 * MIB).word();
        assert_eq!(
            Hotplug::ALL.map(with),
            ["big-block", "acpi"],
            "one request an LMB in either"
        );
    }

    #[test]
    fn a_tib_takes_16_gib_to_describe() {
        assert_eq!(memmap_bytes(TIB_BYTES), 16 * GIB);
        assert_eq!(memmap_bytes(u64::MAX), (u64::MAX / 4096) * 64);
    }

    proptest! {
        #[test]
        fn the_default_slot_is_the_vmms_own(lmb in 21u32..=32, window_gib in 1u64..=65_536) {
            use lmb_memory::GuestBlock;
            let lmb = 1u64 << lmb;
            let window = (window_gib * GIB).next_multiple_of(lmb);
            let request = crate::plan::vm::VmRequest {
                memory_bytes: 4 * GIB,
                max_memory_bytes: Some(4 * GIB + window),
                guest_block: GuestBlock::Follow,
                slot_size_bytes: None,
                hotplug: lmb_memory::Hotplug::VirtioMem,
            };
            if let Some(row) = crate::plan::vm::plan(&request, lmb).row() {
                prop_assert_eq!(default_slot(lmb, window), row.slot_size_bytes);
            }
        }

        #[test]
        fn requests_cover_the_amount_and_no_request_is_empty(
            amount in 1..=u64::MAX, lmb in 21u32..=32, block in 27u32..=31,
        ) {
            let (lmb, block) = (1u64 << lmb, 1u64 << block);
            let n = requests(amount, lmb, block);
            let each = request_bytes(lmb, block);
            prop_assert!(u128::from(n) * u128::from(each) >= u128::from(amount));
            prop_assert!(u128::from(n - 1) * u128::from(each) < u128::from(amount));
            prop_assert!(n <= blocks(amount, block));
        }
    }
}
