//! The layout: any request, on any host, is refused with a reason or gives a
//! layout that obeys every rule.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lmb_fuzz::input::Input;
use lmb_fuzz::layout::check;
use lmb_memory::{Bytes, GuestBlock, Hotplug, Layout, LmbSize, MemoryRequest, PageSize};

/// A size: a few units of a power of two, perhaps a little more or less.
fn size(input: &mut Input<'_>) -> Bytes {
    let shift = u32::from(input.u8());
    if shift >= 0xf0 {
        return Bytes::new(input.u64());
    }
    let units = u64::from(input.u16());
    let near = i64::from(input.u8().cast_signed());
    let bytes = units.wrapping_shl(shift % 64);
    Bytes::new(if shift & 0x40 != 0 {
        bytes.wrapping_add_signed(near)
    } else {
        bytes
    })
}

fn maybe<T>(input: &mut Input<'_>, some: impl Fn(&mut Input<'_>) -> T) -> Option<T> {
    input.flag().then(|| some(input))
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let lmb = Bytes::new(1 << (21 + u32::from(input.below(12))));
    let request = MemoryRequest {
        lmb_size: LmbSize::new(lmb).expect("a power of two from 2 MiB to 4 GiB"),
        memory: size(&mut input),
        max_memory: maybe(&mut input, size),
        guest_block: match input.below(3) {
            0 => GuestBlock::Follow,
            1 => GuestBlock::Fixed(Bytes::new(1 << (27 + u32::from(input.below(5))))),
            _ => GuestBlock::Fixed(size(&mut input)),
        },
        slot_size: maybe(&mut input, size),
        page_size: PageSize::ALL[usize::from(input.u8()) % PageSize::ALL.len()],
        hotplug: Hotplug::ALL[usize::from(input.u8()) % Hotplug::ALL.len()],
        phys_bits: input.u8(),
        kernel_reach: maybe(&mut input, size),
        max_map_count: maybe(&mut input, |input| u64::from(input.u32())),
        max_slots: u64::from(input.u16()),
    };
    check(&request, &Layout::compute(&request));
});
