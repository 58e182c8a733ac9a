//! Guests whose LMBs are ACPI memory devices: single LMBs come and go by their
//! index, and each one's fate is told.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lmb_tests::{GIB, GuestSpec, GuestVm, Kernel, MIB, Output, wait};
use lmb_vmm::protocol::{
    LmbChange, LmbList, LmbOutcome, LmbRun, LmbSpan, LmbState, MemoryAction, MemoryRequest,
    Operation, OperationState,
};

use crate::cases::Case;
use crate::shared::{self, Standing};

const V6_1: Standing = Standing::Acpi61;
const V6_12: Standing = Standing::Acpi612;

pub(crate) const CASES: &[Case] = &[
    Case::on(V6_1, "acpi::add_and_remove_6_1", 4, || {
        shared::with(V6_1, add_and_remove)
    }),
    Case::on(V6_12, "acpi::add_and_remove_6_12", 4, || {
        shared::with(V6_12, add_and_remove)
    }),
    Case::on(V6_1, "acpi::lmbs_by_index_6_1", 6, || {
        shared::with(V6_1, lmbs_by_index)
    }),
    Case::on(V6_12, "acpi::lmbs_by_index_6_12", 6, || {
        shared::with(V6_12, lmbs_by_index)
    }),
    Case::on(V6_1, "acpi::lmbs_are_listed", 3, || {
        shared::with(V6_1, lmbs_are_listed)
    }),
    Case::on(
        Standing::Stock61,
        "acpi::virtio_mem_tells_of_no_lmb",
        3,
        virtio_mem_tells_of_no_lmb,
    ),
    Case::on(V6_1, "acpi::wrong_lmbs_are_refused", 3, || {
        shared::with(V6_1, wrong_lmbs_are_refused)
    }),
    Case::on(V6_1, "acpi::guest_ejects_by_itself", 3, || {
        shared::with(V6_1, guest_ejects_by_itself)
    }),
    Case::on(V6_12, "acpi::lmbs_are_there_after_a_reboot", 12, || {
        shared::with(V6_12, lmbs_are_there_after_a_reboot)
    }),
    Case::new("acpi::unmovable_lmb_refuses_6_1", 10, || {
        unmovable_lmb_refuses(Kernel::V6_1)
    }),
    Case::new("acpi::unmovable_lmb_refuses_6_12", 10, || {
        unmovable_lmb_refuses(Kernel::V6_12)
    }),
    Case::new("acpi::pinned_lmb_holds_the_queue", 15, || {
        pinned_lmb_holds_the_queue(Kernel::V6_1)
    }),
    Case::new("acpi::lmbs_at_boot", 8, lmbs_at_boot),
    Case::new("acpi::most_lmbs_there_may_be", 12, most_lmbs_there_may_be),
    Case::new("acpi::impossible_layouts", 2, impossible_layouts),
    Case::new("acpi::many_gib_128m", 25, || many_gib("128M", "2G")),
    Case::new("acpi::many_gib_256m", 18, || many_gib("256M", "2G")),
    Case::new("acpi::many_gib_1g", 12, || many_gib("1G", "2G")),
    Case::new("acpi::many_gib_2g", 12, || many_gib("2G", "2G")),
    Case::new("acpi::many_gib_4g", 12, || many_gib("4G", "4G")),
    Case::new("acpi::lmbs_hold_their_description_6_1", 18, || {
        lmbs_hold_their_description(Kernel::V6_1, "256M")
    }),
    Case::new("acpi::lmbs_hold_their_description_6_12", 14, || {
        lmbs_hold_their_description(Kernel::V6_12, "4G")
    }),
];

const LMB: u64 = 128 * MIB;
/// A removal that is refused needs no deadline.
const AT_ONCE: Duration = Duration::from_secs(20);

fn by_index(action: MemoryAction, spans: &[(u64, u64)]) -> MemoryRequest {
    let spans = spans.iter().map(|&(first, count)| LmbSpan { first, count });
    MemoryRequest {
        indices: Some(spans.collect()),
        ..MemoryRequest::new(action)
    }
}

