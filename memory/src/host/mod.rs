//! Host memory: what backs the guest's RAM and its hotplug window.
//!
//! States of an LMB of a window: *empty* (unreachable, costs nothing) → `open`
//! → *open* (the guest may use it) → `close` → *held* (unreachable, contents
//! kept) → `discard` → *empty*; `reopen` takes a held one back to open, which
//! undoes a close. Unplugging therefore makes memory unreachable before it is
//! freed: freed first, the guest could fault it back in.
//!
//! One owner: [`MmapWindow`] belongs to the thread that carries out effects.
//! The VMM itself reads and writes guest memory through [`GuestRam`], which
//! asks the [`AccessMap`] first.
//!
//! | backing | open | close | discard |
//! |---|---|---|---|
//! | private, `off`/`thp` | mprotect RW | mprotect NONE | MADV_DONTNEED |
//! | shared, `off`/`thp` | mprotect RW | mprotect NONE | punch hole |
//! | private, huge pages | mmap from the pool, reserved | mprotect NONE | mmap the reservation anew |
//! | shared, huge pages | fallocate, mprotect RW | mprotect NONE | punch hole |

mod budget;
pub mod fault;
mod mmap;
pub mod ram;
mod views;
pub mod window;

use std::io;
use std::num::NonZero;
use std::sync::Arc;

use crate::geometry::{Layout, PageSize};
use crate::units::{Bytes, GuestRange, LmbIndex, LmbRange};

pub use ram::{AccessMap, GuestRam};
pub use views::open_host_views;
pub use window::MmapWindow;

/// An operation on a window's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WindowOp {
    /// [`WindowMemory::open`].
    Open,
    /// [`WindowMemory::close`].
    Close,
    /// [`WindowMemory::reopen`].
    Reopen,
    /// [`WindowMemory::discard`].
    Discard,
}

/// Why host memory could not be had or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostMemoryError {
    /// The host's pool of huge pages has too few free ones.
    #[error(
        "{what}: {needed} huge pages of {size} are needed and the host's pool has {free} to give; \
         raise it: echo N > /sys/kernel/mm/hugepages/hugepages-{}kB/nr_hugepages, N at least {} \
         (as root; for 1 GiB pages best at the host's boot)",
        .size.get() >> 10,
        .total.saturating_add(needed.saturating_sub(*.free))
    )]
    HugePages {
        /// What they are for.
        what: String,
        /// Pages needed.
        needed: u64,
        /// Size of a page.
        size: Bytes,
        /// Pages of the pool now.
        total: u64,
        /// Pages free and not reserved.
        free: u64,
    },
    /// One more mapping would come too near to the host's limit.
    #[error(
        "{in_use} mappings are in use and the host allows {limit} (vm.max_map_count), of which \
         {headroom} are kept for the VMM; raise the limit (sysctl -w vm.max_map_count=N) or use \
         larger LMBs",
        headroom = crate::geometry::MAPPING_HEADROOM
    )]
    MappingLimit {
        /// Mappings of the process.
        in_use: u64,
        /// The host's limit.
        limit: u64,
    },
    /// The LMBs are not all in the state that the operation starts from.
    #[error("cannot {op:?} {range}: not all of it is {wanted}")]
    WrongState {
        /// The operation.
        op: WindowOp,
        /// The LMBs.
        range: LmbRange,
        /// The state it starts from.
        wanted: &'static str,
    },
    /// LMBs that the window does not have.
    #[error("{range} lie outside the window, which has {lmbs} LMBs")]
    OutsideWindow {
        /// The LMBs.
        range: LmbRange,
        /// LMBs of the window.
        lmbs: u64,
    },
    /// Larger than this process can address.
    #[error("{what} of {size} is more than this process can address")]
    TooLarge {
        /// What it is.
        what: String,
        /// Its size.
        size: Bytes,
    },
    /// The kernel has no transparent huge pages.
    #[error("transparent huge pages were asked for and this kernel has none; use --hugepages off")]
    NoTransparentHugePages,
    /// Addresses of the window may belong to another part of the process: the
    /// kernel gave them up when it failed. The one error after which something
    /// has changed; the window opens nothing any more.
    #[error(
        "the addresses of {range} may be lost to another mapping of this process ({source}); \
         the window is of no further use, restart the VM"
    )]
    Lost {
        /// The LMBs.
        range: LmbRange,
        /// What the kernel said.
        source: io::Error,
    },
    /// A system call failed.
    #[error("{call} for {what} failed: {source}")]
    System {
        /// The call.
        call: &'static str,
        /// What it was for.
        what: String,
        /// What the kernel said.
        source: io::Error,
    },
}

