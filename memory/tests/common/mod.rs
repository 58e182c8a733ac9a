//! What the tests of host memory share: layouts, and the kernel's own word on
//! which pages of this process are there.
#![allow(dead_code, clippy::unwrap_used, clippy::panic, missing_docs)]

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};

use lmb_memory::{
    Bytes, GuestBlock, GuestRam, Hotplug, Layout, LmbCount, LmbIndex, LmbRange, MemoryRequest,
    PageSize,
};
use vm_memory::{Bytes as _, GuestAddress, GuestMemoryBackend, GuestMemoryRegion};

pub(crate) const PAGE: u64 = 4096;

/// A layout whose boot memory is in one piece.
pub(crate) fn layout(memory: &str, max: Option<&str>, lmb: &str, page: PageSize) -> Layout {
    let size = |text: &str| text.parse::<Bytes>().unwrap();
    Layout::compute(&MemoryRequest {
        memory: size(memory),
        max_memory: max.map(size),
        lmb_size: lmb.parse().unwrap(),
        guest_block: GuestBlock::Fixed(size("128M")),
        slot_size: None,
        page_size: page,
        hotplug: Hotplug::VirtioMem,
        phys_bits: 48,
        kernel_reach: None,
        max_map_count: None,
        max_slots: 32_764,
    })
    .unwrap()
}

pub(crate) fn run(first: u64, count: u64) -> LmbRange {
    LmbRange::new(LmbIndex::new(first), LmbCount::new(count)).unwrap()
}

/// Bytes of `[address, address + len)` of this process that have a page, from
/// /proc/self/pagemap (bit 63: present, bit 62: swapped).
pub(crate) fn resident_bytes(address: u64, len: u64) -> u64 {
    let mut entries = vec![0_u8; usize::try_from(len / PAGE * 8).unwrap()];
    let pagemap = File::open("/proc/self/pagemap").unwrap();
    pagemap
        .read_exact_at(&mut entries, address / PAGE * 8)
        .unwrap();
    let present = entries
        .chunks_exact(8)
        .filter(|entry| u64::from_le_bytes((*entry).try_into().unwrap()) >> 62 != 0)
        .count();
    present as u64 * PAGE
}

/// Permissions of the mapping that holds an address, such as `rw-p`.
pub(crate) fn permissions(address: u64) -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let hex = |text: &str| u64::from_str_radix(text, 16).unwrap();
    let held = |line: &&str| {
        let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
        (hex(start)..hex(end)).contains(&address)
    };
    let line = maps.lines().find(held);
    line.map_or("none".into(), |line| {
        line.split(' ').nth(1).unwrap().to_owned()
    })
}

/// Bytes that the file behind the region at a guest address holds.
pub(crate) fn file_bytes(guest: &GuestRam, address: u64) -> u64 {
    let region = guest.find_region(GuestAddress(address)).unwrap();
    let file = region.file_offset().unwrap().file();
    file.metadata().unwrap().blocks() * 512
}

/// Writes to each page of a range.
pub(crate) fn touch(guest: &GuestRam, address: u64, len: u64) {
    for page in (address..address + len).step_by(4096) {
        guest.write_obj(page, GuestAddress(page)).unwrap();
    }
}
