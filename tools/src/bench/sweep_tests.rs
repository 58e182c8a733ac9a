//! Tests of what a sweep comes to.

use super::*;

const GIB: u64 = 1 << 30;

fn axes() -> Axes {
    Axes {
        kernels: vec![Kernel {
            version: "6.1".into(),
        }],
        vmms: vec![vmm(VmmChoice::LmbVmm)],
        hotplugs: vec![Hotplug::VirtioMem],
        lmb_sizes: vec![256 * MIB, 4 * GIB],
        guest_blocks: vec![0],
        slot_sizes: vec![0],
        cpus: vec![1],
        kernel_entries: vec!["elf".into()],
        hugepages: vec!["thp".into()],
        cmdline: "quiet".into(),
    }
}

fn vmm(choice: VmmChoice) -> Vmm {
    Vmm {
        choice,
        version: "1".into(),
    }
}

fn boot(given: &[Given], memory: u64) -> Measure {
    Measure::Boot {
        memory: vec![memory],
        given: given.to_vec(),
        boot_memory: None,
        empty_lmbs: vec![0],
    }
}

fn dlpar(amount: u64, loads: &[Load]) -> Measure {
    Measure::Dlpar {
        amounts: vec![amount],
        memory: Vec::new(),
        loads: loads.to_vec(),
        load_size: None,
        timeout_ms: 1000,
        steps: 4,
    }
}

/// The configurations of a sweep that leaves nothing out.
fn run(axes: &Axes, measure: &Measure) -> Vec<Case> {
    let all = cases(axes, measure).unwrap();
    assert_eq!(all.left_out, [""; 0]);
    all.cases
}

#[test]
fn all_combinations_come_once() {
    let mut axes = axes();
    axes.cpus = vec![1, 2, 1];
    axes.guest_blocks = vec![0, 2 * GIB];
    axes.vmms.push(vmm(VmmChoice::QemuPc));
    let cases = run(&axes, &boot(&[Given::Boot], 8 * GIB));
    let of = |name: &str| cases.iter().filter(|c| c.config.vmm == name).count();
    // QEMU has no choice of the guest block.
    assert_eq!((of("lmb-vmm"), of("qemu-pc")), (8, 4));
}

#[test]
fn memory_is_whole_lmbs_and_equal_for_every_vmm() {
    let mut axes = axes();
    axes.vmms.push(vmm(VmmChoice::QemuPc));
    for case in run(&axes, &boot(&[Given::Boot], 9 * GIB + 1)) {
        let config = case.config;
        assert!(config.memory_bytes.is_multiple_of(config.lmb_size_bytes));
        assert_eq!(config.memory_bytes, config.max_memory_bytes);
        let wanted = if config.lmb_size_bytes == 4 * GIB {
            12 * GIB
        } else {
            9 * GIB + 256 * MIB
        };
        assert_eq!(config.memory_bytes, wanted);
    }
}

#[test]
fn plugged_guests_start_with_the_same_memory_for_all_lmb_sizes() {
    let cases = run(&axes(), &boot(&[Given::Plugged], 64 * GIB));
    for case in &cases {
        let config = &case.config;
        assert_eq!(config.memory_bytes, 4 * GIB);
        assert_eq!(config.plugged_at_boot_bytes, 60 * GIB);
        assert_eq!(config.max_memory_bytes, 64 * GIB);
    }
    let error = sweep_error(&axes(), &boot(&[Given::Plugged], 4 * GIB));
    assert!(matches!(error, SweepError::NothingToPlug { .. }));
}

fn sweep_error(axes: &Axes, measure: &Measure) -> SweepError {
    cases(axes, measure).unwrap_err()
}

#[test]
fn boot_memory_has_room_for_the_memmap_and_the_load() {
    let mut axes = axes();
    axes.lmb_sizes = vec![128 * MIB];
    let all = run(&axes, &dlpar(64 * GIB, &[Load::None]));
    // 640 MiB and 1 GiB of memmap.
    assert_eq!(all[0].config.memory_bytes, 1664 * MIB);
    let all = run(&axes, &dlpar(4 * GIB, &[Load::None, Load::Pinned]));
    assert_eq!(all.len(), 2);
    assert_eq!(all[0].config.memory_bytes, all[1].config.memory_bytes);
    assert!(all[0].config.memory_bytes >= 640 * MIB + GIB);
    let loads: Vec<u64> = all
        .iter()
        .map(|case| match case.task {
            Task::Dlpar { load_bytes, .. } => load_bytes,
            Task::Boot => panic!("no boot was asked for"),
        })
        .collect();
    assert_eq!(loads, [0, GIB]);
}