fn by_count(action: MemoryAction, lmbs: u64) -> MemoryRequest {
    MemoryRequest {
        lmbs: Some(lmbs),
        ..MemoryRequest::new(action)
    }
}

/// Asks for something that must be done.
fn done(vm: &GuestVm, request: MemoryRequest) -> Result<Operation> {
    let operation = vm.ask(request)?;
    ensure!(operation.state == OperationState::Done, "{operation:#?}");
    Ok(operation)
}

fn change(first: u64, count: u64, outcome: LmbOutcome) -> LmbChange {
    LmbChange {
        first,
        count,
        outcome,
        reason: None,
    }
}

/// Indices of the window's LMBs that stand so.
fn those(list: &LmbList, state: LmbState) -> Vec<u64> {
    let alike = list.lmbs.iter().filter(|run| run.state == state);
    alike
        .flat_map(|run| run.first..run.first + run.count)
        .collect()
}

fn plugged(vm: &GuestVm) -> Result<Vec<u64>> {
    Ok(those(&vm.client().lmbs()?, LmbState::Plugged))
}

fn run_of(list: &LmbList, lmb: u64) -> Result<&LmbRun> {
    let has = |run: &&LmbRun| (run.first..run.first + run.count).contains(&lmb);
    list.lmbs.iter().find(has).context("no such LMB")
}

/// First guest-physical address of an LMB.
fn address(list: &LmbList, lmb: u64) -> Result<u64> {
    let run = run_of(list, lmb)?;
    let range = run.ranges.first().context("no addresses")?;
    Ok(range.start_address + (lmb - run.first) * list.lmb_size_bytes)
}

/// Whether the guest has the memory of an LMB online, by its own devices.
fn guest_has(vm: &mut GuestVm, lmb: u64) -> Result<bool> {
    let block = address(&vm.client().lmbs()?, lmb)? / vm.memory()?.guest_block_size_bytes;
    let state = vm.sh(&format!(
        "cat /sys/devices/system/memory/memory{block}/state"
    ))?;
    Ok(state.status == 0 && state.stdout.trim() == "online")
}

fn first_lmb(vm: &GuestVm) -> Result<u64> {
    let memory = vm.memory()?;
    Ok(memory.windows.first().context("no window")?.first_lmb)
}

fn lmb(vm: &GuestVm, arguments: &[&str], status: i32) -> Result<Output> {
    let output = vm.lmb(arguments)?;
    assert_eq!(output.status, status, "{output:?}");
    Ok(output)
}

/// The stamps of an operation that the guest took part in.
fn check_timeline(operation: &Operation) -> Result<()> {
    let t = &operation.timeline;
    let stamps = [
        t.announced_ns,
        t.first_request_ns,
        t.last_answer_ns,
        t.replied_ns,
    ];
    let stamps: Option<Vec<u64>> = stamps.into_iter().collect();
    let stamps = stamps.with_context(|| format!("stamps are missing: {operation:#?}"))?;
    assert!(stamps.is_sorted(), "{operation:#?}");
    let usable = t.usable_ns.context("usable is missing")?;
    assert!(usable > stamps[0] && usable <= stamps[3], "{operation:#?}");
    assert!(!t.usable_late, "{operation:#?}");
    Ok(())
}

