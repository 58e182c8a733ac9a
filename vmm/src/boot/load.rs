//! Placing a kernel, its initrd and its command line in guest memory.
//!
//! Order: kernel first, since its end decides where an initrd may go; then the
//! initrd as high as possible in low memory, out of a growing kernel's way;
//! then what the chosen entry reads.

use std::fs::File;
use std::io::{Cursor, Read, Seek};
use std::path::{Path, PathBuf};

use linux_loader::loader::elf::PvhBootCapability;
use linux_loader::loader::{BzImage, Elf, KernelLoader};
use lmb_memory::GuestRam;
use lmb_memory::Layout;
use vm_memory::{Bytes, GuestAddress, ReadVolatile};

use super::image::{Content, KernelImage};
use super::place::{Initrd, write_bytes};
use super::{BootError, CMDLINE, CMDLINE_MAX_BYTES, HIGH_START, linux64, memmap, pvh};
use crate::acpi::TopArea;
use crate::protocol::EntryKind;

/// Where a bzImage goes when its header names no place: 16 MiB, Linux's
/// default CONFIG_PHYSICAL_START.
const BZIMAGE_LOAD: u64 = 0x100_0000;
const PAGE_BYTES: u64 = 4096;
/// Highest initrd address Linux takes (setup header `initrd_addr_max`), used
/// for both entries.
const INITRD_MAX: u64 = 0x7fff_ffff;

/// Where the boot vCPU starts and by which protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Instruction pointer.
    pub address: u64,
    /// Protocol.
    pub kind: EntryKind,
}

/// An initrd file, opened once and read at each boot.
#[derive(Debug)]
pub struct InitrdFile {
    path: PathBuf,
    file: File,
}

impl InitrdFile {
    /// Opens the file.
    ///
    /// # Errors
    /// When it cannot be opened or is no regular file.
    pub fn open(path: &Path) -> Result<Self, BootError> {
        let error = |source| BootError::Initrd {
            path: path.display().to_string(),
            source,
        };
        let initrd = Self {
            path: path.into(),
            file: File::open(path).map_err(error)?,
        };
        initrd.measure()?;
        Ok(initrd)
    }

    /// Its size now, bytes.
    fn measure(&self) -> Result<u64, BootError> {
        let metadata = self.file.metadata().map_err(|source| self.error(source))?;
        if !metadata.is_file() {
            return Err(self.error(std::io::Error::other("it is not a regular file")));
        }
        Ok(metadata.len())
    }

    fn error(&self, source: std::io::Error) -> BootError {
        BootError::Initrd {
            path: self.path.display().to_string(),
            source,
        }
    }
}

/// Checks a command line before anything is built.
///
/// # Errors
/// When it is too long or holds a NUL.
pub fn check_cmdline(cmdline: &str) -> Result<(), BootError> {
    if cmdline.len() >= CMDLINE_MAX_BYTES {
        return Err(BootError::CmdlineTooLong(cmdline.len()));
    }
    if cmdline.contains('\0') {
        return Err(BootError::CmdlineNul);
    }
    Ok(())
}

/// Fills guest memory for one boot and says where the boot vCPU starts. What
/// ACPI takes of low RAM stays free.
///
/// # Errors
/// When a part does not fit or the kernel is not loadable.
pub fn load(
    ram: &GuestRam,
    layout: &Layout,
    top: Option<&TopArea>,
    kernel: &KernelImage,
    initrd: Option<&InitrdFile>,
    cmdline: &str,
) -> Result<Entry, BootError> {
    let low_end = top.map_or_else(|| memmap::low_ram_end(layout), |top| top.start);
    let (entry, kernel_end) = match &kernel.content {
        Content::ElfFile(file) => load_elf(ram, kernel, &mut &*file, low_end)?,
        Content::Elf(bytes) => load_elf(ram, kernel, &mut Cursor::new(bytes), low_end)?,
        Content::Bzimage(bytes) => load_bzimage(ram, kernel, bytes, low_end)?,
    };
    let initrd = initrd
        .map(|file| load_initrd(ram, file, kernel_end, low_end))
        .transpose()?;
    let mut line = cmdline.as_bytes().to_vec();
    line.push(0);
    write_bytes(ram, CMDLINE, &line)?;
    let map = memmap::entries(layout, top);
    match &kernel.content {
        Content::ElfFile(_) | Content::Elf(_) => pvh::write(ram, &map, initrd.as_ref())?,
        Content::Bzimage(bytes) => linux64::write(ram, bytes, &map, initrd.as_ref())?,
    }
    Ok(Entry {
        address: entry,
        kind: kernel.entry,
    })
}

