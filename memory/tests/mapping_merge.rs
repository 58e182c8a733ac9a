//! Memory that was in use and is empty again must not use up the host's limit
//! of mappings. Alone in its process, since it counts those of all of it.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

mod common;

use common::{layout, resident_bytes, run};
use lmb_memory::{
    AccessMap, BackingOptions, Bytes, GuestRam, HostMemoryError, LmbIndex, MmapWindow, PageSize,
    WindowMemory, create,
};
use vm_memory::{Bytes as _, GuestAddress};

const LMB: u64 = 2 << 20;

struct Vm {
    window: MmapWindow,
    access: AccessMap,
    guest: GuestRam,
    start: u64,
}

impl Vm {
    /// Opens an LMB and writes a page of it.
    fn open(&mut self, lmb: u64) -> Result<(), HostMemoryError> {
        self.window.open(run(lmb, 1))?;
        self.access.set(run(lmb, 1), true);
        let address = GuestAddress(self.start + lmb * LMB);
        self.guest.write_obj(lmb, address).unwrap();
        Ok(())
    }

    /// Opens every second LMB from `first` until refused; how many.
    fn open_every_second(&mut self, first: u64) -> u64 {
        for count in 0.. {
            match self.open(first + 2 * count) {
                Ok(()) => {}
                Err(HostMemoryError::MappingLimit { .. }) => return count,
                Err(error) => panic!("{error}"),
            }
        }
        unreachable!()
    }
}

#[test]
fn empty_memory_costs_no_mappings_whatever_it_was() {
    let limit = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap();
    let limit: u64 = limit.trim().parse().unwrap();
    let max = Bytes::new((2 * limit + 16) * LMB).to_string();
    let layout = layout("2M", Some(&max), "2M", PageSize::Small);
    let ram = create(&layout, &BackingOptions::default()).unwrap();
    let mut vm = Vm {
        window: ram.window.unwrap(),
        access: ram.access.unwrap(),
        guest: ram.guest,
        start: layout.window.unwrap().range.start().get(),
    };

    // Neighbours with pages of their own, which Linux then keeps apart.
    let first = vm.open_every_second(1);
    let last = 2 * first - 1;
    let host = vm.window.host_address(LmbIndex::new(last));
    assert_eq!(resident_bytes(host, LMB), common::PAGE);
    for lmb in (2..last).step_by(2) {
        vm.open(lmb).unwrap();
    }
    for lmb in 1..=last {
        vm.access.set(run(lmb, 1), false);
        vm.window.close(run(lmb, 1)).unwrap();
        vm.window.discard(run(lmb, 1)).unwrap();
    }

    // Elsewhere there is as much room as at first.
    let second = vm.open_every_second(limit + 8);
    assert!(first.abs_diff(second) < 16, "{first} and then {second}");
    // What was open was left alone.
    let address = GuestAddress(vm.start + (limit + 8) * LMB);
    assert_eq!(vm.guest.read_obj::<u64>(address).unwrap(), limit + 8);
}
