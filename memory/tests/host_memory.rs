//! Host memory in small pages, as the kernel sees it: private and memfd.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

mod common;

use std::num::NonZero;
use std::os::unix::fs::MetadataExt;

use common::{file_bytes, layout, permissions, resident_bytes, run, touch};
use lmb_memory::{
    BackingOptions, Bytes, FaultKind, FaultyWindow, HostMemoryError, HostRam, LmbIndex, PageSize,
    Prefault, WindowMemory, WindowOp, create,
};
use vm_memory::{
    Bytes as _, GuestAddress, GuestMemory, GuestMemoryBackend, GuestMemoryRegion, Permissions,
};

const LMB: u64 = 2 << 20;

struct Vm {
    ram: HostRam,
    start: u64,
}

fn vm(page: PageSize, options: BackingOptions) -> Vm {
    let layout = layout("16M", Some("48M"), "2M", page);
    let ram = create(&layout, &options).unwrap();
    let start = layout.window.unwrap().range.start().get();
    Vm { ram, start }
}

impl Vm {
    fn host(&self, lmb: u64) -> u64 {
        let window = self.ram.window.as_ref().unwrap();
        window.host_address(LmbIndex::new(lmb))
    }

    fn window(&mut self) -> &mut lmb_memory::MmapWindow {
        self.ram.window.as_mut().unwrap()
    }

    fn let_in(&self, first: u64, count: u64, accessible: bool) {
        let access = self.ram.access.as_ref().unwrap();
        access.set(run(first, count), accessible);
    }
}

const SHARED: BackingOptions = BackingOptions {
    shared: true,
    prefault: None,
};

fn memory_comes_with_touching_and_goes_with_discarding(options: BackingOptions) {
    let mut vm = vm(PageSize::Small, options.clone());
    assert!(permissions(vm.host(3)).starts_with("---"));
    vm.window().open(run(3, 4)).unwrap();
    assert!(permissions(vm.host(3)).starts_with("rw-"));
    assert!(permissions(vm.host(7)).starts_with("---"));
    vm.let_in(3, 4, true);
    assert_eq!(resident_bytes(vm.host(0), 16 * LMB), 0);

    let guest = vm.ram.guest.clone();
    touch(&guest, vm.start + 3 * LMB, 4 * LMB);
    assert_eq!(resident_bytes(vm.host(0), 16 * LMB), 4 * LMB);
    if options.shared {
        assert_eq!(file_bytes(&guest, vm.start), 4 * LMB);
    }

    // Closed: out of reach, the contents kept.
    vm.let_in(4, 2, false);
    vm.window().close(run(4, 2)).unwrap();
    for (lmb, reach) in [(3, "rw-"), (4, "---"), (5, "---"), (6, "rw-")] {
        assert!(permissions(vm.host(lmb)).starts_with(reach), "{lmb}");
    }
    vm.window().reopen(run(4, 1)).unwrap();
    vm.let_in(4, 1, true);
    let address = GuestAddress(vm.start + 4 * LMB + 8192);
    assert_eq!(guest.read_obj::<u64>(address).unwrap(), address.0);

    // Discarded: given back, and zero when it comes again.
    vm.let_in(4, 1, false);
    vm.window().close(run(4, 1)).unwrap();
    vm.window().discard(run(4, 2)).unwrap();
    assert_eq!(resident_bytes(vm.host(4), 2 * LMB), 0);
    assert_eq!(resident_bytes(vm.host(0), 16 * LMB), 2 * LMB);
    if options.shared {
        assert_eq!(file_bytes(&guest, vm.start), 2 * LMB);
    }
    vm.window().open(run(4, 2)).unwrap();
    vm.let_in(4, 2, true);
    assert_eq!(guest.read_obj::<u64>(address).unwrap(), 0);
}

#[test]
fn private_memory_comes_and_goes() {
    memory_comes_with_touching_and_goes_with_discarding(BackingOptions::default());
}

#[test]
fn shared_memory_comes_and_goes() {
    memory_comes_with_touching_and_goes_with_discarding(SHARED);
}

