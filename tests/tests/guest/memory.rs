//! Memory is added and removed, in the amounts asked for, with a timeline.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use lmb_tests::{GIB, GuestSpec, GuestVm, Kernel, MIB};
use lmb_vmm::protocol::{MemoryAction, MemoryRequest, Operation, OperationState};

use crate::cases::Case;
use crate::shared::{self, Standing, WINDOW_MIB};

const STOCK: Standing = Standing::Stock61;

pub(crate) const CASES: &[Case] = &[
    Case::on(STOCK, "mem::add_and_remove_6_1", 5, add_and_remove_6_1),
    Case::on(
        Standing::Stock612,
        "mem::add_and_remove_6_12",
        5,
        add_and_remove_6_12,
    ),
    Case::on(
        STOCK,
        "mem::timelines_are_in_order",
        5,
        timelines_are_in_order,
    ),
    Case::on(STOCK, "mem::amounts_in_lmbs", 3, amounts_in_lmbs),
    Case::on(
        STOCK,
        "mem::size_it_has_succeeds_at_once",
        1,
        size_it_has_succeeds_at_once,
    ),
    Case::on(
        STOCK,
        "mem::whole_window_in_one_step",
        10,
        whole_window_in_one_step,
    ),
    Case::on(
        STOCK,
        "mem::whole_window_in_many_steps",
        15,
        whole_window_in_many_steps,
    ),
    Case::on(
        STOCK,
        "mem::status_answers_during_a_removal",
        15,
        status_answers_during_a_removal,
    ),
    Case::on(
        STOCK,
        "mem::unplugged_memory_is_out_of_reach",
        5,
        unplugged_memory_is_out_of_reach,
    ),
    Case::new(
        "mem::small_lmbs_inside_a_guest_block",
        15,
        small_lmbs_inside_a_guest_block,
    ),
    Case::new("mem::lmbs_of_2_mib", 15, lmbs_of_2_mib),
    Case::new("mem::lmbs_of_2_gib", 20, lmbs_of_2_gib),
    Case::new("mem::slots_come_and_go", 10, slots_come_and_go),
    Case::new(
        "mem::hundreds_of_blocks_by_events",
        20,
        hundreds_of_blocks_by_events,
    ),
    Case::new(
        "mem::lost_events_make_the_stamp_late",
        15,
        lost_events_make_the_stamp_late,
    ),
    Case::new("mem::two_guests_at_once", 20, two_guests_at_once),
];

/// Adds and removes, and compares the VMM's book with the guest's view.
fn round_trip(vm: &mut GuestVm, bytes: u64) -> Result<(Operation, Operation)> {
    let boot = vm.memory()?.boot_bytes;
    let before = vm.mem_total_bytes()?;
    let add = vm.change_ok(MemoryAction::Add, bytes)?;
    assert_eq!(vm.mem_total_bytes()?, before + bytes);
    let memory = vm.memory()?;
    assert_eq!(memory.total_bytes, boot + bytes);
    assert_eq!(memory.target_bytes, boot + bytes);
    let window = memory.windows.first().context("no window")?;
    assert_eq!(window.plugged_bytes, bytes);
    assert_eq!(window.requested_bytes, bytes);
    assert_eq!(window.plugged_lmbs, bytes / memory.lmb_size_bytes);
    assert_eq!(window.requests.error, 0);
    let remove = vm.change_ok(MemoryAction::Remove, bytes)?;
    assert_eq!(vm.mem_total_bytes()?, before);
    let memory = vm.memory()?;
    assert_eq!(memory.total_bytes, boot);
    assert_eq!(memory.windows[0].plugged_bytes, 0);
    assert_eq!(memory.windows[0].requests.error, 0);
    assert_eq!(memory.operation.map(|o| o.id), Some(remove.id));
    Ok((add, remove))
}

fn add_and_remove_6_1() -> Result<()> {
    shared::with(STOCK, |vm| round_trip(vm, GIB).map(drop))
}

fn add_and_remove_6_12() -> Result<()> {
    shared::with(Standing::Stock612, |vm| round_trip(vm, GIB).map(drop))
}

