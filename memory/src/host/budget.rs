//! How many mappings this process has, and how many the host allows.
//!
//! The count is the kernel's own (/proc/self/maps), so that nothing is missed:
//! other threads' stacks, and neighbours the kernel could not merge. Reading
//! it takes long when there are many, so it is read only when what was granted
//! since the last reading could have used up the rest.

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::HostMemoryError;
use super::views;
use crate::geometry::MAPPING_HEADROOM;

/// The kernel's default, if the limit cannot be read.
const DEFAULT_LIMIT: u64 = 65_530;

#[derive(Debug)]
pub(super) struct MappingBudget {
    maps: Option<&'static File>,
    limit: u64,
    /// Mappings at most: those counted last and those granted since.
    in_use: u64,
}

impl MappingBudget {
    pub(super) fn new() -> Self {
        let mut budget = Self {
            maps: views::MAPS.file(),
            limit: views::MAX_MAP_COUNT.number().unwrap_or(DEFAULT_LIMIT),
            in_use: 0,
        };
        budget.recount();
        budget
    }

    /// Grants `growth` more mappings, if the headroom stays.
    pub(super) fn grant(&mut self, growth: u64) -> Result<(), HostMemoryError> {
        // What splits nothing is always possible, also at the limit.
        if growth == 0 {
            return Ok(());
        }
        if !self.fits(growth) {
            self.recount();
        }
        if !self.fits(growth) {
            return Err(HostMemoryError::MappingLimit {
                in_use: self.in_use,
                limit: self.limit,
            });
        }
        self.in_use = self.in_use.saturating_add(growth);
        Ok(())
    }

    /// The limit error, if the limit is why the kernel itself refused a
    /// mapping.
    pub(super) fn exhausted(&mut self) -> Option<HostMemoryError> {
        self.recount();
        (!self.fits(2)).then_some(HostMemoryError::MappingLimit {
            in_use: self.in_use,
            limit: self.limit,
        })
    }

    fn fits(&self, growth: u64) -> bool {
        self.in_use
            .saturating_add(growth)
            .saturating_add(MAPPING_HEADROOM)
            <= self.limit
    }

    /// Counts anew. Without /proc the upper bound stays.
    fn recount(&mut self) {
        if let Some(count) = self.maps.and_then(|maps| count_lines(maps).ok()) {
            self.in_use = count;
        }
    }
}

/// Reads at offsets of its own: the file is shared by all windows.
fn count_lines(file: &File) -> std::io::Result<u64> {
    let mut buffer = vec![0_u8; 64 << 10];
    let (mut lines, mut offset) = (0, 0);
    loop {
        let read = file.read_at(&mut buffer, offset)?;
        offset += read as u64;
        if read == 0 {
            return Ok(lines);
        }
        let newlines = buffer[..read].iter().filter(|byte| **byte == b'\n').count();
        lines += u64::try_from(newlines).unwrap_or(0);
    }
}
