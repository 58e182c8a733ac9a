//! Memory in huge pages of the host's pools, private and memfd.
//!
//! A pool that is too small is raised for the run if this process may, and put
//! back afterwards; where that is not possible the tests that need it are
//! shown as ignored. They run one at a time, since they count the pool's pages.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

mod common;

use std::fs;
use std::num::NonZero;
use std::process::ExitCode;

use common::{layout, permissions, resident_bytes, run};
use libtest_mimic::{Arguments, Trial};
use lmb_memory::{
    BackingOptions, HostMemoryError, LmbIndex, MmapWindow, PageSize, Prefault, WindowMemory, create,
};
use vm_memory::{Bytes as _, GuestAddress};

/// The host's pool of huge pages of one size.
#[derive(Clone, Copy)]
struct Pool(PageSize);

impl Pool {
    fn path(self, name: &str) -> String {
        let kib = self.0.bytes().get() >> 10;
        format!("/sys/kernel/mm/hugepages/hugepages-{kib}kB/{name}")
    }

    fn read(self, name: &str) -> u64 {
        let text = fs::read_to_string(self.path(name)).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    }

    /// Pages that are free and promised to nobody.
    fn available(self) -> u64 {
        self.read("free_hugepages") - self.read("resv_hugepages")
    }
}

/// A pool raised for as long as this lives.
struct Raised {
    pool: Pool,
    before: u64,
}

impl Raised {
    /// Whether the pool has `pages` to give now, raised or not.
    fn to(pool: Pool, pages: u64) -> (Self, bool) {
        let before = pool.read("nr_hugepages");
        let missing = pages.saturating_sub(pool.available());
        if missing > 0 {
            // Not permitted, or no contiguous memory: seen in the count.
            let _ = fs::write(pool.path("nr_hugepages"), (before + missing).to_string());
        }
        (Self { pool, before }, pool.available() >= pages)
    }
}

impl Drop for Raised {
    fn drop(&mut self) {
        if self.pool.read("nr_hugepages") != self.before {
            let _ = fs::write(self.pool.path("nr_hugepages"), self.before.to_string());
        }
    }
}

/// Pages of a window that the tests open at once; boot memory takes one more.
/// Pages of 1 GiB are hard to come by on a host that has been up for long.
fn window_pages(page: PageSize) -> u64 {
    if page == PageSize::Huge1G { 1 } else { 3 }
}

struct Case {
    pool: Pool,
    options: BackingOptions,
}

impl Case {
    fn page(&self) -> u64 {
        self.pool.0.bytes().get()
    }

    fn count(&self) -> u64 {
        window_pages(self.pool.0)
    }

    /// Boot memory of one page, and a window of LMBs of one page each, far
    /// larger than the pool.
    fn layout(&self) -> lmb_memory::Layout {
        let lmb = self.pool.0.bytes().to_string();
        let max = lmb_memory::Bytes::new(self.page() * 4096).to_string();
        layout(&lmb, Some(&max), &lmb, self.pool.0)
    }

    fn comes_and_goes(&self) {
        let available = self.pool.available();
        let layout = self.layout();
        let start = layout.window.unwrap().range.start().get();
        let ram = create(&layout, &self.options).unwrap();
        let (mut window, access) = (ram.window.unwrap(), ram.access.unwrap());
        let boot = ram.boot_regions[0].host_address;
        assert!(boot.is_multiple_of(self.page()) && boot > 0);
        assert_eq!(
            self.pool.available(),
            available - 1,
            "boot memory is reserved"
        );
        ram.guest
            .write_obj(1_u8, GuestAddress(self.page() - 1))
            .unwrap();

        let host = |window: &MmapWindow, lmb| window.host_address(LmbIndex::new(lmb));
        assert!(host(&window, 0).is_multiple_of(self.page()));
        let (count, last) = (self.count(), 1 + self.count());
        window.open(run(2, count)).unwrap();
        let taken = available - 1 - count;
        assert_eq!(self.pool.available(), taken, "and so is what is open");
        access.set(run(2, count), true);
        for lmb in 2..=last {
            let address = GuestAddress(start + lmb * self.page());
            ram.guest.write_obj(lmb, address).unwrap();
        }
        let first = host(&window, 0);
        let resident = |count: u64| {
            assert_eq!(
                resident_bytes(first, (last + 2) * self.page()),
                count * self.page()
            );
        };
        resident(count);

        access.set(run(last, 1), false);
        window.close(run(last, 1)).unwrap();
        assert!(permissions(host(&window, last)).starts_with("---"));
        assert_eq!(self.pool.available(), taken, "closed is not given back");
        window.reopen(run(last, 1)).unwrap();
        access.set(run(last, 1), true);
        let address = GuestAddress(start + last * self.page());
        assert_eq!(ram.guest.read_obj::<u64>(address).unwrap(), last);

        access.set(run(last, 1), false);
        window.close(run(last, 1)).unwrap();
        window.discard(run(last, 1)).unwrap();
        assert_eq!(self.pool.available(), taken + 1, "discarded is");
        resident(count - 1);
        window.open(run(last, 1)).unwrap();
        access.set(run(last, 1), true);
        assert_eq!(ram.guest.read_obj::<u64>(address).unwrap(), 0);

        drop((window, ram.guest));
        assert_eq!(self.pool.available(), available, "all of it at the end");
    }

