//! The configuration space of a virtio-mem device: 56 bytes, read-only to the
//! driver, always a snapshot of the owner's ledger (virtio 1.2, section
//! 5.15.4).

use zerocopy::little_endian::{U16, U64};
use zerocopy::{Immutable, IntoBytes, KnownLayout};

/// Length of the configuration space.
pub const CONFIG_BYTES: usize = size_of::<WireConfig>();

/// What the guest is told about the window. All sizes are bytes and multiples
/// of `block_size`, which is a power of two; the owner sees to that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemConfig {
    /// Size of a device block (an LMB). Changes at a system reset only.
    pub block_size: u64,
    /// First guest-physical address of the window. Never changes.
    pub addr: u64,
    /// Length of the window. Never changes.
    pub region_size: u64,
    /// The part of the window from its start that the guest may use; never
    /// less than `requested_size`.
    pub usable_region_size: u64,
    /// What is plugged.
    pub plugged_size: u64,
    /// What the guest should plug.
    pub requested_size: u64,
}

#[derive(Clone, Copy, Debug, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct WireConfig {
    block_size: U64,
    node_id: U16,
    padding: [u8; 6],
    addr: U64,
    region_size: U64,
    usable_region_size: U64,
    plugged_size: U64,
    requested_size: U64,
}

impl MemConfig {
    /// The configuration space's bytes; `node_id` means something only with
    /// ACPI_PXM.
    pub(super) fn to_wire(self, node_id: u16) -> [u8; CONFIG_BYTES] {
        zerocopy::transmute!(WireConfig {
            block_size: U64::new(self.block_size),
            node_id: U16::new(node_id),
            padding: [0; 6],
            addr: U64::new(self.addr),
            region_size: U64::new(self.region_size),
            usable_region_size: U64::new(self.usable_region_size),
            plugged_size: U64::new(self.plugged_size),
            requested_size: U64::new(self.requested_size),
        })
    }
}
