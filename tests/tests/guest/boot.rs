//! Kernels boot by every entry, cleanly, and end and restart as asked.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lmb_tests::{Entry, GuestSpec, GuestVm, Kernel, MIB, wait};
use lmb_vmm::protocol::{EntryKind, MemoryAction, VmState};

use crate::cases::Case;
use crate::shared::{self, Standing};

pub(crate) const CASES: &[Case] = &[
    Case::on(Standing::Stock61, "boot::elf_6_1", 1, elf_6_1),
    Case::on(
        Standing::Stock61,
        "boot::clean_dmesg_6_1",
        1,
        clean_dmesg_6_1,
    ),
    Case::on(Standing::Stock612, "boot::elf_6_12", 1, elf_6_12),
    Case::on(
        Standing::Stock612,
        "boot::clean_dmesg_6_12",
        1,
        clean_dmesg_6_12,
    ),
    Case::new("boot::bzimage_6_1", 2, bzimage_6_1),
    Case::new("boot::bzimage_6_12", 4, bzimage_6_12),
    Case::new("boot::own_vmlinux_by_pvh", 2, own_vmlinux_by_pvh),
    Case::new("boot::four_vcpus", 5, four_vcpus),
    Case::new(
        "boot::a_triple_fault_ends_the_vm_with_its_reason",
        1,
        a_triple_fault_ends_the_vm_with_its_reason,
    ),
    Case::new("boot::guest_powers_off", 2, guest_powers_off),
    Case::new("boot::reboot_k", 10, || reboots("reboot=k")),
    Case::new("boot::reboot_t", 10, || reboots("reboot=t")),
    Case::new(
        "boot::guest_reboots_and_plugs_again",
        15,
        guest_reboots_and_plugs_again,
    ),
    Case::new(
        "boot::api_resets_and_powers_off",
        10,
        api_resets_and_powers_off,
    ),
    Case::new("boot::serial_to_a_file", 2, serial_to_a_file),
    Case::new(
        "boot::a_stuck_reader_stops_nothing",
        45,
        a_stuck_reader_stops_nothing,
    ),
    Case::new(
        "boot::requested_memory_is_plugged_while_booting",
        8,
        requested_memory_is_plugged_while_booting,
    ),
    Case::new("boot::without_serial", 2, without_serial),
];

/// The guest is the kernel that was asked for, entered as asked, and its boot
/// timeline is in order.
fn check_boot(vm: &mut GuestVm, kernel: Kernel, entry: EntryKind) -> Result<()> {
    let release = vm.sh_ok("uname -r")?;
    assert!(release.starts_with(kernel.release_prefix()), "{release}");
    let info = vm.client().vm()?;
    assert_eq!(info.state, VmState::Running);
    assert_eq!(info.pid, vm.pid());
    assert_eq!(info.kernel.entry, entry);
    assert_eq!(info.kernel.kaslr, entry == EntryKind::Bzimage);
    if let Some(version) = info.kernel.version {
        assert_eq!(version, release);
    }
    assert_eq!(info.kernel.cmdline, vm.sh_ok("cat /proc/cmdline")?);
    assert_eq!(info.boot.boots, 1);
    let stamps = [
        ("memory created", info.boot.memory_created_ns),
        ("kernel loaded", info.boot.kernel_loaded_ns),
        ("first entry", info.boot.first_entry_ns),
        ("init", info.boot.init_ns),
    ];
    let mut last = 0;
    for (name, stamp) in stamps {
        let stamp = stamp.with_context(|| format!("no stamp for {name}: {:?}", info.boot))?;
        assert!(stamp >= last, "{name} is out of order: {:?}", info.boot);
        last = stamp;
    }
    Ok(())
}

fn boots(kernel: Kernel, entry: Entry, kind: EntryKind) -> Result<()> {
    let mut vm = GuestSpec::new(kernel).entry(entry).boot()?;
    check_boot(&mut vm, kernel, kind)?;
    assert!(vm.client().vm()?.kernel.version.is_some());
    assert_eq!(vm.complaints()?, [""; 0]);
    Ok(())
}