#[test]
fn prefaulting_populates_boot_at_creation_and_the_window_at_opening() {
    for shared in [false, true] {
        for page in [PageSize::Small, PageSize::Thp] {
            let mut vm = vm(
                page,
                BackingOptions {
                    shared,
                    prefault: NonZero::new(3).map(Prefault::new),
                },
            );
            let boot = vm.ram.boot_regions[0];
            let len = boot.range.len().get();
            assert_eq!(resident_bytes(boot.host_address, len), len);
            assert_eq!(resident_bytes(vm.host(0), 16 * LMB), 0);
            vm.window().open(run(1, 5)).unwrap();
            assert_eq!(resident_bytes(vm.host(0), 16 * LMB), 5 * LMB);
        }
    }
}

#[test]
fn host_and_guest_addresses_line_up_for_large_pages() {
    for shared in [false, true] {
        let options = BackingOptions {
            shared,
            prefault: None,
        };
        let vm = vm(PageSize::Thp, options);
        for address in [vm.ram.boot_regions[0].host_address, vm.host(0)] {
            assert!(address.is_multiple_of(2 << 20), "{address:#x}");
        }
        assert_eq!(vm.host(5) - vm.host(0), 5 * LMB);
    }
}

#[test]
fn transparent_huge_pages_are_advised_both_ways() {
    let flags_at = |address: u64| {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let start = smaps.find(&format!("{address:x}-")).unwrap();
        let flags = smaps[start..].lines().find(|l| l.starts_with("VmFlags:"));
        flags.unwrap().to_owned()
    };
    for (page, advice) in [(PageSize::Thp, " hg"), (PageSize::Small, " nh")] {
        let mut vm = vm(page, BackingOptions::default());
        vm.window().open(run(2, 2)).unwrap();
        for address in [vm.host(0), vm.host(2)] {
            let flags = flags_at(address);
            assert!(flags.contains(advice), "{page}: {flags}");
        }
    }
}

#[test]
fn the_vmm_cannot_touch_what_is_not_let_in() {
    let mut vm = vm(PageSize::Small, BackingOptions::default());
    let guest = vm.ram.guest.clone();
    vm.window().open(run(2, 2)).unwrap();
    vm.let_in(2, 2, true);
    let at = |lmb: u64| GuestAddress(vm.start + lmb * LMB);
    let reach = |address: GuestAddress, len: usize| {
        let backend = GuestMemoryBackend::check_range(&guest, address, len);
        let layer = GuestMemory::check_range(&guest, address, len, Permissions::Write);
        assert_eq!(backend, layer);
        backend
    };
    let lmb = usize::try_from(LMB).unwrap();
    assert!(reach(at(2), 2 * lmb));
    assert!(!reach(at(2), 2 * lmb + 1));
    assert!(!reach(GuestAddress(at(2).0 - 1), 2));
    assert!(!reach(at(15), lmb));
    assert!(guest.write_obj(1_u64, at(3)).is_ok());
    // These are PROT_NONE: an access that was let through would be a SIGSEGV.
    assert!(guest.write_obj(1_u64, at(4)).is_err());
    assert!(guest.read_obj::<u64>(GuestAddress(at(4).0 - 4)).is_err());
    assert!(guest.read_obj::<u8>(at(0)).is_err());
    assert!(guest.get_slice(at(3), lmb + 1).is_err());
    assert!(guest.get_host_address(at(1)).is_err());
    assert!(
        guest
            .store(1_u32, at(9), std::sync::atomic::Ordering::SeqCst)
            .is_err()
    );
    assert!(guest.read_obj::<u8>(at(16)).is_err(), "past the window");
    assert!(guest.read_obj::<u8>(GuestAddress(u64::MAX)).is_err());

    vm.let_in(3, 1, false);
    vm.window().close(run(3, 1)).unwrap();
    assert!(
        guest
            .read_obj::<u64>(GuestAddress(vm.start + 3 * LMB))
            .is_err()
    );
    // Boot memory always can be.
    guest.write_obj(7_u64, GuestAddress(0x1000)).unwrap();
    assert_eq!(guest.read_obj::<u64>(GuestAddress(0x1000)).unwrap(), 7);
}

