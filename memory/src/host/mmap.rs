//! The system calls on memory, and the one owner of each mapping.
//!
//! All unsafe code of this crate stands here. A [`Mapping`] owns a range of
//! addresses of this process from its creation until it is dropped; within it,
//! protections and backing change, but no address is ever given up. References
//! into it are never made: the VMM's accesses are vm-memory's volatile ones,
//! and whoever holds a region keeps the mapping alive through an `Arc`.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::num::NonZero;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr;
use std::sync::Arc;

use libc::{c_int, c_void};
use vm_memory::mmap::MmapRegionBuilder;
use vm_memory::{FileOffset, GuestAddress, GuestRegionMmap};

use super::{HostMemoryError, pool_error};
use crate::geometry::PageSize;
use crate::units::{Bytes, GuestAddr};

/// Host addresses are aligned to this at least, as guest addresses of LMBs
/// are, so that transparent huge pages line up on both sides.
const ALIGN_MIN: Bytes = Bytes::new(2 << 20);

/// What may be done to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    None,
    ReadWrite,
}

impl Access {
    fn prot(self) -> c_int {
        match self {
            Self::None => libc::PROT_NONE,
            Self::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
        }
    }
}

/// Part of a mapping, in bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) offset: u64,
    pub(super) len: u64,
}

/// A range of addresses of this process, unmapped when dropped.
#[derive(Debug)]
pub(super) struct Mapping {
    address: usize,
    len: usize,
    /// The memfd behind it, mapped from its start.
    file: Option<Arc<File>>,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // An error means that the arguments are wrong, which they are not, or
        // that the kernel could not split a mapping: the range stays then,
        // harmless.
        let _ = unmap(self.address, self.len);
    }
}

impl Mapping {
    /// Reserves `len` bytes, inaccessible and unaccounted, with `page`'s advice
    /// on huge pages and, if given, the file mapped shared.
    pub(super) fn reserve(
        len: Bytes,
        file: Option<File>,
        page: PageSize,
    ) -> Result<Self, HostMemoryError> {
        let what = || format!("{len} of guest memory");
        let too_large = || HostMemoryError::TooLarge {
            what: "guest memory".to_owned(),
            size: len,
        };
        let align = usize::try_from(ALIGN_MIN.max(page.bytes()).get()).map_err(|_| too_large())?;
        let bytes = usize::try_from(len.get()).map_err(|_| too_large())?;
        let padded = bytes.checked_add(align).ok_or_else(too_large)?;
        let failed = |call| move |source| HostMemoryError::system(call, what(), source);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let start = map(0, padded, libc::PROT_NONE, flags, None).map_err(failed("mmap"))?;
        // The kernel returned `padded` bytes from `start`, so neither wraps.
        let address = start.next_multiple_of(align);
        let head = address - start;
        if head > 0 {
            unmap(start, head).map_err(failed("munmap"))?;
        }
        // Owned from here on: an early return unmaps it.
        let mapping = Self {
            address,
            len: bytes,
            file: file.map(Arc::new),
        };
        unmap(address + bytes, align - head).map_err(failed("munmap"))?;
        if let Some(file) = &mapping.file {
            let flags = libc::MAP_SHARED | libc::MAP_NORESERVE | libc::MAP_FIXED;
            map(address, bytes, libc::PROT_NONE, flags, Some(file)).map_err(failed("mmap"))?;
        }
        mapping.advise_pages(mapping.all(), page)?;
        Ok(mapping)
    }

    /// Maps `len` bytes from the pool of huge pages, accessible and reserved
    /// there; private, or the file's if one is given.
    pub(super) fn from_pool(len: Bytes, page: PageSize, file: Option<File>) -> io::Result<Self> {
        let bytes = usize::try_from(len.get()).map_err(|_| invalid())?;
        let flags = match file {
            Some(_) => libc::MAP_SHARED,
            None => libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | pool_flags(page),
        };
        // The kernel aligns mappings of huge pages to these by itself.
        let address = map(0, bytes, Access::ReadWrite.prot(), flags, file.as_ref())?;
        Ok(Self {
            address,
            len: bytes,
            file: file.map(Arc::new),
        })
    }

    /// Address of the first byte.
    pub(super) fn address(&self) -> u64 {
        // usize is 64 bits wide on the only target, x86-64.
        u64::try_from(self.address).unwrap_or(u64::MAX)
    }

    /// The whole of it.
    pub(super) fn all(&self) -> Span {
        Span {
            offset: 0,
            len: u64::try_from(self.len).unwrap_or(u64::MAX),
        }
    }

    /// Changes what may be done to a span.
    pub(super) fn protect(&self, span: Span, access: Access) -> io::Result<()> {
        let (address, len) = self.locate(span)?;
        // SAFETY: `locate` keeps the call within this mapping, to which no
        // Rust reference exists; volatile accesses by the VMM are let in by
        // the access map only while the memory is open.
        check(unsafe { libc::mprotect(address as *mut c_void, len, access.prot()) })
    }