#[test]
fn what_cannot_be_is_refused_with_its_value() {
    let mut odd = axes();
    odd.lmb_sizes = vec![3 * MIB];
    let measure = boot(&[Given::Boot], GIB);
    assert_eq!(sweep_error(&odd, &measure), SweepError::LmbSize(3 * MIB));
    odd = axes();
    odd.guest_blocks = vec![64 * MIB];
    assert_eq!(
        sweep_error(&odd, &measure),
        SweepError::GuestBlock(64 * MIB)
    );
    assert_eq!(
        sweep_error(&axes(), &dlpar(6 * GIB, &[Load::None])),
        SweepError::Amount {
            amount: 6 * GIB,
            lmb: 4 * GIB
        }
    );
    assert_eq!(
        sweep_error(&axes(), &boot(&[Given::Boot], u64::MAX)),
        SweepError::TooLarge
    );
    let mut microvm = axes();
    microvm.vmms = vec![vmm(VmmChoice::QemuMicrovm)];
    assert!(cases(&microvm, &measure).is_ok());
    assert!(matches!(
        sweep_error(&microvm, &dlpar(4 * GIB, &[Load::None])),
        SweepError::Empty(_)
    ));
}

#[test]
fn what_acpi_cannot_is_left_out_with_a_line() {
    let mut axes = axes();
    axes.hotplugs = vec![Hotplug::Acpi, Hotplug::VirtioMem];
    axes.lmb_sizes = vec![64 * MIB, 128 * MIB, 4 * GIB];
    axes.vmms.push(vmm(VmmChoice::QemuPc));
    let all = cases(&axes, &dlpar(1024 * GIB, &[Load::None])).unwrap();
    let kinds: Vec<(&str, &str, u64)> = all
        .cases
        .iter()
        .map(|case| &case.config)
        .map(|c| (c.vmm.as_str(), c.hotplug.as_str(), c.lmb_size_bytes / MIB))
        .collect();
    assert_eq!(
        kinds,
        [
            ("lmb-vmm", "acpi", 4096),
            ("lmb-vmm", "virtio-mem", 64),
            ("lmb-vmm", "virtio-mem", 128),
            ("lmb-vmm", "virtio-mem", 4096),
            ("qemu-pc", "virtio-mem", 64),
            ("qemu-pc", "virtio-mem", 128),
            ("qemu-pc", "virtio-mem", 4096),
        ]
    );
    let told = all.left_out.join("\n");
    assert_eq!(all.left_out.len(), 3, "{told}");
    for part in [
        "acpi with an LMB of 64 MiB",
        "acpi with an LMB of 128 MiB",
        "8192",
        "qemu-pc is measured with virtio-mem alone",
    ] {
        assert!(told.contains(part), "{part:?} in\n{told}");
    }
    axes.hotplugs = vec![Hotplug::Acpi];
    axes.lmb_sizes = vec![64 * MIB];
    let error = sweep_error(&axes, &dlpar(1024 * GIB, &[Load::None]));
    assert!(error.to_string().contains("qemu-pc"), "{error}");
}

#[test]
fn empty_lmbs_are_so_many_for_each_size() {
    let mut axes = axes();
    axes.hotplugs = vec![Hotplug::Acpi];
    let measure = Measure::Boot {
        memory: vec![8 * GIB],
        given: vec![Given::Boot, Given::Plugged],
        boot_memory: Some(4 * GIB),
        empty_lmbs: vec![0, 256, 4096, 4097],
    };
    let all = cases(&axes, &measure).unwrap();
    let empty: Vec<(u64, u64, u64)> = all
        .cases
        .iter()
        .map(|case| &case.config)
        .map(|c| {
            let plugged = c.plugged_at_boot_bytes / GIB;
            (plugged, c.lmb_size_bytes / MIB, c.empty_lmbs())
        })
        .collect();
    // All of RAM, then 4 GiB plugged: with LMBs of 4 GiB 4,097 are too many.
    let from_ram = [0, 256, 4096].map(|n| [(0, 256, n), (0, 4096, n)]).concat();
    assert_eq!(empty[..6], from_ram);
    assert_eq!(
        empty[6..],
        [(4, 256, 0), (4, 4096, 0), (4, 256, 256), (4, 4096, 256)]
    );
    assert!(all.left_out.iter().all(|line| line.contains("4096")));
    assert_eq!(
        sweep_error(
            &axes,
            &Measure::Boot {
                memory: vec![GIB],
                given: vec![Given::Boot],
                boot_memory: None,
                empty_lmbs: vec![u64::MAX],
            }
        ),
        SweepError::TooLarge
    );
}