/// The stamps that every finished operation has, in their order.
fn check_timeline(operation: &Operation) -> Result<()> {
    let t = &operation.timeline;
    let all = format!("{operation:#?}");
    let stamp = |name: &str, value: Option<u64>| value.with_context(|| format!("no {name}: {all}"));
    let announced = stamp("announcement", t.announced_ns)?;
    let first = stamp("first request", t.first_request_ns)?;
    let last = stamp("last answer", t.last_answer_ns)?;
    let usable = stamp("usable", t.usable_ns)?;
    let replied = stamp("reply", t.replied_ns)?;
    assert!(announced <= first, "{all}");
    assert!(first < last, "{all}");
    assert!(last <= replied, "{all}");
    assert!(usable <= replied, "{all}");
    assert!(first < usable, "{all}");
    assert!(!t.usable_late, "{all}");
    Ok(())
}

fn timelines_are_in_order() -> Result<()> {
    shared::with(STOCK, |vm| {
        let before = vm.client().vm()?.boot.process_start_ns;
        let (add, remove) = round_trip(vm, 512 * MIB)?;
        for operation in [&add, &remove] {
            check_timeline(operation)?;
            // Four blocks of the guest, an LMB each.
            assert!(operation.timeline.accepted_ns > before, "{operation:#?}");
            assert_eq!(operation.requests.blocks, 4, "{operation:#?}");
            assert_eq!(operation.requests.error, 0, "{operation:#?}");
            assert_eq!(operation.plugged_bytes, operation.target_bytes);
            assert_eq!(operation.message, None);
        }
        assert_eq!(add.requests.plug, 4, "{add:#?}");
        assert_eq!(remove.requests.unplug, 4, "{remove:#?}");
        // An added block goes online only after its PLUG was answered.
        assert!(
            add.timeline.usable_ns > add.timeline.last_answer_ns,
            "{add:#?}"
        );
        assert!(remove.id > add.id);
        // The reply's stamp is in the list of operations as well.
        let listed = vm.client().operation(add.id)?;
        assert_eq!(listed, add);
        Ok(())
    })
}

fn lmbs(action: MemoryAction, lmbs: u64) -> MemoryRequest {
    MemoryRequest {
        action,
        size_bytes: None,
        lmbs: Some(lmbs),
        timeout_ms: 60_000,
        wait: true,
        wait_usable: true,
        ..MemoryRequest::new(action)
    }
}

fn amounts_in_lmbs() -> Result<()> {
    shared::with(STOCK, |vm| {
        let client = vm.client();
        let add = client.start_operation(&lmbs(MemoryAction::Add, 3))?;
        assert_eq!(add.target_bytes, (256 + 384) * MIB);
        assert_eq!(vm.memory()?.windows[0].plugged_lmbs, 3);
        let set = client.start_operation(&lmbs(MemoryAction::Set, 4))?;
        assert_eq!(set.target_bytes, 512 * MIB);
        assert_eq!(set.state, OperationState::Done);
        assert_eq!(vm.memory()?.windows[0].plugged_lmbs, 2);
        let remove = client.start_operation(&lmbs(MemoryAction::Remove, 2))?;
        assert_eq!(remove.target_bytes, 256 * MIB);
        assert_eq!(vm.memory()?.windows[0].plugged_lmbs, 0);
        Ok(())
    })
}

fn size_it_has_succeeds_at_once() -> Result<()> {
    shared::with(STOCK, |vm| {
        let start = Instant::now();
        let operation = vm.change_ok(MemoryAction::Set, 256 * MIB)?;
        assert!(
            start.elapsed() < Duration::from_secs(1),
            "{:?}",
            start.elapsed()
        );
        assert_eq!(operation.requests.plug, 0, "{operation:#?}");
        assert_eq!(operation.timeline.first_request_ns, None, "{operation:#?}");
        Ok(())
    })
}

fn whole_window_in_one_step() -> Result<()> {
    shared::with(STOCK, |vm| {
        let (add, _) = round_trip(vm, WINDOW_MIB * MIB)?;
        assert_eq!(add.plugged_bytes, vm.memory()?.max_bytes);
        Ok(())
    })
}

