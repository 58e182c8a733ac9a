//! The memory of a hotplug window in this process.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use super::budget::MappingBudget;
use super::mmap::{self, Access, Mapping, PoolFailure, Span};
use super::{BackingOptions, HostMemoryError, Prefault, WindowMemory, WindowOp, pool_error};
use crate::bitmap::Bitmap;
use crate::geometry::{Layout, PageSize, WindowLayout};
use crate::units::{Bytes, LmbIndex, LmbRange, LmbSize};

/// A window backed by one reserved range of addresses; see
/// [`host`](crate::host) for the states of its LMBs and what changes them.
///
/// Owned by the thread that carries out effects. It knows what is accessible,
/// not what is plugged: that is the ledger's.
#[derive(Debug)]
pub struct MmapWindow {
    mapping: Arc<Mapping>,
    lmb: LmbSize,
    lmbs: u64,
    page: PageSize,
    shared: bool,
    prefault: Option<Prefault>,
    /// Accessible LMBs.
    open: Bitmap,
    /// Inaccessible LMBs whose contents are kept.
    held: Bitmap,
    budget: MappingBudget,
}

impl MmapWindow {
    pub(super) fn create(
        place: &WindowLayout,
        layout: &Layout,
        options: &BackingOptions,
    ) -> Result<(Self, Arc<Mapping>), HostMemoryError> {
        let len = place.range.len();
        let file = options
            .shared
            .then(|| mmap::memfd(c"lmb-window", len, layout.page_size))
            .transpose()?;
        let mapping = Arc::new(Mapping::reserve(len, file, layout.page_size)?);
        let lmbs = place.lmbs.get();
        let window = Self {
            mapping: mapping.clone(),
            lmb: layout.lmb_size,
            lmbs,
            page: layout.page_size,
            shared: options.shared,
            prefault: options.prefault.clone(),
            open: Bitmap::new(lmbs),
            held: Bitmap::new(lmbs),
            budget: MappingBudget::new(),
        };
        Ok((window, mapping))
    }

    /// Private memory from the pool is mapped anew at each open and discard.
    fn is_private_pool(&self) -> bool {
        self.page.is_pool() && !self.shared
    }

    /// Checks that all LMBs of the run exist and are in the state that `op`
    /// starts from.
    fn check(&self, op: WindowOp, run: LmbRange) -> Result<Range<u64>, HostMemoryError> {
        let range = run.first().get()..run.end().get();
        if range.end > self.lmbs {
            return Err(HostMemoryError::OutsideWindow {
                range: run,
                lmbs: self.lmbs,
            });
        }
        let (open, held) = (
            self.open.count(range.clone()),
            self.held.count(range.clone()),
        );
        let all = run.count().get();
        let (fits, wanted) = match op {
            WindowOp::Open => (open == 0 && held == 0, "empty"),
            WindowOp::Close => (open == all, "open"),
            WindowOp::Reopen => (held == all, "held"),
            WindowOp::Discard => (open == 0, "closed"),
        };
        if fits {
            return Ok(range);
        }
        Err(HostMemoryError::WrongState {
            op,
            range: run,
            wanted,
        })
    }

    /// Asks for the mappings that changing the run adds: a boundary appears
    /// on each side where the neighbour was in the same mapping until now.
    fn grant(&mut self, range: &Range<u64>) -> Result<(), HostMemoryError> {
        let left = range.start.checked_sub(1);
        let right = (range.end < self.lmbs).then_some(range.end);
        let splits = |neighbour: Option<u64>, inside: u64| {
            neighbour.is_some_and(|outside| self.kind(outside) == self.kind(inside))
        };
        let growth = u64::from(splits(left, range.start))
            + u64::from(splits(right, range.end.saturating_sub(1)));
        match self.budget.grant(growth) {
            Err(HostMemoryError::MappingLimit { .. }) if self.merge_empty() => {
                self.budget.grant(growth)
            }
            result => result,
        }
    }

    /// Lets the kernel merge empty neighbours that it keeps apart because each
    /// had pages once; only private small pages can be so. Returns whether
    /// there was anything to merge.
    fn merge_empty(&mut self) -> bool {
        if self.shared || self.page.is_pool() {
            return false;
        }
        let mut used = self.open.clone();
        for held in self.held.runs() {
            used.fill(held, true);
        }
        let mut merged = false;
        for run in used.gaps().filter(|run| run.end - run.start > 1) {
            merged = true;
            // What stays apart is only counted as such.
            let _ = self.mapping.renew(self.span(&run), self.page);
        }
        merged
    }

    /// LMBs of the same kind can share a mapping.
    fn kind(&self, lmb: u64) -> (bool, bool) {
        let held_differs = self.is_private_pool() && self.held.get(lmb);
        (self.open.get(lmb), held_differs)
    }

    fn span(&self, range: &Range<u64>) -> Span {
        let shift = self.lmb.bytes().get().trailing_zeros();
        // Within the window, whose length fits 64 bits.
        Span {
            offset: range.start << shift,
            len: (range.end - range.start) << shift,
        }
    }