fn add_and_remove(vm: &mut GuestVm) -> Result<()> {
    let first = first_lmb(vm)?;
    let before = vm.mem_total_bytes()?;
    let add = vm.change_ok(MemoryAction::Add, GIB)?;
    check_timeline(&add)?;
    assert_eq!(vm.mem_total_bytes()?, before + GIB);
    assert_eq!(add.changes, [change(first, 8, LmbOutcome::Added)]);
    let counts = add.acpi.context("no counts")?;
    assert_eq!((counts.add_requests, counts.added), (8, 8), "{add:#?}");
    let memory = vm.memory()?;
    assert_eq!(memory.hotplug.name(), "acpi");
    assert_eq!(memory.windows[0].plugged_lmbs, 8);
    // The slots hold 1 GiB each.
    assert_eq!(memory.windows[0].slots, 1);
    let remove = vm.change_ok(MemoryAction::Remove, GIB)?;
    check_timeline(&remove)?;
    assert_eq!(vm.mem_total_bytes()?, before);
    assert_eq!(remove.changes, [change(first, 8, LmbOutcome::Removed)]);
    let counts = remove.acpi.context("no counts")?;
    assert_eq!((counts.eject_requests, counts.ejected), (8, 8));
    assert_eq!((counts.ejected_unasked, counts.refused), (0, 0));
    assert_eq!(vm.memory()?.windows[0].slots, 0);
    assert_eq!(vm.complaints()?, [""; 0]);
    Ok(())
}

fn lmbs_by_index(vm: &mut GuestVm) -> Result<()> {
    let before = vm.mem_total_bytes()?;
    // One, then a range and a single one by the tool.
    let one = done(vm, by_index(MemoryAction::Add, &[(0x4, 1)]))?;
    assert_eq!(one.changes, [change(0x4, 1, LmbOutcome::Added)]);
    assert!(guest_has(vm, 0x4)? && !guest_has(vm, 0x3)?);
    let output = lmb(
        vm,
        &["mem", "add", "--lmb", "0x6..0x8,10", "--wait-usable"],
        0,
    )?;
    for part in ["LMBs: 4 added", "0x6..0x8", "0xa"] {
        assert!(output.stdout.contains(part), "{part}: {output:?}");
    }
    assert_eq!(plugged(vm)?, [0x4, 0x6, 0x7, 0x8, 0xa]);
    assert_eq!(vm.mem_total_bytes()?, before + 5 * LMB);
    // Single ones go, others stay.
    lmb(vm, &["mem", "remove", "--lmb", "0x7", "--wait-usable"], 0)?;
    assert_eq!(plugged(vm)?, [0x4, 0x6, 0x8, 0xa]);
    assert!(guest_has(vm, 0x6)? && !guest_has(vm, 0x7)?);
    // By count the highest go first.
    let highest = done(vm, by_count(MemoryAction::Remove, 2))?;
    assert_eq!(
        highest.changes,
        [
            change(0x8, 1, LmbOutcome::Removed),
            change(0xa, 1, LmbOutcome::Removed)
        ]
    );
    // By size, and an add by count fills the lowest gaps.
    vm.change_ok(MemoryAction::Remove, LMB)?;
    assert_eq!(plugged(vm)?, [0x4]);
    done(vm, by_count(MemoryAction::Add, 3))?;
    assert_eq!(plugged(vm)?, [0x2, 0x3, 0x4, 0x5]);
    let spans = [(0x2, 2), (0x4, 1), (0x5, 1)];
    done(vm, by_index(MemoryAction::Remove, &spans))?;
    assert_eq!(vm.mem_total_bytes()?, before);
    assert_eq!(vm.complaints()?, [""; 0]);
    Ok(())
}

