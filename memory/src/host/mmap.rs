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
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use libc::{c_int, c_void};
use vm_memory::mmap::MmapRegionBuilder;
use vm_memory::{FileOffset, GuestAddress, GuestRegionMmap};

use super::{HostMemoryError, Prefault, pool_error, views};
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
    /// Part of it may be another's now.
    lost: AtomicBool,
}

/// Why a span was not replaced.
#[derive(Debug)]
pub(super) enum PoolFailure {
    /// It is as it was.
    Undone(io::Error),
    /// Its addresses may be another's.
    Lost(io::Error),
}

impl From<io::Error> for PoolFailure {
    fn from(error: io::Error) -> Self {
        Self::Undone(error)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if *self.lost.get_mut() {
            return;
        }
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
            lost: AtomicBool::new(false),
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
            lost: AtomicBool::new(false),
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
    /// pool; on error the span is as it was, unless the error says it is lost.
    pub(super) fn map_pool(&self, span: Span, page: PageSize) -> Result<(), PoolFailure> {
        let (address, len) = self.locate(span)?;
        if self.lost.load(Ordering::Relaxed) {
            return Err(PoolFailure::Lost(invalid()));
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | pool_flags(page);
        let prot = Access::ReadWrite.prot();
        // Linux unmaps what is there before it asks the pool, and older ones
        // leave a hole when that refuses. So the pool is asked elsewhere first.
        let taken = map(0, len, prot, flags, None)?;
        if moves_huge_pages() {
            let Err(error) = relocate(taken, address, len) else {
                return Ok(());
            };
            // Linux 6.18 refuses some moves of 1 GiB pages with ENOMEM while
            // the pool has them; they can be mapped in place all the same.
            let undone = self.fill_hole(address, len, error);
            if matches!(undone, PoolFailure::Lost(_)) {
                let _ = unmap(taken, len);
                return Err(undone);
            }
        }
        unmap(taken, len)?;
        map(address, len, prot, flags | libc::MAP_FIXED, None)
            .map(drop)
            .map_err(|error| self.fill_hole(address, len, error))
    }

    /// After a call that should have replaced mappings within this one failed:
    /// reserves the addresses again if the call gave them up. If something is
    /// there, it may be another thread's, which nobody can tell: this mapping
    /// is then neither changed that way nor unmapped any more.
    fn fill_hole(&self, address: usize, len: usize, error: io::Error) -> PoolFailure {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let flags = flags | libc::MAP_FIXED_NOREPLACE;
        match map(address, len, libc::PROT_NONE, flags, None) {
            Ok(filled) if filled == address => PoolFailure::Undone(error),
            other => {
                // Linux before 4.17 takes the address for a hint.
                if let Ok(elsewhere) = other {
                    let _ = unmap(elsewhere, len);
                }
                self.lost.store(true, Ordering::Relaxed);
                PoolFailure::Lost(error)
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

    /// Populates an accessible span by several threads, each its share in
    /// whole pages (`MADV_POPULATE_WRITE`, Linux 5.14).
    pub(super) fn populate(&self, span: Span, page: PageSize, how: &Prefault) -> io::Result<()> {
        let unit = ALIGN_MIN.max(page.bytes()).get();
        let share = span
            .len
            .div_ceil(u64::from(how.threads.get()))
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
                    .spawn_scoped(scope, move || (how.enter)().and_then(|()| work()))
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

/// Moves a mapping to `address`, over what is there; on error, both or only
/// the moved one may still be there. Private to this file, as `map` is.
fn relocate(from: usize, address: usize, len: usize) -> io::Result<()> {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let (from, to) = (from as *mut c_void, address as *mut c_void);
    // SAFETY: the caller owns both ranges, `len` bytes each, and nothing refers
    // into either.
    let moved = unsafe { libc::mremap(from, len, len, flags, to) };
    if moved == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Whether the kernel moves mappings of huge pages (Linux 5.16, mm/mremap.c).
/// It has to be known before: an older one unmaps the place, and then refuses.
fn moves_huge_pages() -> bool {
    static MOVES: OnceLock<bool> = OnceLock::new();
    *MOVES.get_or_init(|| {
        views::KERNEL_RELEASE
            .text()
            .and_then(|release| kernel_version(&release))
            .is_some_and(|version| version >= (5, 16))
    })
}

/// Version and patch level of a kernel release such as `6.1.0-18-amd64`.
fn kernel_version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|other: char| !other.is_ascii_digit());
    let version = numbers.next()?.parse().ok()?;
    Some((version, numbers.next()?.parse().ok()?))
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

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 4096;
    /// What is moved is longer than the hole that one test makes, so that it
    /// never lands there when tests run at once.
    const MOVED: usize = 4 * PAGE;

    fn mapping() -> Mapping {
        Mapping::reserve(Bytes::new(6 << 12), None, PageSize::Small).unwrap()
    }

    fn anonymous() -> usize {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        map(0, MOVED, Access::ReadWrite.prot(), flags, None).unwrap()
    }

    fn full() -> io::Error {
        io::Error::from_raw_os_error(libc::ENOMEM)
    }

    fn is_mapped(address: usize) -> bool {
        let start = format!("{address:x}-");
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().any(|line| line.starts_with(&start))
    }

    #[test]
    fn what_was_taken_elsewhere_is_what_comes_to_its_place() {
        let mapping = mapping();
        let place = mapping.address + PAGE;
        let taken = anonymous();
        // SAFETY: the page is mapped for writing, and this test's alone.
        unsafe { ptr::with_exposed_provenance_mut::<u64>(taken).write_volatile(77) };
        relocate(taken, place, MOVED).unwrap();
        // SAFETY: as above, for reading, at the place it was moved to.
        let value = unsafe { ptr::with_exposed_provenance::<u64>(place).read_volatile() };
        assert_eq!(value, 77);
        assert!(!is_mapped(taken));
    }

    #[test]
    fn a_hole_left_by_the_kernel_is_reserved_again() {
        let mapping = mapping();
        let hole = mapping.address + PAGE;
        unmap(hole, PAGE).unwrap();
        let failure = mapping.fill_hole(hole, PAGE, full());
        assert!(matches!(failure, PoolFailure::Undone(_)), "{failure:?}");
        let all = mapping.all();
        mapping.protect(all, Access::ReadWrite).unwrap();
    }

    #[test]
    fn addresses_that_may_be_anothers_are_said_to_be_lost_and_never_touched_again() {
        let mapping = mapping();
        let start = mapping.address;
        let gone = start + PAGE;
        // As if it were another thread's.
        relocate(anonymous(), gone, MOVED).unwrap();
        let failure = mapping.fill_hole(gone, MOVED, full());
        let PoolFailure::Lost(source) = failure else {
            panic!("{failure:?}");
        };
        assert_eq!(source.raw_os_error(), Some(libc::ENOMEM));
        let all = mapping.all();
        let again = mapping.map_pool(all, PageSize::Huge2M);
        assert!(matches!(again, Err(PoolFailure::Lost(_))), "{again:?}");
        drop(mapping);
        assert!(is_mapped(gone), "it is not this mapping's to give up");
        unmap(start, 6 * PAGE).unwrap();
    }

    #[test]
    fn kernel_releases_are_compared_by_number() {
        let version = |release| kernel_version(release).unwrap();
        assert_eq!(version("6.1.0-18-amd64\n"), (6, 1));
        assert!(version("5.15.167.4-standard") < (5, 16));
        assert!(version("5.16-rc1") >= (5, 16));
        assert!(version("10.0.1") > (5, 16));
        assert_eq!(kernel_version("unknown"), None);
    }
}