    /// Frees the private pages of a span; they read as zero afterwards.
    pub(super) fn free_private(&self, span: Span) -> io::Result<()> {
        self.advise(span, libc::MADV_DONTNEED)
    }

    /// Frees the pages of the file behind a span.
    pub(super) fn punch(&self, span: Span) -> io::Result<()> {
        self.fallocate(span, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE)
    }

    /// Allocates the pages of the file behind a span. A failure may leave some
    /// of them allocated.
    pub(super) fn allocate(&self, span: Span) -> io::Result<()> {
        self.fallocate(span, 0)
    }

    /// Replaces a span by private huge pages, accessible and reserved in the
    /// pool; on error the span is as it was.
    pub(super) fn map_pool(&self, span: Span, page: PageSize) -> io::Result<()> {
        let (address, len) = self.locate(span)?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | pool_flags(page);
        let prot = Access::ReadWrite.prot();
        // Linux unmaps what is there before it asks the pool, and a refusal
        // leaves a hole. So the pool is asked elsewhere first.
        let probe = map(0, len, prot, flags, None)?;
        unmap(probe, len)?;
        match map(address, len, prot, flags | libc::MAP_FIXED, None) {
            Ok(_) => Ok(()),
            Err(error) => {
                // Another user of the pool was faster: fill the hole, unless
                // there is none (EEXIST).
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
                let flags = flags | libc::MAP_FIXED_NOREPLACE;
                let _ = map(address, len, libc::PROT_NONE, flags, None);
                Err(error)
            }
        }
    }

    /// Replaces a span by an empty, inaccessible reservation.
    pub(super) fn map_reserved(&self, span: Span) -> io::Result<()> {
        let (address, len) = self.locate(span)?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        map(address, len, libc::PROT_NONE, flags | libc::MAP_FIXED, None).map(drop)
    }

    /// Maps an empty span of private memory anew, as it was at first. Linux
    /// keeps neighbours apart for good once each had pages of its own (their
    /// anon_vma differs, mm/vma.c), though they are empty again; this lets it
    /// merge them.
    pub(super) fn renew(&self, span: Span, page: PageSize) -> Result<(), HostMemoryError> {
        self.map_reserved(span)
            .map_err(|source| HostMemoryError::system("mmap", "guest memory", source))?;
        self.advise_pages(span, page)
    }

    /// Populates an accessible span by `threads` threads, each its share in
    /// whole pages (`MADV_POPULATE_WRITE`, Linux 5.14).
    pub(super) fn populate(
        &self,
        span: Span,
        page: PageSize,
        threads: NonZero<u32>,
    ) -> io::Result<()> {
        let unit = ALIGN_MIN.max(page.bytes()).get();
        let share = span
            .len
            .div_ceil(u64::from(threads.get()))
            .next_multiple_of(unit);
        let shares = (0..span.len).step_by(usize::try_from(share).unwrap_or(usize::MAX));
        let shares = shares.map(|offset| Span {
            offset: span.offset + offset,
            len: share.min(span.len - offset),
        });
        std::thread::scope(|scope| {
            let mut results = Vec::new();
            for share in shares {
                let work = move || self.advise(share, libc::MADV_POPULATE_WRITE);
                match std::thread::Builder::new()
                    .name("prefault".to_owned())
                    .spawn_scoped(scope, work)
                {
                    Ok(thread) => results.push(thread),
                    // No more threads: this one does it.
                    Err(_) => work()?,
                }
            }
            results.into_iter().try_for_each(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|_| Err(io::Error::other("a prefault thread panicked")))
            })
        })
    }

    /// The mapping as a region of guest memory. It does not keep the mapping
    /// alive: whoever holds it holds an `Arc` of this too.
    pub(super) fn guest_region(&self, start: GuestAddr) -> io::Result<GuestRegionMmap> {
        let mut builder = MmapRegionBuilder::new(self.len).with_mmap_prot(Access::ReadWrite.prot());
        if let Some(file) = &self.file {
            builder = builder.with_file_offset(FileOffset::from_arc(file.clone(), 0));
        }
        // SAFETY: address and length are those of this mapping, which is valid
        // until it is dropped; `RamRegion` keeps an `Arc` of it beside the
        // region and checks that what is accessed is accessible.
        let builder = unsafe { builder.with_raw_mmap_pointer(self.address as *mut u8) };
        let region = builder.build().map_err(io::Error::other)?;
        GuestRegionMmap::new(region, GuestAddress(start.get())).ok_or_else(invalid)
    }

    fn advise_pages(&self, span: Span, page: PageSize) -> Result<(), HostMemoryError> {
        let (advice, call) = match page {
            PageSize::Small => (libc::MADV_NOHUGEPAGE, "MADV_NOHUGEPAGE"),
            PageSize::Thp => (libc::MADV_HUGEPAGE, "MADV_HUGEPAGE"),
            PageSize::Huge2M | PageSize::Huge1G => return Ok(()),
        };
        match self.advise(span, advice) {
            // A kernel without transparent huge pages does not know the advice.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => match page {
                PageSize::Thp => Err(HostMemoryError::NoTransparentHugePages),
                _ => Ok(()),
            },
            other => other.map_err(|source| HostMemoryError::system(call, "guest memory", source)),
        }
    }

    fn advise(&self, span: Span, advice: c_int) -> io::Result<()> {
        let (address, len) = self.locate(span)?;
        loop {
            // SAFETY: `locate` keeps the call within this mapping. The advice
            // used here frees, populates or marks pages; no Rust reference to
            // their contents exists.
            let result = check(unsafe { libc::madvise(address as *mut c_void, len, advice) });
            if !is_interrupted(&result) {
                return result;
            }
        }
    }

    fn fallocate(&self, span: Span, mode: c_int) -> io::Result<()> {
        self.locate(span)?;
        let file = self.file.as_ref().ok_or_else(invalid)?;
        let offset = i64::try_from(span.offset).map_err(|_| invalid())?;
        let len = i64::try_from(span.len).map_err(|_| invalid())?;
        loop {
            // SAFETY: the descriptor is the file's, which `self` keeps open;
            // the call takes no pointers.
            let result = check(unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, len) });
            if !is_interrupted(&result) {
                return result;
            }
        }
    }

    /// Address and length of a span, which must not be empty and must lie
    /// within the mapping.
    fn locate(&self, span: Span) -> io::Result<(usize, usize)> {
        let offset = usize::try_from(span.offset).map_err(|_| invalid())?;
        let len = usize::try_from(span.len).map_err(|_| invalid())?;
        let end = offset.checked_add(len).ok_or_else(invalid)?;
        if len == 0 || end > self.len {
            return Err(invalid());
        }
        // Within the mapping, whose end did not wrap.
        Ok((self.address + offset, len))
    }
}