fn lmbs_are_listed(vm: &mut GuestVm) -> Result<()> {
    done(vm, by_index(MemoryAction::Add, &[(0x5, 2)]))?;
    let list = vm.client().lmbs()?;
    let states: Vec<(u64, u64, LmbState, Option<bool>)> = list
        .lmbs
        .iter()
        .filter(|run| run.state != LmbState::Boot)
        .map(|run| (run.first, run.count, run.state, run.guest_has))
        .collect();
    assert_eq!(
        states,
        [
            (0x2, 3, LmbState::Unplugged, Some(false)),
            (0x5, 2, LmbState::Plugged, Some(true)),
            (0x7, 11, LmbState::Unplugged, Some(false)),
        ]
    );
    // Boot memory is listed whole, addresses and all.
    let boot = list.lmbs.iter().filter(|run| run.state == LmbState::Boot);
    let bytes = boot.flat_map(|run| &run.ranges).map(|r| r.size_bytes);
    assert_eq!(bytes.sum::<u64>(), vm.memory()?.boot_bytes);
    // By curl the same.
    let reply = vm.curl().get("/memory/lmbs")?;
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(serde_json::from_str::<LmbList>(&reply.body)?, list);
    // The tool's tables.
    let runs = lmb(vm, &["mem", "show", "--lmbs"], 0)?.stdout;
    let line = runs.lines().find(|line| line.starts_with("0x5..0x6"));
    let line = line.with_context(|| runs.clone())?;
    let start = format!("{:#014x}-", address(&list, 0x5)?);
    for part in ["plugged", "yes", &start] {
        assert!(line.contains(part), "{part}: {line}");
    }
    let each = lmb(vm, &["mem", "show", "--lmbs", "--each"], 0)?.stdout;
    assert_eq!(
        each.lines().filter(|line| line.starts_with("0x")).count(),
        18
    );
    let shown = lmb(vm, &["mem", "show"], 0)?.stdout;
    assert!(shown.contains("hotplug by acpi"), "{shown}");
    done(vm, by_index(MemoryAction::Remove, &[(0x5, 2)]))?;
    Ok(())
}

/// A virtio-mem guest has LMBs too, and tells of none; it chooses which come
/// and go.
fn virtio_mem_tells_of_no_lmb() -> Result<()> {
    shared::with(Standing::Stock61, |vm| {
        vm.change_ok(MemoryAction::Add, LMB)?;
        let list = vm.client().lmbs()?;
        assert_eq!(those(&list, LmbState::Plugged).len(), 1);
        let shown = lmb(vm, &["mem", "show", "--lmbs"], 0)?.stdout;
        assert!(shown.contains("not told"), "{shown}");
        for arguments in [
            ["mem", "add", "--lmb", "0x5"].as_slice(),
            &["mem", "remove", "--lmb", "0x2"],
            &["mem", "remove", "-q", "1", "--all-or-nothing"],
        ] {
            let refused = lmb(vm, arguments, 1)?;
            assert!(refused.stderr.contains("--hotplug acpi"), "{refused:?}");
        }
        Ok(())
    })
}