    fn protect(
        &mut self,
        run: LmbRange,
        range: &Range<u64>,
        access: Access,
    ) -> Result<(), HostMemoryError> {
        let span = self.span(range);
        let Err(source) = self.mapping.protect(span, access) else {
            return Ok(());
        };
        // The call may have changed part of the span before it failed.
        let before = match access {
            Access::None => Access::ReadWrite,
            Access::ReadWrite => Access::None,
        };
        let _ = self.mapping.protect(span, before);
        Err(self.explain("mprotect", run, source))
    }

    /// ENOMEM near the limit of mappings means the limit; all else is the
    /// call's own error.
    fn explain(&mut self, call: &'static str, run: LmbRange, source: io::Error) -> HostMemoryError {
        let no_memory = source.raw_os_error() == Some(libc::ENOMEM);
        no_memory
            .then(|| self.budget.exhausted())
            .flatten()
            .unwrap_or_else(|| HostMemoryError::system(call, run.to_string(), source))
    }

    /// Makes empty LMBs accessible and reserves their huge pages.
    fn make_accessible(
        &mut self,
        run: LmbRange,
        range: &Range<u64>,
    ) -> Result<(), HostMemoryError> {
        let span = self.span(range);
        if !self.page.is_pool() {
            return self.protect(run, range, Access::ReadWrite);
        }
        let len = Bytes::new(span.len);
        if !self.shared {
            let mapped = self.mapping.map_pool(span, self.page);
            return mapped.map_err(|failure| match failure {
                PoolFailure::Undone(source) => {
                    pool_error("mmap", &run.to_string(), len, self.page, source)
                }
                PoolFailure::Lost(source) => HostMemoryError::Lost { range: run, source },
            });
        }
        if let Err(source) = self.mapping.allocate(span) {
            // Give back what was had before the pool ran dry, and only then
            // look at what it has.
            let _ = self.mapping.punch(span);
            let what = run.to_string();
            return Err(pool_error("fallocate", &what, len, self.page, source));
        }
        let opened = self.protect(run, range, Access::ReadWrite);
        if opened.is_err() {
            let _ = self.mapping.punch(span);
        }
        opened
    }

    /// Frees the memory of inaccessible LMBs.
    fn free(&mut self, run: LmbRange, range: &Range<u64>) -> Result<(), HostMemoryError> {
        let span = self.span(range);
        let what = || run.to_string();
        if self.shared {
            let punched = self.mapping.punch(span);
            punched.map_err(|source| HostMemoryError::system("fallocate", what(), source))
        } else if self.page.is_pool() {
            let mapped = self.mapping.map_reserved(span);
            mapped.map_err(|source| self.explain("mmap", run, source))
        } else {
            let freed = self.mapping.free_private(span);
            freed.map_err(|source| HostMemoryError::system("MADV_DONTNEED", what(), source))
        }
    }

    fn populate(&self, run: LmbRange, range: &Range<u64>) -> Result<(), HostMemoryError> {
        let Some(prefault) = &self.prefault else {
            return Ok(());
        };
        self.mapping
            .populate(self.span(range), self.page, prefault)
            .map_err(|source| {
                HostMemoryError::system("MADV_POPULATE_WRITE", run.to_string(), source)
            })
    }
}

impl WindowMemory for MmapWindow {
    fn open(&mut self, run: LmbRange) -> Result<(), HostMemoryError> {
        let range = self.check(WindowOp::Open, run)?;
        self.grant(&range)?;
        self.make_accessible(run, &range)?;
        if let Err(error) = self.populate(run, &range) {
            if !self.is_private_pool() {
                let _ = self.mapping.protect(self.span(&range), Access::None);
            }
            let _ = self.free(run, &range);
            return Err(error);
        }
        self.open.fill(range, true);
        Ok(())
    }

    fn close(&mut self, run: LmbRange) -> Result<(), HostMemoryError> {
        let range = self.check(WindowOp::Close, run)?;
        self.grant(&range)?;
        self.protect(run, &range, Access::None)?;
        self.open.fill(range.clone(), false);
        self.held.fill(range, true);
        Ok(())
    }

    fn reopen(&mut self, run: LmbRange) -> Result<(), HostMemoryError> {
        let range = self.check(WindowOp::Reopen, run)?;
        self.grant(&range)?;
        self.protect(run, &range, Access::ReadWrite)?;
        self.held.fill(range.clone(), false);
        self.open.fill(range, true);
        Ok(())
    }

    fn discard(&mut self, run: LmbRange) -> Result<(), HostMemoryError> {
        let range = self.check(WindowOp::Discard, run)?;
        if self.is_private_pool() {
            self.grant(&range)?;
        }
        self.free(run, &range)?;
        self.held.fill(range, false);
        Ok(())
    }

    fn host_address(&self, lmb: LmbIndex) -> u64 {
        let shift = self.lmb.bytes().get().trailing_zeros();
        self.mapping.address() + (lmb.get().min(self.lmbs) << shift)
    }
}