fn whole_window_in_many_steps() -> Result<()> {
    shared::with(STOCK, |vm| {
        let before = vm.mem_total_bytes()?;
        for _ in 0..WINDOW_MIB / 256 {
            vm.change_ok(MemoryAction::Add, 256 * MIB)?;
        }
        let memory = vm.memory()?;
        assert_eq!(memory.total_bytes, memory.max_bytes);
        assert_eq!(vm.mem_total_bytes()?, before + WINDOW_MIB * MIB);
        // One LMB more is refused, and nothing changes.
        let refused = vm.change(MemoryAction::Add, 128 * MIB);
        assert!(refused.is_err(), "{refused:?}");
        assert_eq!(vm.memory()?.target_bytes, memory.max_bytes);
        Ok(())
    })
}

fn status_answers_during_a_removal() -> Result<()> {
    /// On an emulated host with one processor, which the guest keeps busy.
    const LIMIT: Duration = Duration::from_millis(250);
    shared::with(STOCK, |vm| {
        vm.change_ok(MemoryAction::Add, WINDOW_MIB * MIB)?;
        let operation = vm.begin(MemoryAction::Set, 256 * MIB)?;
        let client = vm.client();
        let mut longest = Duration::ZERO;
        let mut answers = 0;
        let mut sizes = std::collections::BTreeSet::new();
        loop {
            let start = Instant::now();
            let memory = client.memory()?;
            longest = longest.max(start.elapsed());
            let Some(shown) = memory.operation else {
                anyhow::bail!("the operation is not shown");
            };
            if shown.state != OperationState::Running {
                assert_eq!(shown.state, OperationState::Done, "{shown:#?}");
                assert_eq!(shown.id, operation.id);
                break;
            }
            sizes.insert(memory.total_bytes);
            answers += 1;
        }
        assert!(longest < LIMIT, "an answer took {longest:?}");
        assert!(answers >= 5, "only {answers} answers during the removal");
        assert!(sizes.len() > 2, "no progress was visible: {sizes:?}");
        Ok(())
    })
}

fn unplugged_memory_is_out_of_reach() -> Result<()> {
    shared::with(STOCK, |vm| {
        // The window's first LMB is plugged, the one behind it in the same
        // slot is not.
        vm.change_ok(MemoryAction::Add, 128 * MIB)?;
        let window = vm.memory()?.windows[0].start_address;
        let address = window + 192 * MIB;
        vm.type_in(&format!("devmem {address:#x} 64 0x1122334455667788\n"))?;
        vm.type_in(&format!("devmem {address:#x} 64; echo after-$((1+1))\n"))?;
        match vm.await_text("after-2", lmb_tests::wait::SHORT) {
            // The guest goes on: nothing was kept.
            Ok(text) => assert!(!text.contains("1122334455667788"), "{text}"),
            // The VMM stopped the guest: it must say why.
            Err(_) => {
                vm.await_exit()?;
                let said = vm.stderr();
                assert!(said.contains("unplugged"), "{said}");
            }
        }
        Ok(())
    })
}

fn small_lmbs_inside_a_guest_block() -> Result<()> {
    // The driver's sub-block mode: no event tells of these changes, so the
    // agent finds them by looking.
    let mut vm = GuestSpec::new(Kernel::V6_1)
        .lmb_size("32M")
        .max_memory("512M")
        .boot_with_driver()?;
    let before = vm.mem_total_bytes()?;
    for (step, late) in [(1, false), (2, true), (3, true)] {
        let add = vm.change_ok(MemoryAction::Add, 32 * MIB)?;
        assert_eq!(vm.mem_total_bytes()?, before + step * 32 * MIB);
        assert!(add.timeline.usable_ns.is_some(), "{add:#?}");
        assert_eq!(add.timeline.usable_late, late, "{add:#?}");
    }
    let remove = vm.change_ok(MemoryAction::Remove, 64 * MIB)?;
    assert!(remove.timeline.usable_late, "{remove:#?}");
    assert_eq!(vm.mem_total_bytes()?, before + 32 * MIB);
    let remove = vm.change_ok(MemoryAction::Remove, 32 * MIB)?;
    assert!(!remove.timeline.usable_late, "{remove:#?}");
    assert_eq!(vm.mem_total_bytes()?, before);
    assert_eq!(vm.complaints()?, [""; 0]);
    Ok(())
}

