//! Boot memory: its pieces, and the end of RAM that sets Linux's memory block.

use super::error::GeometryError;
use super::notice::{BlockReason, Notice};
use super::{BootPiece, GuestBlock, Layout, PieceKind};
use crate::units::{Bytes, GuestAddr, GuestRange, LmbCount, LmbIndex};

/// Start of the 32-bit hole.
pub(super) const HOLE_START: Bytes = Bytes::new(3 << 30);
/// End of the 32-bit hole.
pub(super) const HOLE_END: Bytes = Bytes::new(4 << 30);
/// Linux uses memory blocks above 128 MiB if RAM does not end below this.
const LARGE_BLOCKS_FROM: u64 = 64 << 30;
/// The smallest piece of RAM that can set the end of RAM.
const TAIL_MIN: Bytes = Bytes::new(2 << 20);

/// Boot memory as placed.
pub(super) struct Placement {
    pub(super) pieces: Vec<BootPiece>,
    pub(super) guest_block: Bytes,
    pub(super) notice: Option<Notice>,
}

/// What the placement depends on.
pub(super) struct PlaceRequest {
    pub(super) boot: Bytes,
    pub(super) wanted_block: Bytes,
    /// Whether another block is an error and not a notice.
    pub(super) fixed: bool,
    pub(super) page: Bytes,
    pub(super) phys_bits: u8,
}

/// Places boot memory so that Linux uses the wanted memory block.
pub(super) fn place(request: &PlaceRequest) -> Result<Placement, GeometryError> {
    let natural = pieces_of(request.boot)?;
    let end = end_of(&natural);
    let given = linux_block(end);
    let wanted = request.wanted_block;
    if end > 1 << request.phys_bits {
        return Err(GeometryError::BootPastHostWidth {
            boot: request.boot,
            end,
            phys_bits: request.phys_bits,
        });
    }
    if given == wanted {
        return Ok(Placement {
            pieces: natural,
            guest_block: given,
            notice: None,
        });
    }
    match with_tail(request)? {
        Ok(pieces) => Ok(Placement {
            guest_block: linux_block(end_of(&pieces)),
            pieces,
            notice: None,
        }),
        Err(reason) if request.fixed => Err(GeometryError::GuestBlockImpossible {
            asked: wanted,
            natural: given,
            reason,
        }),
        Err(reason) => Ok(Placement {
            pieces: natural,
            guest_block: given,
            notice: Some(Notice::GuestBlockNotFollowed {
                wanted,
                given,
                reason,
            }),
        }),
    }
}

/// Boot memory with a tail piece at the lowest end of RAM that gives the
/// wanted block, or why there is none.
fn with_tail(request: &PlaceRequest) -> Result<Result<Vec<BootPiece>, BlockReason>, GeometryError> {
    let tail = TAIL_MIN.max(request.page);
    if request.page > request.wanted_block {
        return Ok(Err(BlockReason::PageTooLarge { page: request.page }));
    }
    let rest = match request.boot.checked_sub(tail) {
        Some(rest) if !rest.is_zero() => rest,
        _ => {
            return Ok(Err(BlockReason::BootTooSmall {
                boot: request.boot,
                tail,
            }));
        }
    };
    let mut pieces = pieces_of(rest)?;
    // Both are below 2^52: boot memory was checked against the host's width.
    let lowest = (end_of(&pieces) + tail.get()).max(LARGE_BLOCKS_FROM);
    let end = exactly_aligned(lowest, request.wanted_block.get());
    if end > 1 << request.phys_bits {
        return Ok(Err(BlockReason::PastHostWidth {
            end,
            phys_bits: request.phys_bits,
        }));
    }
    let start = GuestAddr::new(end - tail.get());
    pieces.push(BootPiece {
        range: GuestRange::new(start, tail)?,
        kind: PieceKind::Tail,
    });
    Ok(Ok(pieces))
}

/// The lowest address at or above `lowest` whose alignment, as far as Linux
/// looks (2 GiB), is exactly `block`.
fn exactly_aligned(lowest: u64, block: u64) -> u64 {
    let end = lowest.next_multiple_of(block);
    if block < GuestBlock::MAX.get() && (end / block).is_multiple_of(2) {
        end + block
    } else {
        end
    }
}

/// The memory block Linux uses if RAM ends here.
pub(super) fn linux_block(ram_end: u64) -> Bytes {
    if ram_end < LARGE_BLOCKS_FROM {
        return GuestBlock::MIN;
    }
    let alignment = Bytes::new(1 << ram_end.trailing_zeros());
    alignment.clamp(GuestBlock::MIN, GuestBlock::MAX)
}

/// RAM from 0 up to the hole, the rest from its end.
fn pieces_of(boot: Bytes) -> Result<Vec<BootPiece>, GeometryError> {
    let low = boot.min(HOLE_START);
    let mut pieces = vec![BootPiece {
        range: GuestRange::new(GuestAddr::new(0), low)?,
        kind: PieceKind::Low,
    }];
    if let Some(high) = boot.checked_sub(HOLE_START).filter(|high| !high.is_zero()) {
        pieces.push(BootPiece {
            range: GuestRange::new(GuestAddr::new(HOLE_END.get()), high)?,
            kind: PieceKind::High,
        });
    }
    Ok(pieces)
}

fn end_of(pieces: &[BootPiece]) -> u64 {
    pieces.last().map_or(0, |piece| piece.range.end())
}

/// The pieces of boot LMB `lmb`: its bytes of RAM in address order.
pub(super) fn lmb_pieces(layout: &Layout, lmb: LmbIndex) -> Option<Vec<GuestRange>> {
    let mut skip = layout
        .lmb_size
        .checked_bytes_of(LmbCount::new(lmb.get()))?
        .get();
    let mut want = layout.lmb_size.bytes().get();
    let mut found = Vec::new();
    for piece in &layout.boot {
        let len = piece.range.len().get();
        if skip >= len {
            skip -= len;
            continue;
        }
        let start = piece.range.start().checked_add(Bytes::new(skip))?;
        let take = (len - skip).min(want);
        found.push(GuestRange::new(start, Bytes::new(take)).ok()?);
        skip = 0;
        want -= take;
        if want == 0 {
            break;
        }
    }
    Some(found)
}
