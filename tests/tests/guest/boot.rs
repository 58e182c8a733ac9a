//! Kernels boot by every entry, cleanly, and end and restart as asked.

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
    Case::new("boot::guest_powers_off", 2, guest_powers_off),
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
    assert_eq!(vm.complaints()?, [""; 0]);
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