/// A memfd of `len` bytes, of huge pages if `page` is one of the pool's.
pub(super) fn memfd(name: &CStr, len: Bytes, page: PageSize) -> Result<File, HostMemoryError> {
    let what = || format!("a memfd of {len}");
    let flags = match page {
        PageSize::Small | PageSize::Thp => libc::MFD_CLOEXEC,
        PageSize::Huge2M => libc::MFD_CLOEXEC | libc::MFD_HUGETLB | libc::MFD_HUGE_2MB,
        PageSize::Huge1G => libc::MFD_CLOEXEC | libc::MFD_HUGETLB | libc::MFD_HUGE_1GB,
    };
    // SAFETY: `name` is a valid C string for the length of the call.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), flags) };
    if fd < 0 {
        let source = io::Error::last_os_error();
        return Err(pool_error("memfd_create", &what(), len, page, source));
    }
    // SAFETY: the kernel has just made this descriptor; nothing else owns it.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(len.get())
        .map_err(|source| HostMemoryError::system("ftruncate", what(), source))?;
    Ok(file)
}

fn pool_flags(page: PageSize) -> c_int {
    match page {
        PageSize::Small | PageSize::Thp => 0,
        PageSize::Huge2M => libc::MAP_HUGETLB | libc::MAP_HUGE_2MB,
        PageSize::Huge1G => libc::MAP_HUGETLB | libc::MAP_HUGE_1GB,
    }
}

/// mmap at `address` (fixed, if the flags say so) or anywhere. Private to this
/// file: callers pass fixed addresses of their own mappings only.
fn map(
    address: usize,
    len: usize,
    prot: c_int,
    flags: c_int,
    file: Option<&File>,
) -> io::Result<usize> {
    let fd = file.map_or(-1, AsRawFd::as_raw_fd);
    let hint = ptr::without_provenance_mut::<c_void>(address);
    // SAFETY: without MAP_FIXED the kernel picks unused addresses; with it the
    // caller names part of a mapping that it owns and nothing refers into.
    let mapped = unsafe { libc::mmap(hint, len, prot, flags, fd, 0) };
    if mapped == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(mapped.expose_provenance())
}

/// munmap of addresses that `map` returned and nothing refers into.
fn unmap(address: usize, len: usize) -> io::Result<()> {
    // SAFETY: the caller owns these addresses and gives them up for good.
    check(unsafe { libc::munmap(address as *mut c_void, len) })
}

fn check(result: c_int) -> io::Result<()> {
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn is_interrupted(result: &io::Result<()>) -> bool {
    matches!(result, Err(error) if error.kind() == io::ErrorKind::Interrupted)
}

fn invalid() -> io::Error {
    io::Error::from_raw_os_error(libc::EINVAL)
}
