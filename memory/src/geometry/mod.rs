//! Where guest memory lies: from a [`MemoryRequest`] to the one [`Layout`].
//!
//! The rules, all of them:
//!
//! **Boot memory.** Guest RAM starts at 0 and fills up to 3 GiB; the 32-bit
//! hole [3 GiB, 4 GiB) belongs to devices and holds no RAM; what is left goes
//! on at 4 GiB. `memory` is rounded up to whole LMBs, with one notice that
//! names both sizes. Everything else that is not legal is refused, naming the
//! nearest legal values. A boot LMB is LMB-size bytes of RAM in address order;
//! around the hole or in the tail it may consist of several pieces and is
//! still one LMB.
//!
//! **Window.** `max_memory` is all memory the guest can have; the window holds
//! `max_memory` less boot memory, whole LMBs. It starts above all RAM and the
//! hole, aligned to max(LMB, 2 GiB), so that it starts on a boundary of any
//! memory block Linux uses. It is never enlarged. If its length is no multiple
//! of the guest's memory block, Linux cannot plug the rest: a notice says how
//! much. A window that ends past the host's physical address width or past
//! what the kernel entry reaches gets a notice too. Boot memory past the
//! host's width is refused.
//!
//! **The guest's memory block** (Linux, arch/x86/mm/init_64.c,
//! `probe_memory_block_size`): 128 MiB if the end of boot RAM lies below
//! 64 GiB; else the largest power of two from 128 MiB to 2 GiB that the end is
//! aligned to (128 MiB if to none). Only the end of the last RAM range counts.
//! Wanted is clamp(LMB, 128 MiB, 2 GiB) or a fixed size. Where RAM as it falls
//! does not give the wanted block, a tail piece of max(2 MiB, host page) is
//! taken from boot memory and placed so that it ends at the lowest address
//! which does: at or above 64 GiB and aligned to exactly the wanted block
//! (64 GiB for 2 GiB, 64 GiB + block for less; above 64 GiB of RAM, the next
//! such address past it). Where that is impossible (boot memory is a single
//! page, the page is larger than the block, the host's addresses end below), a
//! fixed size is refused and a following one falls back with a notice.
//!
//! **ACPI memory devices.** With [`Hotplug::Acpi`] each LMB of the window is a
//! device of its own, and Linux adds and removes whole memory blocks: an LMB is
//! at least a memory block of the guest. (The window starts at a boundary of
//! any block, so its LMBs are aligned then.) The window has at most
//! [`MAX_ACPI_LMBS`] LMBs, since the guest makes a device of each, present or
//! not, at every boot. Both are refused otherwise.
//!
//! **Host pages.** With huge pages an LMB is at least one page, and each piece
//! starts and ends on a page boundary.
//!
//! **KVM slots.** The window is covered by slots of `slot_size` from its
//! start: a power of two, at least an LMB, at most 4 TiB (KVM's limit is
//! 2^31 - 1 pages). Default: max(LMB, 1 GiB), doubled while the window would
//! need more than min(8192, `max_slots` less those of boot memory). More slots
//! than there are is refused.
//!
//! **Mappings.** In the worst case every second LMB is plugged and each LMB of
//! the window is a mapping of its own. If those, boot memory and
//! [`MAPPING_HEADROOM`] for the process pass vm.max_map_count, a notice says so.
//!
//! **swiotlb.** Linux reserves 64 MiB below 4 GiB if RAM or a hot-pluggable
//! SRAT range (the window) ends above 4 GiB.

mod compute;
mod error;
mod notice;
mod options;
mod place;
#[cfg(test)]
mod tests;

pub use error::GeometryError;
pub use notice::{BlockReason, Notice};
pub use options::{GuestBlock, Hotplug, PageSize};

use crate::units::{Bytes, GuestRange, LmbCount, LmbIndex, LmbSize};

/// Mappings left to the process for everything but the window (stacks, heap,
/// libraries, boot memory): a plug is refused before it takes these.
pub const MAPPING_HEADROOM: u64 = 1_000;

