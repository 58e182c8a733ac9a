//! A window of 64 TiB. Alone in its process, since it looks at the memory of
//! the whole of it.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

mod common;

use std::time::{Duration, Instant};

use common::{layout, run};
use lmb_memory::{BackingOptions, Ledger, LmbCount, LmbIndex, PageSize, WindowMemory, create};
use vm_memory::{Bytes as _, GuestAddress};

/// Resident memory of this process.
fn rss_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * common::PAGE
}

#[test]
fn starts_at_once_and_its_books_are_small() {
    for shared in [false, true] {
        let options = BackingOptions {
            shared,
            prefault: None,
        };
        let before = rss_bytes();
        let started = Instant::now();
        let layout = layout("256M", Some("67109120M"), "128M", PageSize::Small);
        let window = layout.window.unwrap();
        assert_eq!(window.lmbs, LmbCount::new(524_288));
        let ram = create(&layout, &options).unwrap();
        let mut ledger = Ledger::new(&window, layout.lmb_size);
        let took = started.elapsed();
        assert!(took < Duration::from_millis(100), "{took:?}");

        // The last LMB is as good as any.
        let (mut memory, access) = (ram.window.unwrap(), ram.access.unwrap());
        let last = ledger.address_of(LmbIndex::new(524_287)).unwrap().get();
        ledger.set_requested(LmbCount::new(1)).unwrap();
        let plan = ledger.plan_plug(last, 1).unwrap();
        memory.open(plan.runs()[0]).unwrap();
        access.set(plan.runs()[0], true);
        assert!(ledger.commit(plan));
        let end = GuestAddress(last + (128 << 20) - 8);
        ram.guest.write_obj(42_u64, end).unwrap();
        assert_eq!(ram.guest.read_obj::<u64>(end).unwrap(), 42);
        assert!(ram.guest.read_obj::<u8>(GuestAddress(last - 1)).is_err());
        memory.close(run(524_287, 1)).unwrap();
        memory.discard(run(524_287, 1)).unwrap();

        let books = rss_bytes().saturating_sub(before);
        assert!(books < 2 << 20, "{books} bytes");
    }
}
