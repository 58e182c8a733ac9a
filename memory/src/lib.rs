//! Guest memory made of LMBs (Logical Memory Blocks): units, geometry, the
//! ledger and host memory.
//!
//! - [`units`]: bytes, guest addresses, LMB sizes, counts and ranges as
//!   separate checked types; none of their arithmetic can wrap.
//! - [`geometry`]: from a request (`memory`, `max_memory`, `lmb_size`, ...) to
//!   the one [`Layout`] that everything else follows. All alignment rules
//!   stand at that module's head.
//! - [`ledger`]: which LMB of a window is plugged; the only book. Plan, then
//!   effect, then commit.
//! - [`host`]: the memory itself (mmap, mprotect, discard, huge pages) behind
//!   [`WindowMemory`], with a double that injects faults.
//!
//! This crate knows nothing of KVM, virtio or sockets.

mod bitmap;
pub mod geometry;
pub mod host;
pub mod ledger;
pub mod units;

pub use geometry::{
    BlockReason, BootPiece, GeometryError, GuestBlock, Hotplug, Layout, MAPPING_HEADROOM,
    MAX_ACPI_LMBS, MemoryRequest, Notice, PageSize, PieceKind, WindowLayout,
};
pub use host::fault::{FaultControl, FaultKind, FaultyWindow, WindowCall};
pub use host::ram::{AccessMap, GuestRam, RamRegion};
pub use host::window::MmapWindow;
pub use host::{
    BackingOptions, HostMemoryError, HostRam, HostRegion, Prefault, WindowMemory, WindowOp, create,
    open_host_views,
};
pub use ledger::{Change, Ledger, LedgerError, LedgerView, Plan, PlanKind, RangeState, Refusal};
pub use units::{Bytes, GuestAddr, GuestRange, LmbCount, LmbIndex, LmbRange, LmbSize, UnitError};
