//! Why a request is refused.

use super::notice::BlockReason;
use super::options::{GuestBlock, PageSize};
use crate::units::{Bytes, LmbSize, UnitError, either};

/// Why a [`MemoryRequest`](super::MemoryRequest) is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GeometryError {
    /// No boot memory.
    #[error("boot memory of {asked} is not possible: it is from {min} (one LMB) to {max}")]
    BootSize {
        /// Size asked for.
        asked: Bytes,
        /// Smallest size: an LMB.
        min: Bytes,
        /// Largest size.
        max: Bytes,
    },
    /// `max_memory` is no whole number of LMBs.
    #[error(
        "max memory of {asked} is not a multiple of the LMB size {lmb}; nearest legal: {}",
        either(&Some(*.below), .above)
    )]
    MaxNotWholeLmbs {
        /// Size asked for.
        asked: Bytes,
        /// LMB size.
        lmb: LmbSize,
        /// Next legal size below.
        below: Bytes,
        /// Next legal size above.
        above: Option<Bytes>,
    },
    /// `max_memory` is less than boot memory.
    #[error(
        "max memory of {max} is less than boot memory of {boot}; it includes boot memory, give at least {boot}"
    )]
    MaxBelowBoot {
        /// `max_memory` asked for.
        max: Bytes,
        /// Boot memory, rounded up to LMBs.
        boot: Bytes,
    },
    /// A window larger than is supported.
    #[error("a window of {asked} is not possible: at most {max} (max memory of {max_memory})")]
    WindowTooLarge {
        /// Window asked for.
        asked: Bytes,
        /// Largest window.
        max: Bytes,
        /// The `max_memory` that gives it.
        max_memory: Bytes,
    },
    /// Not a legal memory block of Linux.
    #[error(
        "a guest memory block of {asked} is not possible: it is a power of two from {} to {}; nearest legal: {}",
        GuestBlock::MIN, GuestBlock::MAX, either(.below, .above)
    )]
    GuestBlockSize {
        /// Size asked for.
        asked: Bytes,
        /// Next legal size below.
        below: Option<Bytes>,
        /// Next legal size above.
        above: Option<Bytes>,
    },
    /// The memory block asked for cannot be had with this boot memory.
    #[error("a guest memory block of {asked} is not possible here, {natural} is: {reason}")]
    GuestBlockImpossible {
        /// Size asked for.
        asked: Bytes,
        /// What Linux uses if nothing is done.
        natural: Bytes,
        /// Why.
        reason: BlockReason,
    },
    /// Not a legal slot size.
    #[error(
        "a slot size of {asked} is not possible: it is a power of two from {min} to {max}; nearest legal: {}",
        either(.below, .above)
    )]
    SlotSize {
        /// Size asked for.
        asked: Bytes,
        /// Smallest: an LMB.
        min: Bytes,
        /// Largest.
        max: Bytes,
        /// Next legal size below.
        below: Option<Bytes>,
        /// Next legal size above.
        above: Option<Bytes>,
    },
    /// More slots than there are.
    #[error(
        "a window of {window} in slots of {slot_size} and {boot} slots of boot memory need {needed} KVM slots \
         and there are {max}{}",
        match .smallest { Some(size) => format!("; use a slot size of {size} or more"), None => String::new() }
    )]
    TooManySlots {
        /// The window.
        window: Bytes,
        /// Size of its slots.
        slot_size: Bytes,
        /// Slots of boot memory.
        boot: u64,
        /// Slots needed in all.
        needed: u64,
        /// Slots there are.
        max: u64,
        /// The smallest slot size that would do, if any does.
        smallest: Option<Bytes>,
    },
    /// An LMB smaller than a host page.
    #[error(
        "an LMB of {lmb} is smaller than the host page of {}; use an LMB size of {} or more, or smaller pages",
        .page.bytes(), .page.bytes()
    )]
    LmbBelowPage {
        /// LMB size.
        lmb: LmbSize,
        /// Host page.
        page: PageSize,
    },
    /// An LMB smaller than what Linux adds and removes through ACPI.
    #[error(
        "an LMB of {lmb} is smaller than the guest's memory block of {guest_block}, and ACPI memory \
         devices come and go in whole blocks: use an LMB size of {guest_block} or more{}",
        if *.block_may_shrink { format!(", or a guest block size of {lmb} or less") } else { String::new() }
    )]
    AcpiLmbBelowBlock {
        /// LMB size.
        lmb: LmbSize,
        /// The guest's memory block.
        guest_block: Bytes,
        /// Whether a memory block as small as the LMB is a legal one.
        block_may_shrink: bool,
    },
    /// More LMBs than a guest is to make devices of.
    #[error(
        "a window of {window} has {lmbs} LMBs of {lmb}, and as ACPI memory devices at most {max} are \
         possible, since the guest makes a device of each at every boot: use {}a max memory of at \
         most {max_memory}",
        match .larger { Some(size) => format!("an LMB size of {size}, or "), None => String::new() }
    )]
    TooManyAcpiLmbs {
        /// LMBs of the window.
        lmbs: u64,
        /// The most there may be.
        max: u64,
        /// The window.
        window: Bytes,
        /// LMB size.
        lmb: LmbSize,
        /// The smallest LMB size that would do, if any does.
        larger: Option<Bytes>,
        /// The largest max memory with this LMB size.
        max_memory: Bytes,
    },
    /// No such hotplug backend.
    #[error("'{text}' is no kind of hotplug; use virtio-mem or acpi")]
    Hotplug {
        /// The text as given.
        text: String,
    },
    /// No such page size.
    #[error("'{text}' is no kind of host page; use off, thp, 2M or 1G")]
    PageSize {
        /// The text as given.
        text: String,
    },
    /// Physical address bits out of range.
    #[error("{given} physical address bits are not possible on x86-64: 32 to 52")]
    PhysBits {
        /// The number given.
        given: u8,
    },
    /// Boot memory past the host's physical addresses.
    #[error(
        "boot memory of {boot} ends at {end:#x}, past the host's {phys_bits} physical address bits"
    )]
    BootPastHostWidth {
        /// Boot memory.
        boot: Bytes,
        /// Its end.
        end: u64,
        /// Physical address bits of the host.
        phys_bits: u8,
    },
    /// An address that does not exist; sizes within their limits give none.
    #[error(transparent)]
    Unit(#[from] UnitError),
}
