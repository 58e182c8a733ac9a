//! The computation, step by step: options, boot memory, window, slots,
//! mappings.

use super::error::GeometryError;
use super::notice::Notice;
use super::place::{HOLE_END, HOLE_START, PlaceRequest, place};
use super::{
    GuestBlock, Hotplug, Layout, MAPPING_HEADROOM, MAX_ACPI_LMBS, MemoryRequest, WindowLayout,
};
use crate::units::{Bytes, GuestAddr, GuestRange, LmbCount, LmbSize, nearest_powers};

/// Largest boot memory and largest window.
const SIZE_MAX: Bytes = Bytes::new(64 << 40);
/// The window starts on a boundary of any memory block of Linux.
const WINDOW_ALIGN: Bytes = Bytes::new(2 << 30);
/// Default slot size, if the LMB is not larger.
const SLOT_DEFAULT: Bytes = Bytes::GIB;
/// Largest slot: half of KVM's limit of 2^31 - 1 pages, as a power of two.
const SLOT_MAX: Bytes = Bytes::new(4 << 40);
/// The default slot size grows when the window would need more slots.
const SLOTS_WANTED: u64 = 8_192;
/// What Linux reserves for bounce buffers if memory may lie above 4 GiB.
const SWIOTLB: Bytes = Bytes::new(64 << 20);

pub(super) fn compute(request: &MemoryRequest) -> Result<Layout, GeometryError> {
    let lmb = request.lmb_size;
    check_host(request)?;
    let mut notices = Vec::new();
    let boot_bytes = boot_size(request, &mut notices)?;
    let placement = place(&PlaceRequest {
        boot: boot_bytes,
        wanted_block: wanted_block(request)?,
        fixed: matches!(request.guest_block, GuestBlock::Fixed(_)),
        page: request.page_size.bytes(),
        phys_bits: request.phys_bits,
    })?;
    notices.extend(placement.notice);
    let ram_end = placement.pieces.last().map_or(0, |piece| piece.range.end());
    let boot_slots = u64::try_from(placement.pieces.len()).unwrap_or(u64::MAX);
    let window = window(request, boot_bytes, ram_end)?;
    let slot_size = slot_size(request, window.as_ref(), boot_slots)?;
    let guest_block = placement.guest_block;
    if let Some(window) = window.filter(|_| request.hotplug == Hotplug::Acpi) {
        check_acpi(request, &window, boot_bytes, guest_block)?;
    }

    if let Some(reach) = request.kernel_reach.filter(|reach| ram_end > reach.get()) {
        notices.push(Notice::BootPastKernelReach {
            end: ram_end,
            reach,
        });
    }
    if let Some(window) = &window {
        notices.extend(window_notices(request, window, guest_block));
    }
    let window_lmbs = window.map_or(0, |window| window.lmbs.get());
    let worst_case_mappings = window_lmbs
        .saturating_add(boot_slots)
        .saturating_add(MAPPING_HEADROOM);
    if let Some(limit) = request
        .max_map_count
        .filter(|limit| worst_case_mappings > *limit && window_lmbs > 0)
    {
        notices.push(Notice::MappingsPastLimit {
            worst_case: worst_case_mappings,
            limit,
        });
    }
    let end = window.map_or(ram_end, |window| window.range.end());
    Ok(Layout {
        lmb_size: lmb,
        boot: placement.pieces,
        boot_bytes,
        boot_lmbs: lmb.lmbs_in(boot_bytes).unwrap_or_default(),
        window,
        slot_size,
        guest_block,
        page_size: request.page_size,
        hotplug: request.hotplug,
        hole: GuestRange::new(
            GuestAddr::new(HOLE_START.get()),
            Bytes::new(HOLE_END.get() - HOLE_START.get()),
        )?,
        notices,
        worst_case_mappings,
        swiotlb_bytes: if end > HOLE_END.get() {
            SWIOTLB
        } else {
            Bytes::ZERO
        },
    })
}

fn check_host(request: &MemoryRequest) -> Result<(), GeometryError> {
    if !(32..=52).contains(&request.phys_bits) {
        return Err(GeometryError::PhysBits {
            given: request.phys_bits,
        });
    }
    if request.lmb_size.bytes() < request.page_size.bytes() {
        return Err(GeometryError::LmbBelowPage {
            lmb: request.lmb_size,
            page: request.page_size,
        });
    }
    Ok(())
}

/// Boot memory in whole LMBs.
fn boot_size(request: &MemoryRequest, notices: &mut Vec<Notice>) -> Result<Bytes, GeometryError> {
    let (asked, lmb) = (request.memory, request.lmb_size);
    let given = asked
        .round_up(lmb.bytes())
        .filter(|given| !given.is_zero() && *given <= SIZE_MAX)
        .ok_or(GeometryError::BootSize {
            asked,
            min: lmb.bytes(),
            max: SIZE_MAX,
        })?;
    if given != asked {
        notices.push(Notice::RoundedUp { asked, given, lmb });
    }
    Ok(given)
}

fn wanted_block(request: &MemoryRequest) -> Result<Bytes, GeometryError> {
    match request.guest_block {
        GuestBlock::Follow => Ok(request
            .lmb_size
            .bytes()
            .clamp(GuestBlock::MIN, GuestBlock::MAX)),
        GuestBlock::Fixed(size)
            if size.is_power_of_two() && (GuestBlock::MIN..=GuestBlock::MAX).contains(&size) =>
        {
            Ok(size)
        }
        GuestBlock::Fixed(asked) => {
            let (below, above) = nearest_powers(asked, GuestBlock::MIN, GuestBlock::MAX);
            Err(GeometryError::GuestBlockSize {
                asked,
                below,
                above,
            })
        }
    }
}