impl HostMemoryError {
    pub(crate) fn system(call: &'static str, what: impl Into<String>, source: io::Error) -> Self {
        Self::System {
            call,
            what: what.into(),
            source,
        }
    }
}

/// The memory of a hotplug window, by LMBs; see the module's head for the
/// states. The double for tests is [`fault::FaultyWindow`].
pub trait WindowMemory: Send {
    /// Makes empty LMBs accessible: huge pages reserved, populated if the
    /// options say so.
    ///
    /// # Errors
    /// [`HostMemoryError`]; nothing has changed then, but for
    /// [`HostMemoryError::Lost`].
    fn open(&mut self, range: LmbRange) -> Result<(), HostMemoryError>;

    /// Makes open LMBs inaccessible and keeps their contents.
    ///
    /// # Errors
    /// [`HostMemoryError`]; nothing has changed then.
    fn close(&mut self, range: LmbRange) -> Result<(), HostMemoryError>;

    /// Undoes a close: held LMBs are accessible again, contents as they were.
    ///
    /// # Errors
    /// [`HostMemoryError`]; nothing has changed then.
    fn reopen(&mut self, range: LmbRange) -> Result<(), HostMemoryError>;

    /// Gives LMBs that are not open back to the host; they are empty then.
    ///
    /// # Errors
    /// [`HostMemoryError`]; the LMBs are in the state they were in, but part
    /// of the contents of held ones may be gone (and read as zero).
    fn discard(&mut self, range: LmbRange) -> Result<(), HostMemoryError>;

    /// Where an LMB lies in this process (also one that is not open); stays
    /// the same for the life of the window.
    fn host_address(&self, lmb: LmbIndex) -> u64;
}

impl<T: WindowMemory + ?Sized> WindowMemory for Box<T> {
    fn open(&mut self, range: LmbRange) -> Result<(), HostMemoryError> {
        (**self).open(range)
    }

    fn close(&mut self, range: LmbRange) -> Result<(), HostMemoryError> {
        (**self).close(range)
    }

    fn reopen(&mut self, range: LmbRange) -> Result<(), HostMemoryError> {
        (**self).reopen(range)
    }

    fn discard(&mut self, range: LmbRange) -> Result<(), HostMemoryError> {
        (**self).discard(range)
    }

    fn host_address(&self, lmb: LmbIndex) -> u64 {
        (**self).host_address(lmb)
    }
}

/// How guest memory is backed, beside the layout's page size.
#[derive(Clone, Debug, Default)]
pub struct BackingOptions {
    /// A memfd that other processes could map, and not private memory.
    pub shared: bool,
    /// Populate memory as it is created or opened.
    pub prefault: Option<Prefault>,
}

/// How memory is populated.
#[derive(Clone)]
pub struct Prefault {
    threads: NonZero<u32>,
    enter: Arc<dyn Fn() -> io::Result<()> + Send + Sync>,
}

impl Prefault {
    /// By this many threads.
    #[must_use]
    pub fn new(threads: NonZero<u32>) -> Self {
        Self::with_entry(threads, || Ok(()))
    }

    /// The same; each thread calls `enter` before anything else, and populates
    /// nothing if that fails.
    #[must_use]
    pub fn with_entry(
        threads: NonZero<u32>,
        enter: impl Fn() -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self {
            threads,
            enter: Arc::new(enter),
        }
    }
}