    fn a_short_pool_is_an_error_at_opening(&self) {
        let available = self.pool.available();
        let ram = create(&self.layout(), &self.options).unwrap();
        let mut window = ram.window.unwrap();
        window.open(run(0, 1)).unwrap();
        let error = window.open(run(1, available)).unwrap_err();
        let HostMemoryError::HugePages { needed, free, .. } = error else {
            panic!("{error}");
        };
        assert_eq!((needed, free), (available, available - 2), "{error}");
        assert_eq!(self.pool.available(), available - 2, "nothing stays taken");
        for (lmb, reach) in [(0, "rw-"), (1, "---"), (available, "---")] {
            let address = window.host_address(LmbIndex::new(lmb));
            assert!(permissions(address).starts_with(reach), "{lmb}");
        }
        window.close(run(0, 1)).unwrap();
        window.discard(run(0, 1)).unwrap();
        window.open(run(1, 1)).unwrap();
    }

    fn a_short_pool_is_an_error_at_creation(&self) {
        let available = self.pool.available();
        let lmb = self.pool.0.bytes().to_string();
        let memory = lmb_memory::Bytes::new(self.page() * (available + 1)).to_string();
        let layout = layout(&memory, None, &lmb, self.pool.0);
        let error = create(&layout, &self.options).unwrap_err();
        assert!(
            matches!(error, HostMemoryError::HugePages { .. }),
            "{error}"
        );
        let text = error.to_string();
        let path = self.pool.path("nr_hugepages");
        assert!(text.contains(&path), "{text}");
        assert_eq!(self.pool.available(), available);
    }

    fn prefaulting_takes_pages_at_once(&self) {
        let free = self.pool.read("free_hugepages");
        let options = BackingOptions {
            prefault: NonZero::new(2).map(Prefault::new),
            ..self.options.clone()
        };
        let ram = create(&self.layout(), &options).unwrap();
        assert_eq!(self.pool.read("free_hugepages"), free - 1);
        let mut window = ram.window.unwrap();
        window.open(run(1, self.count())).unwrap();
        assert_eq!(self.pool.read("free_hugepages"), free - 1 - self.count());
        window.close(run(1, self.count())).unwrap();
        window.discard(run(1, self.count())).unwrap();
        assert_eq!(self.pool.read("free_hugepages"), free - 1);
    }
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    // A runner that starts a process for each test must not mix their counts.
    // (Without huge pages in the kernel there is nothing to lock.)
    let lock = fs::File::open(Pool(PageSize::Huge2M).path("nr_hugepages"));
    if let Ok(lock) = &lock {
        lock.lock().unwrap();
    }
    let mut trials = Vec::new();
    let mut raised = Vec::new();
    for page in [PageSize::Huge2M, PageSize::Huge1G] {
        let pool = Pool(page);
        let needed = 1 + window_pages(page);
        let (guard, enough) = Raised::to(pool, needed);
        raised.push(guard);
        if !enough {
            let has = pool.available();
            eprintln!("{page}: {needed} free pages are needed and the pool has {has}; ignored");
        }
        for shared in [false, true] {
            type Test = fn(&Case);
            let tests: [(&str, Test); 4] = [
                ("comes_and_goes", Case::comes_and_goes),
                (
                    "a_short_pool_is_an_error_at_opening",
                    Case::a_short_pool_is_an_error_at_opening,
                ),
                (
                    "a_short_pool_is_an_error_at_creation",
                    Case::a_short_pool_is_an_error_at_creation,
                ),
                (
                    "prefaulting_takes_pages_at_once",
                    Case::prefaulting_takes_pages_at_once,
                ),
            ];
            let kind = if shared { "shared" } else { "private" };
            for (name, test) in tests {
                let options = BackingOptions {
                    shared,
                    prefault: None,
                };
                let run = move || {
                    test(&Case { pool, options });
                    Ok(())
                };
                let name = format!("{page}_{kind}::{name}");
                trials.push(Trial::test(name, run).with_ignored_flag(!enough));
            }
        }
    }
    let code = libtest_mimic::run(&arguments, trials).exit_code();
    drop(raised);
    code
}
