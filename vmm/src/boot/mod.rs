//! From a kernel file to guest memory that a vCPU can start in.
//!
//! [`image`] reads and unpacks the file before a VM exists; [`load`] places
//! kernel, initrd, command line, memory map and entry structures.
//! The low megabyte is laid out once, here:
//!
//! | guest-physical address | what |
//! |---|---|
//! | 0x0500 | GDT |
//! | 0x6000 | PVH start info, module list |
//! | 0x7000 | zero page (boot_params) of the 64-bit entry |
//! | 0x8000 | PVH memory map |
//! | 0x9000..0xf000 | page tables of the 64-bit entry |
//! | 0x2_0000 | command line |
//! | 0x9_fc00 | end of conventional memory |
//! | 0xe_0000 | ACPI tables |
//! | 0xf_fff0 | reset vector |
//! | 0x10_0000 | RAM goes on |
//!
//! The top of low RAM holds the tables of ACPI memory devices, where there are
//! any ([`crate::acpi::TopArea`]); an initrd stands below them.

pub mod image;
mod linux64;
pub mod load;
pub mod memmap;
pub mod place;
mod pvh;

/// GDT of both entries.
pub const GDT: u64 = 0x500;
/// PVH start info; the module list follows in the same page.
pub const START_INFO: u64 = 0x6000;
/// Zero page of the Linux 64-bit boot protocol.
pub const ZERO_PAGE: u64 = 0x7000;
/// PVH memory map.
pub const MEMMAP: u64 = 0x8000;
/// Top of the page tables for the 64-bit entry; five more pages follow.
pub const PML4: u64 = 0x9000;
/// Command line.
pub const CMDLINE: u64 = 0x2_0000;
/// Longest command line, bytes, with the terminating NUL. Linux's own limit
/// on x86 (COMMAND_LINE_SIZE, arch/x86/include/asm/setup.h).
pub const CMDLINE_MAX_BYTES: usize = 2048;
/// End of conventional memory (where a PC's EBDA starts).
pub const LOW_END: u64 = 0x9_fc00;
/// ACPI tables; the RSDP stands first, where a scan finds it too.
pub const ACPI: u64 = 0xe_0000;
/// Room for the ACPI tables, bytes.
pub const ACPI_MAX_BYTES: u64 = RESET_VECTOR - ACPI;
/// Where a PC starts after a reset in real mode (F000:FFF0): a kernel that
/// reboots through the BIOS jumps here.
pub const RESET_VECTOR: u64 = 0xf_fff0;
/// Where RAM goes on above the legacy hole.
pub const HIGH_START: u64 = 0x10_0000;

/// Why a guest cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// The kernel file.
    #[error(transparent)]
    Image(#[from] image::ImageError),
    /// The initrd file cannot be read.
    #[error("cannot read initrd {path}: {source}; give an initramfs that exists")]
    Initrd {
        /// Path as given.
        path: String,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The initrd does not fit below the 32-bit hole beside the kernel.
    #[error(
        "initrd {path} of {size_bytes} bytes does not fit into the guest's low memory beside the \
         kernel, which ends at {kernel_end:#x}; low memory ends at {low_end:#x}: give the guest \
         more --memory"
    )]
    InitrdTooBig {
        /// Path as given.
        path: String,
        /// Its size.
        size_bytes: u64,
        /// End of the kernel in guest memory.
        kernel_end: u64,
        /// End of low RAM.
        low_end: u64,
    },
    /// The kernel does not fit.
    #[error(
        "kernel needs guest memory up to {needed:#x}, low memory ends at {low_end:#x}: give the \
         guest more --memory"
    )]
    KernelTooBig {
        /// End that the kernel needs.
        needed: u64,
        /// End of low RAM.
        low_end: u64,
    },
    /// The loader refused the kernel.
    #[error("kernel {path} cannot be loaded: {source}")]
    Loader {
        /// Path as given.
        path: String,
        /// The loader's reason.
        source: linux_loader::loader::Error,
    },
    /// An ELF kernel without the PVH note.
    #[error(
        "kernel {0} has no PVH entry (ELF note XEN_ELFNOTE_PHYS32_ENTRY): build it with \
         CONFIG_PVH=y, or give its bzImage with --kernel-entry bzimage"
    )]
    NoPvhEntry(String),
    /// The command line is too long.
    #[error("the command line has {0} bytes, Linux takes {max}", max = CMDLINE_MAX_BYTES - 1)]
    CmdlineTooLong(usize),
    /// The command line holds a byte that cannot be passed.
    #[error("the command line holds a NUL byte")]
    CmdlineNul,
    /// Guest memory could not be written: a piece of the map above is not RAM.
    #[error("guest memory at {address:#x} cannot be written: {source}")]
    GuestMemory {
        /// Where.
        address: u64,
        /// Why.
        source: vm_memory::GuestMemoryError,
    },
}