fn load_elf(
    ram: &GuestRam,
    kernel: &KernelImage,
    image: &mut (impl Read + ReadVolatile + Seek),
    low_end: u64,
) -> Result<(u64, u64), BootError> {
    let loaded = Elf::load(ram, None, image, Some(GuestAddress(HIGH_START)))
        .map_err(|source| loader_error(kernel, low_end, source))?;
    if loaded.kernel_end > low_end {
        return Err(BootError::KernelTooBig {
            needed: loaded.kernel_end,
            low_end,
        });
    }
    match loaded.pvh_boot_cap {
        PvhBootCapability::PvhEntryPresent(entry) => Ok((entry.0, loaded.kernel_end)),
        _ => Err(BootError::NoPvhEntry(kernel.path.display().to_string())),
    }
}

fn load_bzimage(
    ram: &GuestRam,
    kernel: &KernelImage,
    image: &[u8],
    low_end: u64,
) -> Result<(u64, u64), BootError> {
    let field = |at: usize| {
        image
            .get(at..at + 8)
            .and_then(|bytes| bytes.try_into().ok())
            .map_or(0, u64::from_le_bytes)
    };
    // pref_address (0x258) is aligned to kernel_alignment by the build.
    let preferred = field(0x258);
    let load = if (HIGH_START..low_end).contains(&preferred) {
        preferred
    } else {
        BZIMAGE_LOAD
    };
    // init_size (0x260): what the kernel uses before it reads the memory map.
    let needed = load.saturating_add(field(0x260) & 0xffff_ffff);
    if needed > low_end {
        return Err(BootError::KernelTooBig { needed, low_end });
    }
    let loaded = BzImage::load(
        ram,
        Some(GuestAddress(load)),
        &mut Cursor::new(image),
        Some(GuestAddress(HIGH_START)),
    )
    .map_err(|source| loader_error(kernel, low_end, source))?;
    // The 64-bit entry stands 0x200 behind the start of the loaded image.
    Ok((load + 0x200, loaded.kernel_end.max(needed)))
}

fn loader_error(
    kernel: &KernelImage,
    low_end: u64,
    source: linux_loader::loader::Error,
) -> BootError {
    // The loader does not tell a short guest from a damaged file; the end of
    // the image does for every real kernel.
    let needed = HIGH_START.saturating_add(kernel.size_bytes());
    if needed > low_end {
        return BootError::KernelTooBig { needed, low_end };
    }
    BootError::Loader {
        path: kernel.path.display().to_string(),
        source,
    }
}

fn load_initrd(
    ram: &GuestRam,
    initrd: &InitrdFile,
    kernel_end: u64,
    low_end: u64,
) -> Result<Initrd, BootError> {
    let size_bytes = initrd.measure()?;
    let too_big = || BootError::InitrdTooBig {
        path: initrd.path.display().to_string(),
        size_bytes,
        kernel_end,
        low_end,
    };
    let address = low_end
        .min(INITRD_MAX + 1)
        .checked_sub(size_bytes)
        .map(|address| address & !(PAGE_BYTES - 1))
        .filter(|&address| address >= kernel_end)
        .ok_or_else(too_big)?;
    let size = usize::try_from(size_bytes).map_err(|_| too_big())?;
    let mut file = &initrd.file;
    file.rewind().map_err(|source| initrd.error(source))?;
    ram.read_exact_volatile_from(GuestAddress(address), &mut file, size)
        .map_err(|error| initrd.error(std::io::Error::other(error.to_string())))?;
    Ok(Initrd {
        address,
        size_bytes,
    })
}