/// Most LMBs of a window of ACPI memory devices.
pub const MAX_ACPI_LMBS: u64 = 4096;

/// What is asked for: the memory options of a VM and what its host offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryRequest {
    /// Boot memory, at least one byte, at most 64 TiB.
    pub memory: Bytes,
    /// All memory the guest can have, boot memory included; `None` for no
    /// window.
    pub max_memory: Option<Bytes>,
    /// LMB size.
    pub lmb_size: LmbSize,
    /// The guest's own memory block.
    pub guest_block: GuestBlock,
    /// KVM slot size; `None` for the default.
    pub slot_size: Option<Bytes>,
    /// Pages of the host that back guest memory.
    pub page_size: PageSize,
    /// How the guest takes the window's memory.
    pub hotplug: Hotplug,
    /// Physical address bits of the host (CPUID 0x8000_0008), 32 to 52.
    pub phys_bits: u8,
    /// End of the guest-physical space that the chosen kernel entry reaches.
    pub kernel_reach: Option<Bytes>,
    /// The host's vm.max_map_count.
    pub max_map_count: Option<u64>,
    /// KVM memory slots there are for guest memory.
    pub max_slots: u64,
}

/// Why a piece of boot memory lies where it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PieceKind {
    /// From address 0, below the 32-bit hole.
    Low,
    /// From 4 GiB.
    High,
    /// The piece that sets the end of RAM, and with it the guest's memory
    /// block.
    Tail,
}

/// A contiguous piece of boot memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootPiece {
    /// Where it lies.
    pub range: GuestRange,
    /// Why it lies there.
    pub kind: PieceKind,
}

/// The hotplug window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowLayout {
    /// Where it lies: whole LMBs, the start aligned to max(LMB, 2 GiB).
    pub range: GuestRange,
    /// LMBs of it.
    pub lmbs: LmbCount,
}

/// Where everything lies; computed once, never changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// LMB size.
    pub lmb_size: LmbSize,
    /// Pieces of boot memory, ascending; one at least.
    pub boot: Vec<BootPiece>,
    /// Sum of the pieces: whole LMBs.
    pub boot_bytes: Bytes,
    /// LMBs of boot memory.
    pub boot_lmbs: LmbCount,
    /// The hotplug window, if there is one.
    pub window: Option<WindowLayout>,
    /// Size of the window's KVM slots.
    pub slot_size: Bytes,
    /// The memory block Linux will use.
    pub guest_block: Bytes,
    /// Pages of the host.
    pub page_size: PageSize,
    /// How the guest takes the window's memory.
    pub hotplug: Hotplug,
    /// The 32-bit hole.
    pub hole: GuestRange,
    /// What the user should know, in the order it came up.
    pub notices: Vec<Notice>,
    /// Mappings of the process if every second LMB of the window is plugged.
    pub worst_case_mappings: u64,
    /// What the guest will reserve for swiotlb: nothing or 64 MiB.
    pub swiotlb_bytes: Bytes,
}

impl Layout {
    /// Places boot memory and window by the rules at the module's head.
    ///
    /// # Errors
    /// [`GeometryError`] for what is not legal; it names the nearest legal
    /// values.
    pub fn compute(request: &MemoryRequest) -> Result<Self, GeometryError> {
        compute::compute(request)
    }

    /// First address past all boot memory.
    pub fn ram_end(&self) -> u64 {
        self.boot.last().map_or(0, |piece| piece.range.end())
    }

    /// The pieces of one boot LMB, ascending; none past the last.
    pub fn boot_lmb_pieces(&self, lmb: LmbIndex) -> Vec<GuestRange> {
        place::lmb_pieces(self, lmb).unwrap_or_default()
    }

    /// KVM slots the window needs when all of it is plugged.
    pub fn window_slots(&self) -> u64 {
        self.window.map_or(0, |window| {
            window
                .range
                .len()
                .get()
                .div_ceil(self.slot_size.get().max(1))
        })
    }
}