/// The window: what `max_memory` leaves above boot memory.
fn window(
    request: &MemoryRequest,
    boot: Bytes,
    ram_end: u64,
) -> Result<Option<WindowLayout>, GeometryError> {
    let lmb = request.lmb_size;
    let Some(max) = request.max_memory else {
        return Ok(None);
    };
    if !max.is_multiple_of(lmb.bytes()) {
        return Err(GeometryError::MaxNotWholeLmbs {
            asked: max,
            lmb,
            below: max.round_down(lmb.bytes()).max(boot),
            above: max.round_up(lmb.bytes()).filter(|above| *above > boot),
        });
    }
    let Some(size) = max.checked_sub(boot) else {
        return Err(GeometryError::MaxBelowBoot { max, boot });
    };
    if size.is_zero() {
        return Ok(None);
    }
    if size > SIZE_MAX {
        return Err(GeometryError::WindowTooLarge {
            asked: size,
            max: SIZE_MAX,
            // Both are at most 64 TiB.
            max_memory: boot.checked_add(SIZE_MAX).unwrap_or(SIZE_MAX),
        });
    }
    let align = lmb.bytes().max(WINDOW_ALIGN).get();
    // RAM ends below 2^52, so the next boundary exists.
    let start = ram_end.max(HOLE_END.get()).next_multiple_of(align);
    Ok(Some(WindowLayout {
        range: GuestRange::new(GuestAddr::new(start), size)?,
        lmbs: lmb.lmbs_in(size).unwrap_or(LmbCount::ZERO),
    }))
}

/// The rules of ACPI memory devices.
fn check_acpi(
    request: &MemoryRequest,
    window: &WindowLayout,
    boot: Bytes,
    guest_block: Bytes,
) -> Result<(), GeometryError> {
    let lmb = request.lmb_size;
    if lmb.bytes() < guest_block {
        return Err(GeometryError::AcpiLmbBelowBlock {
            lmb,
            guest_block,
            block_may_shrink: lmb.bytes() >= GuestBlock::MIN,
        });
    }
    let lmbs = window.lmbs.get();
    if lmbs <= MAX_ACPI_LMBS {
        return Ok(());
    }
    let len = window.range.len();
    let fits = |size: &Bytes| {
        LmbSize::new(*size).is_ok() && len.get().div_ceil(size.get()) <= MAX_ACPI_LMBS
    };
    let larger = (lmb.bytes().get().trailing_zeros()..64)
        .map(|shift| Bytes::new(1 << shift))
        .find(fits);
    Err(GeometryError::TooManyAcpiLmbs {
        lmbs,
        max: MAX_ACPI_LMBS,
        window: len,
        lmb,
        larger,
        max_memory: lmb
            .checked_bytes_of(LmbCount::new(MAX_ACPI_LMBS))
            .and_then(|window| boot.checked_add(window))
            .unwrap_or(boot),
    })
}

fn window_notices(
    request: &MemoryRequest,
    window: &WindowLayout,
    guest_block: Bytes,
) -> Vec<Notice> {
    let mut notices = Vec::new();
    let len = window.range.len();
    let rest = Bytes::new(len.get() - len.round_down(guest_block).get());
    if !rest.is_zero() {
        notices.push(Notice::WindowRestUnpluggable { rest, guest_block });
    }
    if window.range.end() > 1 << request.phys_bits {
        notices.push(Notice::WindowPastHostWidth {
            window: window.range,
            phys_bits: request.phys_bits,
        });
    }
    if let Some(reach) = request
        .kernel_reach
        .filter(|reach| window.range.end() > reach.get())
    {
        notices.push(Notice::WindowPastKernelReach {
            window: window.range,
            reach,
        });
    }
    notices
}

/// Size of the window's slots: the one asked for, or the default.
fn slot_size(
    request: &MemoryRequest,
    window: Option<&WindowLayout>,
    boot_slots: u64,
) -> Result<Bytes, GeometryError> {
    let min = request.lmb_size.bytes();
    let len = window.map_or(0, |window| window.range.len().get());
    let available = request.max_slots.saturating_sub(boot_slots);
    // The smallest power of two from `from` on that needs at most `slots`.
    let fitting = |from: Bytes, slots: u64| {
        (from.get().trailing_zeros()..=SLOT_MAX.get().trailing_zeros())
            .map(|shift| Bytes::new(1 << shift))
            .find(|size| len.div_ceil(size.get()) <= slots)
    };
    let size = match request.slot_size {
        None => fitting(min.max(SLOT_DEFAULT), available.min(SLOTS_WANTED)).unwrap_or(SLOT_MAX),
        Some(size) if size.is_power_of_two() && (min..=SLOT_MAX).contains(&size) => size,
        Some(asked) => {
            let (below, above) = nearest_powers(asked, min, SLOT_MAX);
            return Err(GeometryError::SlotSize {
                asked,
                min,
                max: SLOT_MAX,
                below,
                above,
            });
        }
    };
    let needed = len.div_ceil(size.get());
    if needed > available || boot_slots > request.max_slots {
        return Err(GeometryError::TooManySlots {
            window: Bytes::new(len),
            slot_size: size,
            boot: boot_slots,
            needed: needed.saturating_add(boot_slots),
            max: request.max_slots,
            smallest: fitting(size, available),
        });
    }
    Ok(size)
}
