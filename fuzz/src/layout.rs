//! The rules of the layout (head of memory/src/geometry/mod.rs), checked one by
//! one on what came out.

use lmb_memory::{GeometryError, GuestBlock, Hotplug, Layout, LmbIndex, MemoryRequest, Notice};

const MIB: u128 = 1 << 20;
const GIB: u128 = 1 << 30;

/// A layout obeys the rules, or a refusal has a text.
pub fn check(request: &MemoryRequest, outcome: &Result<Layout, GeometryError>) {
    match outcome {
        Ok(layout) => {
            check_boot(request, layout);
            check_block(request, layout);
            check_window(request, layout);
            check_lmbs(layout);
            for notice in &layout.notices {
                assert!(!notice.to_string().is_empty());
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fn wide(bytes: lmb_memory::Bytes) -> u128 {
    u128::from(bytes.get())
}

fn check_boot(request: &MemoryRequest, layout: &Layout) {
    let (lmb, page) = (
        wide(request.lmb_size.bytes()),
        wide(request.page_size.bytes()),
    );
    assert!(lmb >= page, "an LMB is at least a host page");
    let (boot, asked) = (wide(layout.boot_bytes), wide(request.memory));
    assert_eq!(boot, asked.div_ceil(lmb) * lmb, "boot memory is rounded up");
    assert_eq!(u128::from(layout.boot_lmbs.get()) * lmb, boot);
    let mut last_end = 0;
    let mut sum = 0;
    for piece in &layout.boot {
        let start = u128::from(piece.range.start().get());
        let end = u128::from(piece.range.end());
        assert!(start >= last_end && end > start, "pieces ascend");
        assert!(start.is_multiple_of(page) && end.is_multiple_of(page));
        assert!(end <= 3 * GIB || start >= 4 * GIB, "a piece in the hole");
        last_end = end;
        sum += end - start;
    }
    assert_eq!(sum, boot, "the pieces are boot memory");
    assert!(
        last_end <= 1 << request.phys_bits,
        "past the host's addresses"
    );
    let rounded = |notice: &&Notice| matches!(notice, Notice::RoundedUp { .. });
    let told = layout.notices.iter().filter(rounded).count();
    assert_eq!(told, usize::from(boot != asked));
}

/// What Linux makes of the end of RAM (arch/x86/mm/init_64.c,
/// `probe_memory_block_size`).
fn linux_block(end: u128) -> u128 {
    let mut block = 2 * GIB;
    while block > 128 * MIB && (end < 64 * GIB || !end.is_multiple_of(block)) {
        block /= 2;
    }
    block
}

fn check_block(request: &MemoryRequest, layout: &Layout) {
    let block = wide(layout.guest_block);
    assert_eq!(block, linux_block(u128::from(layout.ram_end())));
    let told = |notice: &Notice| matches!(notice, Notice::GuestBlockNotFollowed { .. });
    match request.guest_block {
        GuestBlock::Fixed(size) => assert_eq!(wide(size), block),
        GuestBlock::Follow => {
            let wanted = wide(request.lmb_size.bytes()).clamp(128 * MIB, 2 * GIB);
            assert_eq!(layout.notices.iter().any(told), block != wanted);
        }
    }
}

fn check_window(request: &MemoryRequest, layout: &Layout) {
    let lmb = wide(request.lmb_size.bytes());
    let ram_end = u128::from(layout.ram_end());
    let max = request.max_memory.map_or(wide(layout.boot_bytes), wide);
    let asked = max - wide(layout.boot_bytes);
    let mut end = ram_end;
    match &layout.window {
        None => assert_eq!(asked, 0),
        Some(window) => {
            let start = u128::from(window.range.start().get());
            end = u128::from(window.range.end());
            let align = lmb.max(2 * GIB);
            let floor = ram_end.max(4 * GIB);
            assert_eq!(start, floor.div_ceil(align) * align, "the next boundary");
            assert_eq!(end - start, asked);
            assert_eq!(u128::from(window.lmbs.get()) * lmb, asked);
            if layout.hotplug == Hotplug::Acpi {
                assert!(window.lmbs.get() <= lmb_memory::MAX_ACPI_LMBS);
                assert!(lmb >= wide(layout.guest_block));
            }
        }
    }
    let windowed = layout.window.is_some();
    let told = |kind: fn(&Notice) -> bool| layout.notices.iter().any(kind);
    assert_eq!(
        told(|notice| matches!(notice, Notice::WindowPastHostWidth { .. })),
        windowed && end > 1 << request.phys_bits
    );
    assert_eq!(
        told(|notice| matches!(notice, Notice::WindowPastKernelReach { .. })),
        windowed && request.kernel_reach.is_some_and(|reach| end > wide(reach))
    );
    assert_eq!(
        told(|notice| matches!(notice, Notice::WindowRestUnpluggable { .. })),
        !asked.is_multiple_of(wide(layout.guest_block))
    );
    let swiotlb = if end > 4 * GIB { 64 * MIB } else { 0 };
    assert_eq!(wide(layout.swiotlb_bytes), swiotlb);
    let slot = wide(layout.slot_size);
    assert!(slot.is_power_of_two() && slot >= lmb && slot <= 4096 * GIB);
    assert!(request.slot_size.is_none_or(|size| wide(size) == slot));
    let slots = u128::from(layout.window_slots());
    assert_eq!(slots, asked.div_ceil(slot));
    assert!(slots + layout.boot.len() as u128 <= u128::from(request.max_slots));
}

fn check_lmbs(layout: &Layout) {
    let lmb = layout.lmb_size.bytes().get();
    let count = layout.boot_lmbs.get();
    let some = (0..count.min(4)).chain(count.saturating_sub(4)..count);
    for index in some {
        let pieces = layout.boot_lmb_pieces(LmbIndex::new(index));
        let sum: u64 = pieces.iter().map(|piece| piece.len().get()).sum();
        assert_eq!(sum, lmb, "boot LMB {index}");
        for piece in &pieces {
            let homes = layout.boot.iter().filter(|home| {
                home.range.start() <= piece.start() && piece.end() <= home.range.end()
            });
            assert_eq!(homes.count(), 1, "boot LMB {index} lies in RAM");
        }
    }
    assert!(layout.boot_lmb_pieces(LmbIndex::new(count)).is_empty());
}