impl std::fmt::Debug for Prefault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prefault")
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}

/// A piece of boot memory as it lies in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostRegion {
    /// Guest addresses.
    pub range: GuestRange,
    /// Where the first byte lies in this process.
    pub host_address: u64,
}

/// All memory of a VM.
#[derive(Debug)]
pub struct HostRam {
    /// The VMM's way into guest memory: boot pieces and the window.
    pub guest: GuestRam,
    /// The window, all of it empty.
    pub window: Option<MmapWindow>,
    /// Boot memory, ascending.
    pub boot_regions: Vec<HostRegion>,
    /// Which LMBs of the window `guest` may touch; none yet.
    pub access: Option<AccessMap>,
}

/// Creates the memory of a VM: boot memory accessible (reserved if in huge
/// pages, populated if so asked), the window reserved and empty.
///
/// # Errors
/// [`HostMemoryError`]; nothing stays behind.
pub fn create(layout: &Layout, options: &BackingOptions) -> Result<HostRam, HostMemoryError> {
    let mut regions = Vec::with_capacity(layout.boot.len() + 1);
    let mut boot_regions = Vec::with_capacity(layout.boot.len());
    for piece in &layout.boot {
        let mapping = Arc::new(boot_mapping(piece.range.len(), layout.page_size, options)?);
        boot_regions.push(HostRegion {
            range: piece.range,
            host_address: mapping.address(),
        });
        regions.push(ram::RamRegion::new(mapping, piece.range, None)?);
    }
    let mut window = None;
    let mut access = None;
    if let Some(place) = &layout.window {
        let (memory, mapping) = MmapWindow::create(place, layout, options)?;
        let map = AccessMap::new(place.lmbs, layout.lmb_size);
        regions.push(ram::RamRegion::new(
            mapping,
            place.range,
            Some(map.clone()),
        )?);
        window = Some(memory);
        access = Some(map);
    }
    Ok(HostRam {
        guest: ram::collect(regions)?,
        window,
        boot_regions,
        access,
    })
}

fn boot_mapping(
    len: Bytes,
    page: PageSize,
    options: &BackingOptions,
) -> Result<mmap::Mapping, HostMemoryError> {
    const WHAT: &str = "boot memory";
    let file = options
        .shared
        .then(|| mmap::memfd(c"lmb-boot", len, page))
        .transpose()?;
    let mapping = if page.is_pool() {
        mmap::Mapping::from_pool(len, page, file)
            .map_err(|source| pool_error("mmap", WHAT, len, page, source))?
    } else {
        let mapping = mmap::Mapping::reserve(len, file, page)?;
        let all = mapping.all();
        mapping
            .protect(all, mmap::Access::ReadWrite)
            .map_err(|source| HostMemoryError::system("mprotect", WHAT, source))?;
        mapping
    };
    if let Some(prefault) = &options.prefault {
        mapping
            .populate(mapping.all(), page, prefault)
            .map_err(|source| HostMemoryError::system("MADV_POPULATE_WRITE", WHAT, source))?;
    }
    Ok(mapping)
}

/// Names the pool where it is to blame for a failure, else the call.
fn pool_error(
    call: &'static str,
    what: &str,
    len: Bytes,
    page: PageSize,
    source: io::Error,
) -> HostMemoryError {
    let short = matches!(source.raw_os_error(), Some(libc::ENOMEM | libc::ENOSPC));
    let size = page.bytes();
    let Some(pool) = views::pool(page).filter(|_| short) else {
        return HostMemoryError::system(call, what, source);
    };
    let now = |view: &views::View| view.number().unwrap_or(0);
    HostMemoryError::HugePages {
        what: what.to_owned(),
        needed: len.get().div_ceil(size.get()),
        size,
        total: now(&pool.total),
        free: now(&pool.free).saturating_sub(now(&pool.reserved)),
    }
}