fn elf_6_1() -> Result<()> {
    shared::with(Standing::Stock61, |vm| {
        check_boot(vm, Kernel::V6_1, EntryKind::Elf)
    })
}

fn elf_6_12() -> Result<()> {
    shared::with(Standing::Stock612, |vm| {
        check_boot(vm, Kernel::V6_12, EntryKind::Elf)
    })
}

fn clean_dmesg(which: Standing) -> Result<()> {
    shared::with(which, |vm| {
        vm.change_ok(MemoryAction::Add, 256 * MIB)?;
        vm.change_ok(MemoryAction::Remove, 256 * MIB)?;
        assert_eq!(vm.complaints()?, [""; 0]);
        Ok(())
    })
}

fn clean_dmesg_6_1() -> Result<()> {
    clean_dmesg(Standing::Stock61)
}

fn clean_dmesg_6_12() -> Result<()> {
    clean_dmesg(Standing::Stock612)
}

fn bzimage_6_1() -> Result<()> {
    boots(Kernel::V6_1, Entry::Bzimage, EntryKind::Bzimage)
}

fn bzimage_6_12() -> Result<()> {
    boots(Kernel::V6_12, Entry::Bzimage, EntryKind::Bzimage)
}

fn own_vmlinux_by_pvh() -> Result<()> {
    let elf = lmb_tests::vmlinux()?;
    let mut vm = GuestSpec::new(Kernel::V6_1).image(&elf).boot()?;
    check_boot(&mut vm, Kernel::V6_1, EntryKind::Elf)
}

fn four_vcpus() -> Result<()> {
    let mut vm = GuestSpec::new(Kernel::V6_1).flag("cpus", "4").boot()?;
    assert_eq!(vm.sh_number("nproc")?, 4);
    assert_eq!(vm.client().vm()?.cpus, 4);
    // One package of four cores.
    assert_eq!(topology(&mut vm, "physical_package_id")?, [0; 4]);
    assert_eq!(topology(&mut vm, "core_id")?, [0, 1, 2, 3]);
    assert_eq!(vm.complaints()?, [""; 0]);
    Ok(())
}

/// What the guest says of each of its processors.
fn topology(vm: &mut GuestVm, what: &str) -> Result<Vec<u32>> {
    let text = vm.sh_ok(&format!(
        "cat /sys/devices/system/cpu/cpu[0-9]*/topology/{what}"
    ))?;
    text.lines()
        .map(|line| line.parse().with_context(|| format!("{what}: {text:?}")))
        .collect()
}

/// An ELF kernel with a PVH entry (ELF note XEN_ELFNOTE_PHYS32_ENTRY) whose
/// only instruction is undefined. No interrupt table is there to take it to.
fn undefined_kernel() -> Vec<u8> {
    const LOAD_ADDRESS: u64 = 0x10_0000;
    const CODE: [u8; 2] = [0x0f, 0x0b]; // ud2
    const PHYS32_ENTRY: u32 = 18;
    let mut note = Vec::new();
    for word in [4, 8, PHYS32_ENTRY] {
        note.extend_from_slice(&word.to_le_bytes());
    }
    note.extend_from_slice(b"Xen\0");
    note.extend_from_slice(&LOAD_ADDRESS.to_le_bytes());
    let headers_end = 64 + 2 * 56;
    let code_at = headers_end + note.len() as u64;
    let mut elf = b"\x7fELF\x02\x01\x01".to_vec();
    elf.resize(16, 0);
    // Executable, x86-64, version 1.
    for (half, next) in [(2_u16, 0x3e_u16), (1, 0)] {
        elf.extend_from_slice(&half.to_le_bytes());
        elf.extend_from_slice(&next.to_le_bytes());
    }
    // Entry, program headers, no section headers.
    for double in [LOAD_ADDRESS, 64, 0] {
        elf.extend_from_slice(&double.to_le_bytes());
    }
    elf.extend_from_slice(&[0; 4]);
    for half in [64_u16, 56, 2, 64, 0, 0] {
        elf.extend_from_slice(&half.to_le_bytes());
    }
    let mut header = |kind: u32, at: u64, address: u64, bytes: u64| {
        // Readable and executable.
        elf.extend_from_slice(&kind.to_le_bytes());
        elf.extend_from_slice(&5_u32.to_le_bytes());
        for double in [at, address, address, bytes, bytes, 4] {
            elf.extend_from_slice(&double.to_le_bytes());
        }
    };
    header(1, code_at, LOAD_ADDRESS, CODE.len() as u64);
    header(4, headers_end, 0, note.len() as u64);
    [elf, note, CODE.to_vec()].concat()
}

