//! The Linux 64-bit boot protocol (Documentation/arch/x86/boot.rst): the zero
//! page and the page tables under which the kernel's decompressor starts.

use lmb_memory::GuestRam;

use super::memmap::MapEntry;
use super::place::{Initrd, write_bytes};
use super::{ACPI, BootError, CMDLINE, PML4, ZERO_PAGE};

const PAGE_BYTES: usize = 4096;
/// Offsets in `struct boot_params`.
const ACPI_RSDP_ADDR: usize = 0x070;
const E820_ENTRIES: usize = 0x1e8;
const SETUP_HEADER: usize = 0x1f1;
const TYPE_OF_LOADER: usize = 0x210;
const RAMDISK_IMAGE: usize = 0x218;
const RAMDISK_SIZE: usize = 0x21c;
const CMD_LINE_PTR: usize = 0x228;
const E820_TABLE: usize = 0x2d0;
/// Bytes of one e820 entry in the zero page, and how many it holds.
const E820_ENTRY_BYTES: usize = 20;
const E820_MAX: u8 = 128;
/// "Undefined" loader type: a loader without an assigned number.
const LOADER_UNDEFINED: u8 = 0xff;

/// Writes zero page and page tables. `image` is the whole bzImage, whose setup
/// header is taken over as the protocol demands.
pub(super) fn write(
    ram: &GuestRam,
    image: &[u8],
    map: &[MapEntry],
    initrd: Option<&Initrd>,
) -> Result<(), BootError> {
    let mut page = [0_u8; PAGE_BYTES];
    // The header ends at 0x202 plus the byte at 0x201 (the jump's target).
    let header_end = 0x202 + usize::from(image.get(0x201).copied().unwrap_or(0));
    if let Some(header) = image.get(SETUP_HEADER..header_end) {
        page[SETUP_HEADER..header_end].copy_from_slice(header);
    }
    page[TYPE_OF_LOADER] = LOADER_UNDEFINED;
    put(&mut page, ACPI_RSDP_ADDR, &ACPI.to_le_bytes());
    put(&mut page, CMD_LINE_PTR, &low_u32(CMDLINE));
    if let Some(initrd) = initrd {
        put(&mut page, RAMDISK_IMAGE, &low_u32(initrd.address));
        put(&mut page, RAMDISK_SIZE, &low_u32(initrd.size_bytes));
    }
    let entries = u8::try_from(map.len()).map_or(E820_MAX, |count| count.min(E820_MAX));
    page[E820_ENTRIES] = entries;
    for (entry, at) in map
        .iter()
        .take(usize::from(entries))
        .zip((E820_TABLE..).step_by(E820_ENTRY_BYTES))
    {
        put(&mut page, at, &entry.start.to_le_bytes());
        put(&mut page, at + 8, &entry.size_bytes.to_le_bytes());
        put(&mut page, at + 16, &entry.kind.to_le_bytes());
    }
    write_bytes(ram, ZERO_PAGE, &page)?;
    write_bytes(ram, PML4, &identity_page_tables())
}

fn put(page: &mut [u8; PAGE_BYTES], at: usize, bytes: &[u8]) {
    page[at..at + bytes.len()].copy_from_slice(bytes);
}

/// Addresses written here lie below 4 GiB by construction (the low map, and an
/// initrd placed below `initrd_addr_max`).
fn low_u32(value: u64) -> [u8; 4] {
    u32::try_from(value).unwrap_or(u32::MAX).to_le_bytes()
}

/// Pages that map the first 4 GiB onto themselves in 2 MiB pages: the kernel,
/// the zero page and the command line lie there, which is what the protocol
/// asks for; the decompressor builds its own tables for the rest.
fn identity_page_tables() -> Vec<u8> {
    const PRESENT_WRITABLE: u64 = 0x3;
    const LARGE: u64 = 0x80;
    const DIRECTORIES: u64 = 4;
    let mut tables = vec![0_u64; (2 + 4) * PAGE_BYTES / 8];
    tables[0] = (PML4 + 0x1000) | PRESENT_WRITABLE;
    for (entry, number) in tables[512..].iter_mut().zip(0..DIRECTORIES) {
        *entry = (PML4 + 0x2000 + number * 0x1000) | PRESENT_WRITABLE;
    }
    for (entry, number) in tables[1024..].iter_mut().zip(0_u64..) {
        *entry = (number << 21) | PRESENT_WRITABLE | LARGE;
    }
    tables
        .iter()
        .flat_map(|entry| entry.to_le_bytes())
        .collect()
}
