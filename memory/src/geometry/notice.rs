//! What a layout tells its user without refusing anything.

use std::fmt;

use crate::units::{Bytes, GuestRange, LmbSize};

/// Something the user should know about a layout.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// Boot memory was rounded up to whole LMBs.
    RoundedUp {
        /// Size asked for.
        asked: Bytes,
        /// Size given.
        given: Bytes,
        /// LMB size.
        lmb: LmbSize,
    },
    /// The guest's memory block is not the one that follows the LMB.
    GuestBlockNotFollowed {
        /// Block wanted.
        wanted: Bytes,
        /// Block Linux will use.
        given: Bytes,
        /// Why.
        reason: BlockReason,
    },
    /// The window's length is no multiple of the guest's memory block.
    WindowRestUnpluggable {
        /// Bytes at the window's end that Linux cannot plug.
        rest: Bytes,
        /// The guest's memory block.
        guest_block: Bytes,
    },
    /// The window ends past the host's physical addresses.
    WindowPastHostWidth {
        /// The window.
        window: GuestRange,
        /// Physical address bits of the host.
        phys_bits: u8,
    },
    /// The window ends past what the chosen kernel entry reaches.
    WindowPastKernelReach {
        /// The window.
        window: GuestRange,
        /// End of what it reaches.
        reach: Bytes,
    },
    /// Boot memory ends past what the chosen kernel entry reaches.
    BootPastKernelReach {
        /// End of boot memory.
        end: u64,
        /// End of what it reaches.
        reach: Bytes,
    },
    /// The worst case needs more mappings than the host allows a process.
    MappingsPastLimit {
        /// Mappings in the worst case.
        worst_case: u64,
        /// The host's vm.max_map_count.
        limit: u64,
    },
}

/// Why the guest's memory block cannot be the wanted one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BlockReason {
    /// Boot memory has no piece to spare for the end of RAM.
    BootTooSmall {
        /// Boot memory.
        boot: Bytes,
        /// The piece it would take.
        tail: Bytes,
    },
    /// Host pages are larger than the block, so RAM cannot end at its boundary.
    PageTooLarge {
        /// Host page.
        page: Bytes,
    },
    /// RAM would have to end past the host's physical addresses.
    PastHostWidth {
        /// Where RAM would have to end.
        end: u64,
        /// Physical address bits of the host.
        phys_bits: u8,
    },
}

impl fmt::Display for BlockReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BootTooSmall { boot, tail } => write!(
                f,
                "boot memory of {boot} cannot spare the {tail} piece that sets the end of RAM; \
                 give it more memory"
            ),
            Self::PageTooLarge { page } => write!(
                f,
                "RAM in host pages of {page} cannot end where that block needs it; use smaller pages"
            ),
            Self::PastHostWidth { end, phys_bits } => write!(
                f,
                "RAM would have to end at {end:#x}, past the host's {phys_bits} physical address bits"
            ),
        }
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RoundedUp { asked, given, lmb } => write!(
                f,
                "boot memory of {asked} is rounded up to {given}, whole LMBs of {lmb}"
            ),
            Self::GuestBlockNotFollowed {
                wanted,
                given,
                reason,
            } => write!(
                f,
                "the guest's memory block will be {given} and not {wanted}: {reason}"
            ),
            Self::WindowRestUnpluggable { rest, guest_block } => write!(
                f,
                "the guest cannot plug the last {rest} of the window, which are less than its \
                 memory block of {guest_block}; make the window a multiple of that"
            ),
            Self::WindowPastHostWidth { window, phys_bits } => write!(
                f,
                "the window {window} ends past the host's {phys_bits} physical address bits; the \
                 guest cannot use what lies above {:#x}",
                1_u64.checked_shl(u32::from(*phys_bits)).unwrap_or(u64::MAX)
            ),
            Self::WindowPastKernelReach { window, reach } => write!(
                f,
                "the window {window} ends past {reach}, which is all that the kernel reaches when \
                 entered this way"
            ),
            Self::BootPastKernelReach { end, reach } => write!(
                f,
                "boot memory ends at {end:#x}, past {reach}, which is all that the kernel reaches \
                 when entered this way"
            ),
            Self::MappingsPastLimit { worst_case, limit } => write!(
                f,
                "with every second LMB plugged the VMM needs {worst_case} mappings and the host \
                 allows {limit} (vm.max_map_count); a plug past that is answered BUSY: raise the \
                 limit or use larger LMBs"
            ),
        }
    }
}