fn wrong_lmbs_are_refused(vm: &mut GuestVm) -> Result<()> {
    let before = vm.memory()?;
    done(vm, by_index(MemoryAction::Add, &[(0x3, 1)]))?;
    for (body, status, code) in [
        (
            r#""action":"remove","indices":[{"first":0,"count":1}]"#,
            400,
            "boot_lmb",
        ),
        (
            r#""action":"add","indices":[{"first":18,"count":1}]"#,
            400,
            "no_such_lmb",
        ),
        (
            r#""action":"add","indices":[{"first":17,"count":2}]"#,
            400,
            "no_such_lmb",
        ),
        (
            r#""action":"add","indices":[{"first":3,"count":1}]"#,
            409,
            "lmb_state",
        ),
        (
            r#""action":"remove","indices":[{"first":4,"count":1}]"#,
            409,
            "lmb_state",
        ),
        (
            r#""action":"add","indices":[{"first":4,"count":2},{"first":5,"count":1}]"#,
            400,
            "bad_indices",
        ),
        (r#""action":"add","indices":[]"#, 400, "bad_indices"),
        (
            r#""action":"add","indices":[{"first":4,"count":0}]"#,
            400,
            "bad_indices",
        ),
        (
            r#""action":"add","indices":[{"first":4,"count":1}],"lmbs":1"#,
            400,
            "bad_amount",
        ),
        (
            r#""action":"set","indices":[{"first":4,"count":1}]"#,
            400,
            "bad_option",
        ),
        (
            r#""action":"add","lmbs":1,"all_or_nothing":true"#,
            400,
            "bad_option",
        ),
        (
            r#""action":"add","indices":[{"first":18446744073709551615,"count":2}]"#,
            400,
            "no_such_lmb",
        ),
        (
            r#""action":"add","indices":[{"first":-1,"count":1}]"#,
            400,
            "bad_body",
        ),
    ] {
        let reply = vm
            .curl()
            .post("/memory/operations", &format!("{{{body}}}"))?;
        assert_eq!(reply.status, status, "{body}: {reply:?}");
        assert_eq!(reply.refusal()?.code, code, "{body}: {reply:?}");
    }
    // The tool names the LMB, in words that a person can act on.
    for (line, part) in [
        (["mem", "remove", "--lmb", "0x1"], "LMB 0x1 is boot memory"),
        (["mem", "remove", "--lmb", "0x9"], "LMB 0x9 is not there"),
        (["mem", "add", "--lmb", "0x3"], "LMB 0x3 is there already"),
        (["mem", "add", "--lmb", "0x40"], "LMBs 0x0 to 0x11"),
    ] {
        let output = lmb(vm, &line, 1)?;
        assert!(output.stderr.contains(part), "{part}: {output:?}");
    }
    lmb(vm, &["mem", "remove", "--lmb", "0x"], 2)?;
    assert_eq!(plugged(vm)?, [0x3]);
    done(vm, by_index(MemoryAction::Remove, &[(0x3, 1)]))?;
    assert_eq!(vm.memory()?.total_bytes, before.total_bytes);
    Ok(())
}

/// Root in the guest gives an LMB back that nobody asked for.
fn guest_ejects_by_itself(vm: &mut GuestVm) -> Result<()> {
    done(vm, by_index(MemoryAction::Add, &[(0x2, 3)]))?;
    let before = vm.memory()?;
    // The window's second LMB.
    vm.sh_ok("echo 1 > /sys/bus/acpi/devices/PNP0C80:01/eject")?;
    wait::until("the eject to be booked", wait::SHORT, || {
        Ok((plugged(vm)? == [0x2, 0x4]).then_some(()))
    })?;
    let memory = vm.memory()?;
    assert_eq!(memory.total_bytes, before.total_bytes - LMB);
    assert_eq!(memory.target_bytes, memory.total_bytes);
    let counts = memory.windows[0].acpi.context("no counts")?;
    assert_eq!(counts.ejected_unasked, 1, "{counts:?}");
    assert!(!guest_has(vm, 0x3)?);
    // It can come again.
    done(vm, by_index(MemoryAction::Add, &[(0x3, 1)]))?;
    assert!(guest_has(vm, 0x3)?);
    assert_eq!(vm.complaints()?, [""; 0]);
    Ok(())
}

fn lmbs_are_there_after_a_reboot(vm: &mut GuestVm) -> Result<()> {
    let bare = vm.mem_total_bytes()?;
    done(vm, by_index(MemoryAction::Add, &[(0x4, 3)]))?;
    vm.skip_console();
    vm.type_in("reboot -f\n")?;
    vm.await_shell()?;
    // As many as before, and the guest found them present.
    assert_eq!(vm.mem_total_bytes()?, bare + 3 * LMB);
    let memory = vm.memory()?;
    assert_eq!(memory.windows[0].plugged_lmbs, 3);
    assert_eq!(memory.windows[0].acpi.context("no counts")?.add_requests, 0);
    assert_eq!(plugged(vm)?.len(), 3);
    // The agent counted them as hotplugged, so that it follows a change.
    vm.await_driver()?;
    let boot = vm.client().vm()?.boot;
    assert!(boot.usable_ns.is_some(), "{boot:#?}");
    let add = vm.change_ok(MemoryAction::Add, LMB)?;
    check_timeline(&add)?;
    let remove = vm.change_ok(MemoryAction::Remove, 4 * LMB)?;
    check_timeline(&remove)?;
    assert_eq!(vm.mem_total_bytes()?, bare);
    assert_eq!(vm.complaints()?, [""; 0]);
    Ok(())
}

/// An LMB for the kernel's own use, which then holds the description of LMBs
/// that are added after it.
fn with_unmovable_lmb(kernel: Kernel) -> Result<GuestVm> {
    const POLICY: &str = "/sys/devices/system/memory/auto_online_blocks";
    let mut vm = GuestSpec::new(kernel)
        .lmb_size("128M")
        .max_memory("2304M")
        .hotplug("acpi")
        // No driver is needed.
        .append("lmb.modules=off")
        .boot_with_driver()?;
    vm.sh_ok(&format!("echo online_kernel > {POLICY}"))?;
    done(&vm, by_index(MemoryAction::Add, &[(0x8, 1)]))?;
    vm.sh_ok(&format!("echo online_movable > {POLICY}"))?;
    done(&vm, by_index(MemoryAction::Add, &[(0x3, 4)]))?;
    Ok(vm)
}

fn unmovable_lmb_refuses(kernel: Kernel) -> Result<()> {
    let mut vm = with_unmovable_lmb(kernel)?;
    let total = vm.mem_total_bytes()?;
    // By its index: refused at once, with the reason.
    let start = Instant::now();
    let output = lmb(&vm, &["mem", "remove", "--lmb", "0x8"], 3)?;
    assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
    for part in ["incomplete", "1 refused", "0x8", "busy"] {
        assert!(output.stdout.contains(part), "{part}: {output:?}");
    }
    let list = vm.client().lmbs()?;
    let failure = run_of(&list, 0x8)?.last_failure.clone();
    let failure = failure.context("no failure is told")?;
    assert_eq!(failure.action, MemoryAction::Remove);
    assert_ne!(failure.ost_status, 0);
    let shown = lmb(&vm, &["mem", "show", "--lmbs"], 0)?.stdout;
    assert!(shown.contains("_OST"), "{shown}");
    // By count: it is the highest, and the next ones go in its place.
    let start = Instant::now();
    let operation = done(&vm, by_count(MemoryAction::Remove, 2))?;
    assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
    let outcomes: Vec<(u64, u64, LmbOutcome)> = operation
        .changes
        .iter()
        .map(|change| (change.first, change.count, change.outcome))
        .collect();
    assert_eq!(
        outcomes,
        [(0x5, 2, LmbOutcome::Removed), (0x8, 1, LmbOutcome::Refused)]
    );
    assert!(operation.changes[1].reason.is_some(), "{operation:#?}");
    assert_eq!(vm.mem_total_bytes()?, total - 2 * LMB);
    // What was removed stays so, unless all or nothing is asked for.
    let words = ["mem", "remove", "--lmb", "0x4,0x8", "--all-or-nothing"];
    let output = lmb(&vm, &words, 3)?;
    for part in ["1 restored", "1 refused"] {
        assert!(output.stdout.contains(part), "{part}: {output:?}");
    }
    assert_eq!(plugged(&vm)?, [0x3, 0x4, 0x8]);
    wait::until("the LMB to be back", wait::SHORT, || {
        Ok(guest_has(&mut vm, 0x4)?.then_some(()))
    })?;
    let output = lmb(&vm, &["mem", "remove", "--lmb", "0x4,0x8"], 3)?;
    assert!(output.stdout.contains("1 removed"), "{output:?}");
    assert_eq!(plugged(&vm)?, [0x3, 0x8]);
    let memory = vm.memory()?;
    assert_eq!(memory.target_bytes, memory.total_bytes);
    Ok(())
}

/// Pages that wait in pipes cannot be moved, and Linux tries without end, in
/// the one worker that serves all of ACPI's hotplug.
fn pinned_lmb_holds_the_queue(kernel: Kernel) -> Result<()> {
    // Boot memory has room for what can be moved out.
    let mut vm = GuestSpec::new(kernel)
        .memory("512M")
        .lmb_size("128M")
        .max_memory("2560M")
        .hotplug("acpi")
        .boot_with_driver()?;
    done(&vm, by_index(MemoryAction::Add, &[(0x5, 1)]))?;
    vm.sh_ok(&format!(
        "lmb-guest-load pinned {} > /tmp/load & \
         while ! grep -q ready /tmp/load; do sleep 0.1; done",
        100 * MIB
    ))?;
    let start = Instant::now();
    let output = lmb(&vm, &["mem", "remove", "--lmb", "0x5", "-t", "3s"], 3)?;
    let took = start.elapsed();
    assert!(took >= Duration::from_secs(3) && took < AT_ONCE, "{took:?}");
    for part in [
        "incomplete",
        "still holds LMB 0x5",
        "1 still with the guest",
    ] {
        assert!(output.stdout.contains(part), "{part}: {output:?}");
    }
    let list = vm.client().lmbs()?;
    assert_eq!(run_of(&list, 0x5)?.state, LmbState::Removing);
    // A later request waits behind it, and says so.
    let id = vm.client().start_operation(&MemoryRequest {
        timeout_ms: 60_000,
        ..by_index(MemoryAction::Add, &[(0x7, 1)])
    })?;
    let id = id.id;
    let waiting = wait::until("the request to say what it waits for", wait::SHORT, || {
        let operation = vm.client().operation(id)?;
        Ok(operation.message.clone().map(|_| operation))
    })?;
    assert_eq!(waiting.state, OperationState::Running, "{waiting:#?}");
    let message = waiting.message.unwrap_or_default();
    assert!(
        message.contains("waits behind") && message.contains("0x5"),
        "{message}"
    );
    assert!(!guest_has(&mut vm, 0x7)?);
    // The load ends: the late eject is booked, and what waited is done.
    vm.sh_ok("killall -9 lmb-guest-load")?;
    let ended = vm.await_end(id)?;
    assert_eq!(ended.state, OperationState::Done, "{ended:#?}");
    wait::until("the late eject to be booked", wait::SHORT, || {
        Ok((plugged(&vm)? == [0x7]).then_some(()))
    })?;
    let memory = vm.memory()?;
    assert_eq!(memory.total_bytes, memory.boot_bytes + LMB);
    assert_eq!(memory.target_bytes, memory.total_bytes);
    assert!(guest_has(&mut vm, 0x7)? && !guest_has(&mut vm, 0x5)?);
    // All is well again.
    done(&vm, by_index(MemoryAction::Remove, &[(0x7, 1)]))?;
    Ok(())
}

/// Memory requested from the start is there when the guest boots.
fn lmbs_at_boot() -> Result<()> {
    let mut vm = GuestSpec::new(Kernel::V6_1)
        .lmb_size("128M")
        .max_memory("2304M")
        .hotplug("acpi")
        .flag("requested-memory", "1280M")
        .boot_with_driver()?;
    let memory = vm.memory()?;
    assert_eq!(memory.windows[0].plugged_lmbs, 8);
    assert!(vm.mem_total_bytes()? > GIB);
    let boot = vm.client().vm()?.boot;
    let (plugged, usable) = (boot.plugged_ns, boot.usable_ns);
    assert!(plugged.is_some() && plugged < usable, "{boot:#?}");
    assert!(boot.init_ns < usable, "{boot:#?}");
    let remove = vm.change_ok(MemoryAction::Remove, GIB)?;
    check_timeline(&remove)?;
    assert!(vm.mem_total_bytes()? < 256 * MIB);
    assert_eq!(vm.complaints()?, [""; 0]);
    Ok(())
}

/// 4,096 devices; the first and the last of them come and go.
fn most_lmbs_there_may_be() -> Result<()> {
    let max = 256 * MIB + 4096 * LMB;
    let mut vm = GuestSpec::new(Kernel::V6_1)
        .lmb_size("128M")
        .max_memory(&max.to_string())
        .hotplug("acpi")
        .boot_with_driver()?;
    let devices = vm.sh_number("ls -d /sys/bus/acpi/devices/PNP0C80:* | wc -l")?;
    assert_eq!(devices, 4096);
    let before = vm.mem_total_bytes()?;
    done(&vm, by_index(MemoryAction::Add, &[(2, 1), (4097, 1)]))?;
    assert_eq!(vm.mem_total_bytes()?, before + 2 * LMB);
    assert!(guest_has(&mut vm, 4097)?);
    let by_count = done(&vm, by_count(MemoryAction::Remove, 1))?;
    assert_eq!(by_count.changes, [change(4097, 1, LmbOutcome::Removed)]);
    assert_eq!(vm.complaints()?, [""; 0]);
    Ok(())
}

fn impossible_layouts() -> Result<()> {
    let max = (256 * MIB + 4097 * LMB).to_string();
    for (lmb, max, parts) in [
        ("64M", "1G", ["64 MiB", "128 MiB"]),
        ("128M", max.as_str(), ["4097", "4096"]),
    ] {
        let mut vm = GuestSpec::new(Kernel::V6_1)
            .lmb_size(lmb)
            .max_memory(max)
            .hotplug("acpi")
            .start()?;
        let status = vm.await_exit()?;
        assert_eq!(status.code(), Some(1), "{}", vm.stderr());
        let said = vm.stderr();
        for part in parts {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
    Ok(())
}

/// 64 GiB come and go.
fn many_gib(lmb_size: &str, memory: &str) -> Result<()> {
    const AMOUNT: u64 = 64 * GIB;
    let spec = GuestSpec::new(Kernel::V6_1)
        .memory(memory)
        .lmb_size(lmb_size)
        .hotplug("acpi");
    let max = if memory == "4G" { "68G" } else { "66G" };
    let mut vm = spec.max_memory(max).boot_with_driver()?;
    let lmbs = AMOUNT / vm.memory()?.lmb_size_bytes;
    let before = vm.mem_total_bytes()?;
    let add = vm.change_ok(MemoryAction::Add, AMOUNT)?;
    check_timeline(&add)?;
    assert_eq!(vm.mem_total_bytes()?, before + AMOUNT);
    assert_eq!(add.acpi.context("no counts")?.added, lmbs);
    let remove = vm.change_ok(MemoryAction::Remove, AMOUNT)?;
    check_timeline(&remove)?;
    assert_eq!(remove.acpi.context("no counts")?.ejected, lmbs);
    assert_eq!(vm.mem_total_bytes()?, before);
    let memory = vm.memory()?;
    assert_eq!(
        (memory.windows[0].slots, memory.windows[0].plugged_lmbs),
        (0, 0)
    );
    assert_eq!(vm.complaints()?, [""; 0]);
    Ok(())
}

/// With memmap_on_memory a guest of half a GiB can grow by 64, which take 1 GiB
/// to describe. The module parameter says so, and what a block adds proves it.
fn lmbs_hold_their_description(kernel: Kernel, lmb_size: &str) -> Result<()> {
    const AMOUNT: u64 = 64 * GIB;
    let memory = if lmb_size == "4G" { "4G" } else { "512M" };
    let max = if lmb_size == "4G" { "68G" } else { "66048M" };
    let mut vm = GuestSpec::new(kernel)
        .memory(memory)
        .lmb_size(lmb_size)
        .max_memory(max)
        .hotplug("acpi")
        .append("memory_hotplug.memmap_on_memory=1")
        .boot_with_driver()?;
    let parameter = vm.sh_ok("cat /sys/module/memory_hotplug/parameters/memmap_on_memory")?;
    assert_eq!(parameter, "Y");
    let before = vm.mem_total_bytes()?;
    let add = vm.change_ok(MemoryAction::Add, AMOUNT)?;
    check_timeline(&add)?;
    assert_eq!(vm.mem_total_bytes()?, before + AMOUNT / 64 * 63);
    let remove = vm.change_ok(MemoryAction::Remove, AMOUNT)?;
    check_timeline(&remove)?;
    assert_eq!(vm.mem_total_bytes()?, before);
    assert_eq!(vm.complaints()?, [""; 0]);
    Ok(())
}