#[test]
fn jobs_are_warm_up_first_and_then_rounds_in_changing_order() {
    let all = run(&axes(), &boot(&[Given::Boot], 8 * GIB));
    let jobs = jobs(&all, 1, 2);
    let short: Vec<(bool, u32, u32, u64)> = jobs
        .iter()
        .map(|job| {
            (
                job.warm_up,
                job.round,
                job.position,
                job.config.lmb_size_bytes / MIB,
            )
        })
        .collect();
    assert_eq!(
        short,
        [
            (true, 0, 0, 256),
            (true, 0, 1, 4096),
            (false, 0, 0, 256),
            (false, 0, 1, 4096),
            (false, 1, 0, 4096),
            (false, 1, 1, 256),
        ]
    );
}

#[test]
fn the_guests_block_follows_the_lmb_within_linuxs_range() {
    let mut config = crate::bench::testing::config();
    for (lmb, block) in [(2, 128), (256, 256), (4096, 2048)] {
        config.lmb_size_bytes = lmb * MIB;
        assert_eq!(guest_block_bytes(&config), block * MIB);
    }
    config.guest_block_option_bytes = GIB;
    assert_eq!(guest_block_bytes(&config), GIB);
}

#[test]
fn cloud_hypervisor_has_one_row_for_all_lmb_sizes() {
    let mut axes = axes();
    axes.vmms = vec![vmm(VmmChoice::CloudHypervisor)];
    let cases = cases(&axes, &dlpar(8 * GIB, &[Load::None])).unwrap().cases;
    let [case] = &cases[..] else {
        panic!("{cases:?}");
    };
    assert_eq!(case.config.lmb_size_bytes, 2 * MIB);
    assert_eq!(
        case.config.max_memory_bytes - case.config.memory_bytes,
        8 * GIB
    );
    assert_eq!(case.config.cmdline, "quiet lmb.marks=console");
}

#[test]
fn firecracker_has_the_lmb_as_its_block_and_slots_that_hold_it() {
    let mut axes = axes();
    axes.vmms = vec![vmm(VmmChoice::Firecracker)];
    axes.lmb_sizes = vec![2 * MIB, GIB];
    let cases = cases(&axes, &dlpar(8 * GIB, &[Load::None])).unwrap().cases;
    let sizes = |case: &Case| (case.config.lmb_size_bytes, case.config.slot_size_bytes);
    assert_eq!(
        cases.iter().map(sizes).collect::<Vec<_>>(),
        [(2 * MIB, 128 * MIB), (GIB, GIB)]
    );
    assert_eq!(cases[0].config.hugepages, "default");
}

#[test]
fn options_that_a_vmm_does_not_have_are_refused_and_not_passed_over() {
    let refused = |choice, change: fn(&mut Axes)| {
        let mut axes = axes();
        axes.vmms.push(vmm(choice));
        change(&mut axes);
        match cases(&axes, &boot(&[Given::Boot], 8 * GIB)) {
            Err(SweepError::Limit(error)) => error.to_string(),
            other => panic!("{other:?}"),
        }
    };
    let block = refused(VmmChoice::Firecracker, |axes| {
        axes.guest_blocks = vec![0, GIB];
    });
    assert!(
        block.starts_with("firecracker has no --guest-block-size: "),
        "{block}"
    );
    for choice in [VmmChoice::Firecracker, VmmChoice::CloudHypervisor] {
        refused(choice, |axes| axes.hugepages = vec!["2M".into()]);
        refused(choice, |axes| axes.kernel_entries.push("bzimage".into()));
    }
    refused(VmmChoice::CloudHypervisor, |axes| {
        axes.slot_sizes = vec![GIB];
    });
    let cpus = refused(VmmChoice::Firecracker, |axes| axes.cpus = vec![1, 64]);
    assert!(cpus.contains("32 vCPUs, not 64"), "{cpus}");
}
