//! What the kernel tells of the host, as files that are opened once.
//!
//! States of a view: closed → open, for the life of the process. Each is
//! opened by its first reader; [`open_host_views`] opens all that a VM can
//! need, for processes that may open nothing later. Reading goes by offset, so
//! that any thread may read at any time.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

use crate::geometry::PageSize;

/// The mappings of this process.
pub(super) static MAPS: View = View::new("/proc/self/maps");
/// How many mappings a process may have.
pub(super) static MAX_MAP_COUNT: View = View::new("/proc/sys/vm/max_map_count");
/// Release of the host's kernel.
pub(super) static KERNEL_RELEASE: View = View::new("/proc/sys/kernel/osrelease");

static POOL_2M: Pool = Pool {
    total: View::new("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"),
    free: View::new("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages"),
    reserved: View::new("/sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages"),
};
static POOL_1G: Pool = Pool {
    total: View::new("/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages"),
    free: View::new("/sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages"),
    reserved: View::new("/sys/kernel/mm/hugepages/hugepages-1048576kB/resv_hugepages"),
};

/// One file of /proc or /sys.
#[derive(Debug)]
pub(super) struct View {
    path: &'static str,
    file: OnceLock<Option<File>>,
}

impl View {
    const fn new(path: &'static str) -> Self {
        Self {
            path,
            file: OnceLock::new(),
        }
    }

    /// The file, unless this host has none.
    pub(super) fn file(&self) -> Option<&File> {
        let open = || File::open(self.path).ok();
        self.file.get_or_init(open).as_ref()
    }

    /// What it says now, if that is short text.
    pub(super) fn text(&self) -> Option<String> {
        let mut bytes = [0_u8; 128];
        let count = self.file()?.read_at(&mut bytes, 0).ok()?;
        let text = std::str::from_utf8(bytes.get(..count)?).ok()?;
        Some(text.trim().to_owned())
    }

    /// The number it says now.
    pub(super) fn number(&self) -> Option<u64> {
        self.text()?.parse().ok()
    }
}

/// The host's pool of huge pages of one size.
#[derive(Debug)]
pub(super) struct Pool {
    /// Pages it has.
    pub(super) total: View,
    /// Pages that are not in use.
    pub(super) free: View,
    /// Free pages that are promised.
    pub(super) reserved: View,
}

/// The pool that pages of this size come from, if they come from one.
pub(super) fn pool(page: PageSize) -> Option<&'static Pool> {
    match page {
        PageSize::Small | PageSize::Thp => None,
        PageSize::Huge2M => Some(&POOL_2M),
        PageSize::Huge1G => Some(&POOL_1G),
    }
}

/// Opens every view that a VM with these host pages can need. Without this
/// call each is opened when it is first read, which a sandbox may forbid by
/// then; what cannot be read is replaced by a safe assumption.
pub fn open_host_views(page: PageSize) {
    MAPS.file();
    MAX_MAP_COUNT.file();
    if let Some(pool) = pool(page) {
        KERNEL_RELEASE.file();
        for view in [&pool.total, &pool.free, &pool.reserved] {
            view.file();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_shows_what_the_file_says_now_each_time() {
        let limit = MAX_MAP_COUNT.number().unwrap();
        let text = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap();
        assert_eq!(limit.to_string(), text.trim());
        assert_eq!(MAX_MAP_COUNT.number(), Some(limit));
        assert_eq!(View::new("/nonexistent").number(), None);
        // A mapping more is a line more.
        let lines = || {
            let mut bytes = vec![0; 1 << 20];
            let count = MAPS.file().unwrap().read_at(&mut bytes, 0).unwrap();
            assert!(count > 0);
            count
        };
        assert!(lines() > 0 && lines() > 0, "read from the start again");
    }
}