#[test]
fn operations_from_the_wrong_state_are_refused_and_change_nothing() {
    let mut vm = vm(PageSize::Small, BackingOptions::default());
    let start = vm.host(0);
    let window = vm.window();
    window.open(run(4, 4)).unwrap();
    window.close(run(6, 2)).unwrap();
    type Op = fn(&mut lmb_memory::MmapWindow, lmb_memory::LmbRange) -> Result<(), HostMemoryError>;
    let wrong: [(Op, u64, u64); 8] = [
        (WindowMemory::open, 3, 2),
        (WindowMemory::open, 7, 2),
        (WindowMemory::close, 5, 2),
        (WindowMemory::close, 0, 1),
        (WindowMemory::reopen, 5, 2),
        (WindowMemory::reopen, 8, 1),
        (WindowMemory::discard, 5, 2),
        (WindowMemory::discard, 3, 2),
    ];
    for (op, first, count) in wrong {
        let error = op(window, run(first, count)).unwrap_err();
        assert!(
            matches!(error, HostMemoryError::WrongState { .. }),
            "{error}"
        );
    }
    for (first, count) in [(15, 2), (16, 1), (u64::MAX - 1, 1)] {
        let error = window.open(run(first, count)).unwrap_err();
        assert!(
            matches!(error, HostMemoryError::OutsideWindow { .. }),
            "{error}"
        );
    }
    for lmb in 0..16 {
        let open = permissions(start + lmb * LMB).starts_with("rw-");
        assert_eq!(open, lmb == 4 || lmb == 5, "{lmb}");
    }
    window.discard(run(6, 2)).unwrap();
    window.discard(run(0, 4)).unwrap();
    window.open(run(6, 2)).unwrap();
}

#[test]
fn dropping_the_vm_gives_all_addresses_back_but_not_under_a_user() {
    let vm = vm(PageSize::Small, SHARED);
    let guest = vm.ram.guest.clone();
    // The files stay open here, so that their numbers are not given anew.
    let files: Vec<_> = guest
        .iter()
        .map(|region| region.file_offset().unwrap().arc().clone())
        .collect();
    let mapped = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let inodes: Vec<_> = maps
            .lines()
            .map(|line| line.split_whitespace().nth(4).unwrap().to_owned())
            .collect();
        let inode = |file: &std::fs::File| file.metadata().unwrap().ino().to_string();
        let count = |file: &&std::sync::Arc<std::fs::File>| inodes.contains(&inode(file));
        files.iter().filter(count).count()
    };
    assert_eq!(mapped(), 2);
    drop(vm);
    guest.write_obj(1_u8, GuestAddress(0)).unwrap();
    assert_eq!(mapped(), 2);
    drop(guest);
    assert_eq!(mapped(), 0);
}

#[test]
fn a_fault_double_fails_where_it_is_told_and_without_effect() {
    let mut vm = vm(PageSize::Small, BackingOptions::default());
    let start = vm.host(0);
    let (mut window, control) = FaultyWindow::new(vm.ram.window.take().unwrap());
    control.fail(WindowOp::Open, 2, FaultKind::OutOfMemory);
    control.fail(WindowOp::Discard, 1, FaultKind::MappingLimit);
    window.open(run(0, 1)).unwrap();
    let error = window.open(run(1, 1)).unwrap_err();
    assert!(error.to_string().contains("injected"), "{error}");
    assert!(permissions(start + LMB).starts_with("---"));
    assert_eq!(control.pending(), 1);
    window.open(run(1, 1)).unwrap();
    window.close(run(0, 2)).unwrap();
    let error = window.discard(run(0, 2)).unwrap_err();
    assert!(matches!(error, HostMemoryError::MappingLimit { .. }));
    window.reopen(run(0, 2)).unwrap();
    assert!(permissions(start).starts_with("rw-"));
    let calls: Vec<_> = control
        .calls()
        .iter()
        .map(|call| (call.op, call.succeeded))
        .collect();
    assert_eq!(
        calls,
        [
            (WindowOp::Open, true),
            (WindowOp::Open, false),
            (WindowOp::Open, true),
            (WindowOp::Close, true),
            (WindowOp::Discard, false),
            (WindowOp::Reopen, true),
        ]
    );
}

#[test]
fn memory_past_the_address_space_is_an_error() {
    // 128 TiB in all is more than a process of 47 bits has.
    let layout = layout("64T", Some("128T"), "4G", PageSize::Small);
    assert_eq!(layout.boot_bytes, Bytes::new(64 << 40));
    let error = create(&layout, &BackingOptions::default()).unwrap_err();
    assert!(
        matches!(error, HostMemoryError::System { call: "mmap", .. }),
        "{error}"
    );
}