fn lmbs_of_2_mib() -> Result<()> {
    let mut vm = GuestSpec::new(Kernel::V6_1)
        .lmb_size("2M")
        .max_memory("1280M")
        .boot_with_driver()?;
    let (add, remove) = round_trip(&mut vm, 258 * MIB)?;
    assert_eq!(add.requests.blocks, 129);
    assert_eq!(remove.requests.blocks, 129);
    // The guest asks once for each of its own memory blocks.
    assert_eq!(add.requests.plug, 3, "{add:#?}");
    Ok(())
}

fn lmbs_of_2_gib() -> Result<()> {
    let mut vm = GuestSpec::new(Kernel::V6_1)
        .memory("2G")
        .lmb_size("2G")
        .max_memory("6G")
        // The guest would zero what it gives back, and the host need 4 GiB.
        .append("init_on_alloc=0")
        .boot_with_driver()?;
    let (add, _) = round_trip(&mut vm, 4 * GIB)?;
    assert_eq!(add.requests.blocks, 2);
    assert_eq!(vm.complaints()?, [""; 0]);
    Ok(())
}

fn slots_come_and_go() -> Result<()> {
    let mut vm = GuestSpec::new(Kernel::V6_1)
        .lmb_size("128M")
        .flag("slot-size", "256M")
        .max_memory("1280M")
        .boot_with_driver()?;
    let slots = |vm: &GuestVm| -> Result<u64> { Ok(vm.memory()?.windows[0].slots) };
    assert_eq!(slots(&vm)?, 0);
    vm.change_ok(MemoryAction::Add, 640 * MIB)?;
    assert_eq!(slots(&vm)?, 3);
    // Memory in a slot that is only half plugged works to its last page.
    vm.sh_ok("mkdir -p /t && mount -t tmpfs -o size=500m t /t && dd if=/dev/zero of=/t/f bs=1M count=450 2>/dev/null && sync && rm /t/f && umount /t")?;
    vm.change_ok(MemoryAction::Remove, 640 * MIB)?;
    assert_eq!(slots(&vm)?, 0);
    assert_eq!(vm.complaints()?, [""; 0]);
    Ok(())
}

fn hundreds_of_blocks_by_events() -> Result<()> {
    // 300 blocks of 128 MiB. Each costs the guest 2 MiB for its page
    // structures, which is what bounds their number here.
    let mut vm = GuestSpec::new(Kernel::V6_1)
        .memory("1G")
        .lmb_size("128M")
        .max_memory("64G")
        .boot_with_driver()?;
    let before = vm.mem_total_bytes()?;
    let add = vm.change_ok(MemoryAction::Add, 300 * 128 * MIB)?;
    check_timeline(&add)?;
    assert_eq!(vm.mem_total_bytes()?, before + 300 * 128 * MIB);
    assert_eq!(add.requests.plug, 300);
    Ok(())
}

fn lost_events_make_the_stamp_late() -> Result<()> {
    // A receive buffer that holds a few events, and an agent that seldom gets
    // the processor.
    let mut vm = GuestSpec::new(Kernel::V6_1)
        .lmb_size("128M")
        .max_memory("4G")
        .append("lmb.uevent_bytes=1")
        .boot_with_driver()?;
    let losses = |vm: &mut GuestVm| vm.sh_number("dmesg | grep -c 'uevents were lost' || true");
    vm.sh_ok("renice -n 19 -p 1 && (while :; do :; done) >/dev/null 2>&1 &")?;
    let before = losses(&mut vm)?;
    let add = vm.change_ok(MemoryAction::Add, 2 * GIB)?;
    assert!(losses(&mut vm)? > before, "no event was lost: {add:#?}");
    assert!(add.timeline.usable_ns.is_some(), "{add:#?}");
    assert!(add.timeline.usable_late, "{add:#?}");
    Ok(())
}

fn two_guests_at_once() -> Result<()> {
    let spec = GuestSpec::new(Kernel::V6_1)
        .lmb_size("128M")
        .max_memory("1280M");
    let mut first = spec.boot_with_driver()?;
    let mut second = spec.boot_with_driver()?;
    round_trip(&mut first, 256 * MIB)?;
    round_trip(&mut second, 512 * MIB)?;
    Ok(())
}
