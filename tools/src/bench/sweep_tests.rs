//! Tests of what a sweep comes to.

use super::*;

const GIB: u64 = 1 << 30;

fn axes() -> Axes {
    Axes {
        kernels: vec![Kernel {
            version: "6.1".into(),
        }],
        vmms: vec![vmm(VmmChoice::LmbVmm)],
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

#[test]
fn all_combinations_come_once() {
    let mut axes = axes();
    axes.cpus = vec![1, 2, 1];
    axes.guest_blocks = vec![0, 2 * GIB];
    axes.vmms.push(vmm(VmmChoice::QemuPc));
    let cases = cases(&axes, &boot(&[Given::Boot], 8 * GIB)).unwrap();
    let of = |name: &str| cases.iter().filter(|c| c.config.vmm == name).count();
    // QEMU has no choice of the guest block.
    assert_eq!((of("lmb-vmm"), of("qemu-pc")), (8, 4));
}

#[test]
fn memory_is_whole_lmbs_and_equal_for_every_vmm() {
    let mut axes = axes();
    axes.vmms.push(vmm(VmmChoice::QemuPc));
    for case in cases(&axes, &boot(&[Given::Boot], 9 * GIB + 1)).unwrap() {
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
    let cases = cases(&axes(), &boot(&[Given::Plugged], 64 * GIB)).unwrap();
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
    let all = cases(&axes, &dlpar(64 * GIB, &[Load::None])).unwrap();
    // 640 MiB and 1 GiB of memmap.
    assert_eq!(all[0].config.memory_bytes, 1664 * MIB);
    let all = cases(&axes, &dlpar(4 * GIB, &[Load::None, Load::Pinned])).unwrap();
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
fn jobs_are_warm_up_first_and_then_rounds_in_changing_order() {
    let all = cases(&axes(), &boot(&[Given::Boot], 8 * GIB)).unwrap();
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
