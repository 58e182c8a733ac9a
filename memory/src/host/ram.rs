//! The VMM's own way into guest memory.
//!
//! The owner sets an LMB's bit in the [`AccessMap`] after its memory was
//! opened and clears it before its memory is closed, on the thread that reads
//! and writes guest memory. An access to the window asks the map first, so
//! that an address which a guest made up gives an error and never a fault.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use vm_memory::bitmap::BS;
use vm_memory::guest_memory::Result as AccessResult;
use vm_memory::{
    FileOffset, GuestAddress, GuestMemoryError, GuestMemoryRegion, GuestMemoryRegionBytes,
    GuestRegionCollection, GuestRegionMmap, GuestUsize, MemoryRegionAddress, VolatileSlice,
};

use super::HostMemoryError;
use super::mmap::Mapping;
use crate::bitmap::masks;
use crate::units::{GuestRange, LmbCount, LmbIndex, LmbRange, LmbSize};

/// Guest memory as the VMM reads and writes it: vm-memory's
/// `GuestMemoryBackend`, cheap to clone. Boot memory is always accessible, the
/// window where its [`AccessMap`] says so.
pub type GuestRam = GuestRegionCollection<RamRegion>;

/// Which LMBs of a window the VMM may touch. Clones share one map; the owner
/// of the hotplug operations is the one to set it.
#[derive(Clone, Debug)]
pub struct AccessMap {
    words: Arc<[AtomicU64]>,
    lmbs: u64,
    lmb_shift: u32,
}

impl AccessMap {
    /// A map of `lmbs` LMBs, none accessible.
    pub fn new(lmbs: LmbCount, lmb: LmbSize) -> Self {
        Self {
            words: (0..lmbs.get().div_ceil(64))
                .map(|_| AtomicU64::new(0))
                .collect(),
            lmbs: lmbs.get(),
            lmb_shift: lmb.bytes().get().trailing_zeros(),
        }
    }

    /// Lets the VMM touch a run of LMBs, or not; LMBs past the end are
    /// ignored.
    pub fn set(&self, run: LmbRange, accessible: bool) {
        for (word, mask) in masks(run.first().get()..run.end().get(), self.lmbs) {
            if accessible {
                self.words[word].fetch_or(mask, Ordering::Release);
            } else {
                self.words[word].fetch_and(!mask, Ordering::Release);
            }
        }
    }

    /// Bars the VMM from the whole window, as after a system reset.
    pub fn clear(&self) {
        for word in self.words.iter() {
            word.store(0, Ordering::Release);
        }
    }

    /// Whether the VMM may touch an LMB.
    pub fn is_accessible(&self, lmb: LmbIndex) -> bool {
        self.all_set(lmb.get(), lmb.get())
    }

    /// Whether the VMM may touch `len` bytes from `offset` of the window.
    fn allows(&self, offset: u64, len: u64) -> bool {
        match offset.checked_add(len.saturating_sub(1)) {
            Some(last) => self.all_set(offset >> self.lmb_shift, last >> self.lmb_shift),
            None => false,
        }
    }

    fn all_set(&self, first: u64, last: u64) -> bool {
        last < self.lmbs
            && masks(first..last + 1, self.lmbs)
                .all(|(word, mask)| self.words[word].load(Ordering::Acquire) & mask == mask)
    }
}

/// A piece of boot memory, or the window.
///
/// Accesses go through the collection ([`GuestRam`]), which asks for the slice
/// it needs. The region's own byte access asks for all of it at once, and for
/// the window that is refused unless all of it is accessible.
#[derive(Debug)]
pub struct RamRegion {
    region: GuestRegionMmap,
    access: Option<AccessMap>,
    /// Keeps the memory behind `region`.
    _mapping: Arc<Mapping>,
}

impl RamRegion {
    pub(super) fn new(
        mapping: Arc<Mapping>,
        range: GuestRange,
        access: Option<AccessMap>,
    ) -> Result<Self, HostMemoryError> {
        let region = mapping
            .guest_region(range.start())
            .map_err(|source| HostMemoryError::system("mmap", range.to_string(), source))?;
        Ok(Self {
            region,
            access,
            _mapping: mapping,
        })
    }

    /// Whether this is the window and not boot memory.
    pub fn is_window(&self) -> bool {
        self.access.is_some()
    }

    fn check(&self, offset: MemoryRegionAddress, len: u64) -> AccessResult<()> {
        match &self.access {
            Some(map) if !map.allows(offset.0, len) => {
                let address = self.region.start_addr().0.saturating_add(offset.0);
                Err(GuestMemoryError::InvalidGuestAddress(GuestAddress(address)))
            }
            _ => Ok(()),
        }
    }
}

impl GuestMemoryRegion for RamRegion {
    type B = ();

    fn len(&self) -> GuestUsize {
        self.region.len()
    }

    fn start_addr(&self) -> GuestAddress {
        self.region.start_addr()
    }

    fn bitmap(&self) -> BS<'_, Self::B> {}

    fn get_host_address(&self, addr: MemoryRegionAddress) -> AccessResult<*mut u8> {
        self.check(addr, 1)?;
        self.region.get_host_address(addr)
    }

    fn file_offset(&self) -> Option<&FileOffset> {
        self.region.file_offset()
    }

    fn get_slice(
        &self,
        offset: MemoryRegionAddress,
        count: usize,
    ) -> AccessResult<VolatileSlice<'_, BS<'_, Self::B>>> {
        self.check(offset, u64::try_from(count).unwrap_or(u64::MAX))?;
        self.region.get_slice(offset, count)
    }
}

impl GuestMemoryRegionBytes for RamRegion {}

/// The regions, ascending, as one memory.
pub(super) fn collect(regions: Vec<RamRegion>) -> Result<GuestRam, HostMemoryError> {
    GuestRegionCollection::from_regions(regions).map_err(|error| {
        HostMemoryError::system("mmap", "guest memory", std::io::Error::other(error))
    })
}
