//! The PVH entry: start info, module list and memory map as the guest's
//! `pvh_start_xen` reads them (xen/include/public/arch-x86/hvm/start_info.h).

use linux_loader::start_info::{hvm_memmap_table_entry, hvm_modlist_entry, hvm_start_info};
use lmb_memory::GuestRam;

use super::memmap::MapEntry;
use super::place::{Initrd, write_object};
use super::{ACPI, BootError, CMDLINE, MEMMAP, START_INFO};

/// XEN_HVM_START_MAGIC_VALUE.
const MAGIC: u32 = 0x336e_c578;
/// The version that added the memory map.
const VERSION: u32 = 1;

/// Writes everything that the entry's EBX points to.
pub(super) fn write(
    ram: &GuestRam,
    map: &[MapEntry],
    initrd: Option<&Initrd>,
) -> Result<(), BootError> {
    let mut info = hvm_start_info {
        magic: MAGIC,
        version: VERSION,
        cmdline_paddr: CMDLINE,
        rsdp_paddr: ACPI,
        memmap_paddr: MEMMAP,
        // The map has a handful of entries.
        memmap_entries: u32::try_from(map.len()).unwrap_or(u32::MAX),
        ..Default::default()
    };
    if let Some(initrd) = initrd {
        let module = START_INFO + size_of::<hvm_start_info>() as u64;
        info.nr_modules = 1;
        info.modlist_paddr = module;
        write_object(
            ram,
            module,
            hvm_modlist_entry {
                paddr: initrd.address,
                size: initrd.size_bytes,
                ..Default::default()
            },
        )?;
    }
    write_object(ram, START_INFO, info)?;
    for (entry, slot) in map.iter().zip(0_u64..) {
        write_object(
            ram,
            MEMMAP + slot * size_of::<hvm_memmap_table_entry>() as u64,
            hvm_memmap_table_entry {
                addr: entry.start,
                size: entry.size_bytes,
                type_: entry.kind,
                reserved: 0,
            },
        )?;
    }
    Ok(())
}