fn a_triple_fault_ends_the_vm_with_its_reason() -> Result<()> {
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), undefined_kernel())?;
    let mut vm = GuestSpec::new(Kernel::V6_1).image(file.path()).start()?;
    let status = vm.await_exit()?;
    let said = vm.stderr();
    assert_eq!(status.code(), Some(1), "{status}: {said}");
    assert!(said.contains("triple-faulted on vCPU 0"), "{said}");
    assert!(!vm.socket().exists(), "the socket is left behind");
    Ok(())
}

fn guest_powers_off() -> Result<()> {
    let mut vm = GuestSpec::new(Kernel::V6_1).boot()?;
    vm.type_in("poweroff -f\n")?;
    let status = vm.await_exit()?;
    assert!(status.success(), "{status}");
    assert!(!vm.socket().exists(), "the socket is left behind");
    Ok(())
}

fn guest_reboots_and_plugs_again() -> Result<()> {
    let mut vm = GuestSpec::new(Kernel::V6_1)
        .lmb_size("128M")
        .max_memory("1280M")
        .boot_with_driver()?;
    let before = vm.mem_total_bytes()?;
    vm.change_ok(MemoryAction::Add, 256 * MIB)?;
    vm.type_in("reboot -f\n")?;
    vm.await_shell()?;
    let info = vm.client().vm()?;
    assert_eq!(info.state, VmState::Running);
    assert_eq!(info.boot.boots, 2);
    let memory = wait::until("memory to be plugged again", wait::CHANGE, || {
        let memory = vm.memory()?;
        Ok((memory.total_bytes == memory.target_bytes).then_some(memory))
    })?;
    assert_eq!(memory.target_bytes, memory.boot_bytes + 256 * MIB);
    wait::until("the guest to see it", wait::SHORT, || {
        let total = vm.mem_total_bytes()?;
        Ok((total == before + 256 * MIB).then_some(()))
    })?;
    // Operations go on working.
    vm.change_ok(MemoryAction::Set, memory.boot_bytes)?;
    assert_eq!(vm.mem_total_bytes()?, before);
    assert_eq!(vm.complaints()?, [""; 0]);
    Ok(())
}

/// The guest reboots the way that this word of its command line names.
fn reboots(word: &str) -> Result<()> {
    let mut vm = GuestSpec::new(Kernel::V6_1).append(word).boot()?;
    vm.type_in("reboot -f\n")?;
    vm.await_shell()?;
    let boot = vm.client().vm()?.boot;
    assert_eq!(boot.boots, 2);
    assert!(boot.init_ns > boot.first_entry_ns, "{boot:?}");
    assert_eq!(vm.complaints()?, [""; 0]);
    Ok(())
}

fn api_resets_and_powers_off() -> Result<()> {
    let mut vm = GuestSpec::new(Kernel::V6_1).boot()?;
    vm.client().reset()?;
    vm.await_shell()?;
    assert_eq!(vm.client().vm()?.boot.boots, 2);
    let reply = vm.curl().post("/vm/power-off", "")?;
    ensure!((200..300).contains(&reply.status), "{reply:?}");
    let status = vm.await_exit()?;
    assert!(status.success(), "{status}");
    Ok(())
}

