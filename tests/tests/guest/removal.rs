//! Removed memory goes back to the host, whatever kind of pages it had.

use anyhow::{Result, ensure};
use lmb_tests::{GuestSpec, GuestVm, Kernel, MIB};
use lmb_vmm::protocol::MemoryAction;

use crate::cases::{Case, Needs};

pub(crate) const CASES: &[Case] = &[
    Case::new(
        "removal::private_memory_returns",
        20,
        private_memory_returns,
    ),
    Case::new("removal::thp_memory_returns", 20, thp_memory_returns),
    Case::new("removal::memfd_memory_returns", 20, memfd_memory_returns),
    Case::new("removal::huge_pages_return", 20, huge_pages_return)
        .needing(Needs::Machine(no_huge_pages)),
    Case::new(
        "removal::huge_memfd_pages_return",
        20,
        huge_memfd_pages_return,
    )
    .needing(Needs::Machine(no_huge_pages)),
    Case::new(
        "removal::short_huge_page_pool_is_survived",
        20,
        short_huge_page_pool_is_survived,
    )
    .needing(Needs::Machine(no_huge_pages)),
    Case::new("removal::prefault_populates", 15, prefault_populates),
    Case::new(
        "removal::rounds_leave_nothing_behind",
        120,
        rounds_leave_nothing_behind,
    ),
];

/// Huge pages of 2 MiB that the tests need: 512 MiB of memory.
const POOL: u64 = 256;
/// What is added and removed.
const ADDED: u64 = 256 * MIB;
/// What the guest writes to it.
const WRITTEN: u64 = 200 * MIB;

fn no_huge_pages() -> Option<&'static str> {
    if lmb_tests::why_no_guests().is_some() {
        return Some("no guests");
    }
    (GuestVm::free_huge_pages_2m() < POOL).then_some("fewer than 256 free huge pages of 2 MiB")
}

fn spec() -> GuestSpec {
    GuestSpec::new(Kernel::V6_1)
        .lmb_size("128M")
        .max_memory("1G")
}

/// Has the guest write to memory that it must take from what was added.
fn dirty(vm: &mut GuestVm) -> Result<()> {
    vm.sh_ok(&format!(
        "mkdir -p /t && mount -t tmpfs -o size=90% t /t \
         && dd if=/dev/zero of=/t/f bs=1M count={} 2>/dev/null && rm /t/f && umount /t",
        WRITTEN / MIB
    ))?;
    Ok(())
}

/// Adds, writes, removes; what `measure` says must rise and fall with it.
fn comes_and_goes(spec: &GuestSpec, measure: impl Fn(&GuestVm) -> Result<u64>) -> Result<()> {
    let mut vm = spec.boot_with_driver()?;
    let before = measure(&vm)?;
    vm.change_ok(MemoryAction::Add, ADDED)?;
    dirty(&mut vm)?;
    let full = measure(&vm)?;
    // The guest may have put some of it into its boot memory.
    ensure!(
        full >= before + WRITTEN / 2,
        "before {before}, written {full}"
    );
    let operation = vm.change_ok(MemoryAction::Remove, ADDED)?;
    let after = measure(&vm)?;
    // Boot memory that was touched meanwhile stays; nothing else may.
    ensure!(
        after <= before + 64 * MIB && after + WRITTEN / 2 <= full,
        "before {before}, written {full}, after {after}; {operation:#?}"
    );
    assert_eq!(vm.complaints()?, [""; 0]);
    Ok(())
}

fn private_memory_returns() -> Result<()> {
    comes_and_goes(&spec().flag("hugepages", "off"), GuestVm::resident_bytes)
}

fn thp_memory_returns() -> Result<()> {
    comes_and_goes(&spec().flag("hugepages", "thp"), GuestVm::resident_bytes)
}

fn memfd_memory_returns() -> Result<()> {
    // Resident memory would fall by unmapping alone; the memfd itself must
    // shrink.
    comes_and_goes(&spec().flag("shared", "true"), |vm| {
        let held = vm.memfd_bytes()?;
        ensure!(held > 0, "no memfd was found");
        Ok(held)
    })
}

fn huge(shared: &str) -> GuestSpec {
    spec().flag("hugepages", "2M").flag("shared", shared)
}

fn huge_pages_return() -> Result<()> {
    let start = GuestVm::free_huge_pages_2m();
    comes_and_goes(&huge("false"), |_| {
        Ok((start - GuestVm::free_huge_pages_2m()) * 2 * MIB)
    })
}

fn huge_memfd_pages_return() -> Result<()> {
    let start = GuestVm::free_huge_pages_2m();
    comes_and_goes(&huge("true"), |_| {
        Ok((start - GuestVm::free_huge_pages_2m()) * 2 * MIB)
    })
}

fn short_huge_page_pool_is_survived() -> Result<()> {
    // More than the pool has: plugging must stop short, and the guest live on.
    let pool = GuestVm::free_huge_pages_2m() * 2 * MIB;
    let max = (pool + 512 * MIB) / (128 * MIB) * (128 * MIB);
    let mut vm = huge("false")
        .max_memory(&max.to_string())
        .boot_with_driver()?;
    let operation = vm
        .client()
        .start_operation(&lmb_vmm::protocol::MemoryRequest {
            action: MemoryAction::Set,
            size_bytes: Some(max),
            lmbs: None,
            timeout_ms: 10_000,
            wait: true,
            wait_usable: false,
            ..lmb_vmm::protocol::MemoryRequest::new(MemoryAction::Set)
        })?;
    assert_eq!(
        operation.state,
        lmb_vmm::protocol::OperationState::Incomplete,
        "{operation:#?}"
    );
    assert!(operation.requests.busy > 0, "{operation:#?}");
    assert_eq!(operation.requests.error, 0, "{operation:#?}");
    dirty(&mut vm)?;
    vm.change_ok(MemoryAction::Set, 256 * MIB)?;
    Ok(())
}

fn prefault_populates() -> Result<()> {
    let vm = spec()
        .flag("prefault", "true")
        .flag("hugepages", "off")
        .boot_with_driver()?;
    assert!(vm.resident_bytes()? >= 256 * MIB);
    vm.change_ok(MemoryAction::Add, ADDED)?;
    assert!(vm.resident_bytes()? >= 256 * MIB + ADDED);
    vm.change_ok(MemoryAction::Remove, ADDED)?;
    assert!(vm.resident_bytes()? < 256 * MIB + ADDED / 2);
    Ok(())
}

fn rounds_leave_nothing_behind() -> Result<()> {
    const ROUNDS: usize = 10;
    let mut vm = spec().flag("hugepages", "off").boot_with_driver()?;
    let total = vm.mem_total_bytes()?;
    let mut resident = Vec::new();
    for _ in 0..ROUNDS {
        vm.change_ok(MemoryAction::Add, 512 * MIB)?;
        vm.change_ok(MemoryAction::Remove, 512 * MIB)?;
        resident.push(vm.resident_bytes()?);
    }
    assert_eq!(vm.mem_total_bytes()?, total);
    // The first round may warm things up; the later ones must not add to it.
    let (early, late) = (resident[1], resident[ROUNDS - 1]);
    assert!(late < early + 32 * MIB, "{resident:?}");
    let memory = vm.memory()?;
    assert_eq!(memory.windows[0].requests.error, 0);
    assert_eq!(memory.windows[0].slots, 0);
    assert_eq!(vm.complaints()?, [""; 0]);
    Ok(())
}