fn await_init(vm: &GuestVm) -> Result<()> {
    wait::until("the guest's init", wait::BOOT, || {
        // The socket may not be there yet.
        let info = vm.client().vm().ok();
        Ok(info.and_then(|info| info.boot.init_ns))
    })?;
    Ok(())
}

fn serial_to_a_file() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("serial");
    let vm = GuestSpec::new(Kernel::V6_1)
        .flag("serial", &format!("file:{}", path.display()))
        .start()?;
    await_init(&vm)?;
    wait::until("the shell's greeting in the file", wait::SHORT, || {
        let text = std::fs::read_to_string(&path)?;
        Ok(text.contains("built-in shell").then_some(()))
    })?;
    assert_eq!(vm.serial(), "", "nothing goes to standard output");
    Ok(())
}

fn without_serial() -> Result<()> {
    let vm = GuestSpec::new(Kernel::V6_1).flag("serial", "off").start()?;
    await_init(&vm)?;
    assert_eq!(vm.serial(), "", "nothing goes to standard output");
    Ok(())
}

fn a_stuck_reader_stops_nothing() -> Result<()> {
    // Twice what a pipe holds, by the kernel's log, the quickest way there is:
    // each character costs exits.
    const LINES: u32 = 150;
    let mut vm = GuestSpec::new(Kernel::V6_1)
        .lmb_size("128M")
        .max_memory("1280M")
        .boot_with_driver()?;
    vm.stop_reading();
    vm.type_in(&format!(
        "echo on > /proc/sys/kernel/printk_devkmsg; line=$(printf '<1>%0900d' 0); i=0; \
         while [ $i -lt {LINES} ]; do echo $line > /dev/kmsg; i=$((i+1)); done; reboot -f\n"
    ))?;
    let mut slowest = Duration::ZERO;
    wait::until("the guest to write all and reboot", wait::CHANGE, || {
        let start = Instant::now();
        let boot = vm.client().vm()?.boot;
        slowest = slowest.max(start.elapsed());
        Ok((boot.boots == 2 && boot.init_ns.is_some()).then_some(()))
    })?;
    assert!(slowest < Duration::from_secs(2), "{slowest:?}");
    vm.await_driver()?;
    vm.change_ok(MemoryAction::Add, 256 * MIB)?;
    vm.terminate()?;
    let status = vm.await_exit()?;
    assert!(status.success(), "{status}");
    assert!(!vm.socket().exists(), "the socket is left behind");
    // No reset and no stuck reader lost what had room to wait.
    let zeros = vm.serial().matches(&"0".repeat(900)).count();
    assert!(zeros >= 64, "{zeros} lines of {LINES}");
    Ok(())
}

fn requested_memory_is_plugged_while_booting() -> Result<()> {
    let mut vm = GuestSpec::new(Kernel::V6_1)
        .lmb_size("128M")
        .max_memory("1280M")
        .flag("requested-memory", "512M")
        .boot_with_driver()?;
    let boot = wait::until("the requested memory to be usable", wait::CHANGE, || {
        let boot = vm.client().vm()?.boot;
        Ok(boot.usable_ns.is_some().then_some(boot))
    })?;
    assert!(boot.init_ns > boot.first_entry_ns, "{boot:?}");
    assert!(boot.plugged_ns > boot.init_ns, "{boot:?}");
    assert!(boot.usable_ns > boot.plugged_ns, "{boot:?}");
    assert!(boot.usable_cpu_ns >= boot.plugged_cpu_ns, "{boot:?}");
    let memory = vm.memory()?;
    assert_eq!(memory.boot_bytes, 256 * MIB);
    assert_eq!(memory.total_bytes, 512 * MIB);
    assert_eq!(memory.target_bytes, 512 * MIB);
    assert_eq!(memory.operation, None, "nobody asked for one");
    let with = vm.mem_total_bytes()?;
    vm.change_ok(MemoryAction::Set, 256 * MIB)?;
    assert_eq!(vm.mem_total_bytes()?, with - 256 * MIB);
    assert_eq!(vm.complaints()?, [""; 0]);
    Ok(())
}
