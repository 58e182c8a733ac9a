//! What people see, compared line by line.
#![allow(clippy::unwrap_used)]

use super::*;
use lmb_vmm::protocol::{EntryKind, KernelInfo, WindowInfo};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

pub(crate) fn sample_operation() -> Operation {
    Operation {
        id: 3,
        action: MemoryAction::Add,
        state: OperationState::Done,
        from_bytes: GIB,
        target_bytes: 2 * GIB,
        plugged_bytes: 2 * GIB,
        lmb_size_bytes: 256 * MIB,
        timeout_ms: 60_000,
        timeline: OperationTimeline {
            accepted_ns: 5_000_000_000,
            announced_ns: Some(12_345),
            first_request_ns: Some(150_000),
            last_answer_ns: Some(38_112_999),
            usable_ns: None,
            usable_late: false,
            usable_cpu_ns: None,
            last_answer_cpu_ns: None,
            replied_ns: Some(38_200_000),
        },
        requests: RequestCounts {
            plug: 4,
            blocks: 4,
            ack: 4,
            ..RequestCounts::default()
        },
        acpi: None,
        changes: Vec::new(),
        message: None,
    }
}

fn sample_memory() -> MemoryInfo {
    MemoryInfo {
        hotplug: lmb_vmm::protocol::Hotplug::VirtioMem,
        lmb_size_bytes: 256 * MIB,
        guest_block_size_bytes: 256 * MIB,
        slot_size_bytes: GIB,
        boot_bytes: GIB,
        boot_lmbs: 4,
        max_bytes: 9 * GIB,
        total_bytes: 1536 * MIB,
        target_bytes: 2 * GIB,
        windows: vec![WindowInfo {
            id: 0,
            node: 0,
            start_address: 4 * GIB,
            size_bytes: 8 * GIB,
            usable_bytes: 8 * GIB,
            requested_bytes: GIB,
            plugged_bytes: 512 * MIB,
            total_lmbs: 32,
            requested_lmbs: 4,
            plugged_lmbs: 2,
            first_lmb: 4,
            driver_active: true,
            slots: 1,
            requests: RequestCounts::default(),
            acpi: None,
            error: None,
        }],
        operation: Some(Operation {
            state: OperationState::Incomplete,
            plugged_bytes: 1536 * MIB,
            message: Some("the guest\x1b[2J stopped".to_owned()),
            ..sample_operation()
        }),
    }
}

#[test]
fn memory_as_a_table() {
    assert_eq!(
        memory(&sample_memory()),
        "\
LMB size 256 MiB, guest memory block 256 MiB, KVM slot 1 GiB, hotplug by virtio-mem

memory              plugged  LMBs  requested  LMBs   most  LMBs  driver  slots
boot                  1 GiB     4      1 GiB     4  1 GiB     4  -           -
window 0 (node 0)   512 MiB     2      1 GiB     4  8 GiB    32  active      1
total              1536 MiB     6      2 GiB     8  9 GiB    36

operation 3 (add): incomplete, 1 GiB (4 LMBs) to 2 GiB (8 LMBs), 1536 MiB (6 LMBs) plugged
the guest\u{fffd}[2J stopped
"
    );
}

#[test]
fn an_operation_with_its_phases() {
    assert_eq!(
        operation(&sample_operation()),
        "\
operation 3 (add): done, 1 GiB (4 LMBs) to 2 GiB (8 LMBs)

phase                   since accepted [ms]  step [ms]
announced to the guest                0.012      0.012
first request                         0.150      0.137
device done                          38.112     37.962
replied                              38.200      0.087
guest usable                              -          -

guest requests 4, LMBs 4; answers: ACK 4, NACK 0, BUSY 0, ERROR 0
"
    );
    let mut late = sample_operation();
    late.timeline.usable_ns = Some(38_150_000);
    late.timeline.usable_late = true;
    let text = operation(&late);
    let order: Vec<_> = ["device done", "guest usable", "replied"]
        .iter()
        .map(|phase| text.find(phase).unwrap())
        .collect();
    assert!(order.is_sorted(), "{text}");
    assert!(text.ends_with("may be late.\n"), "{text}");
}

#[test]
fn operations_one_line_each() {
    assert_eq!(operations(&[]), "no operations yet\n");
    let text = operations(&[sample_operation()]);
    let row = text.lines().nth(1).unwrap();
    let words: Vec<_> = row.split_whitespace().collect();
    assert_eq!(
        words,
        [
            "3", "add", "done", "1", "GiB", "4", "2", "GiB", "8", "2", "GiB", "8", "38.112", "-"
        ]
    );
}

#[test]
fn a_vm_with_its_boot() {
    let info = VmInfo {
        version: "0.1.0".into(),
        pid: 42,
        state: VmState::Running,
        cpus: 2,
        kernel: KernelInfo {
            path: "/boot/vmlinuz".into(),
            version: Some("6.1.0-42-cloud-amd64".into()),
            entry: EntryKind::Elf,
            kaslr: false,
            cmdline: "console=ttyS0 quiet".into(),
        },
        boot: BootTimeline {
            process_start_ns: 1,
            kernel_read_ns: Some(1_000_000),
            memory_created_ns: Some(2_000_000),
            kernel_loaded_ns: Some(122_000_000),
            first_entry_ns: Some(125_500_000),
            init_ns: Some(1_359_800_000),
            boots: 1,
            ..BootTimeline::default()
        },
        vcpu_exits: 0,
        sandbox: SandboxInfo {
            enabled: true,
            no_new_privs: true,
            capabilities_dropped: true,
            seccomp: true,
            landlock_abi: Some(2),
        },
    };
    let text = vm(&info);
    for part in [
        "state         running\n",
        "entry         ELF (PVH), KASLR off\n",
        "sandbox       seccomp, Landlock ABI 2, no new privileges, no capabilities\n",
        "kernel read                      1.000      1.000\n",
        "memory created                   2.000      1.000\n",
        "guest's init                  1359.800   1234.300\n",
        "kernel entry mark                    -          -\n",
    ] {
        assert!(text.contains(part), "{part:?} in\n{text}");
    }
    let old = VmInfo {
        sandbox: SandboxInfo {
            landlock_abi: None,
            ..info.sandbox
        },
        ..info.clone()
    };
    assert!(vm(&old).contains("seccomp, no Landlock in this kernel, no new"));
    let off = VmInfo {
        sandbox: SandboxInfo::default(),
        ..info
    };
    assert!(vm(&off).contains("sandbox       off\n"));
}

#[test]
fn senseless_replies_are_printed_all_the_same() {
    let mut info = sample_memory();
    info.lmb_size_bytes = 0;
    info.max_bytes = u64::MAX;
    assert!(memory(&info).contains("18446744073709551615 B"));
    let mut op = sample_operation();
    op.requests.plug = u64::MAX;
    op.timeline.announced_ns = Some(u64::MAX);
    assert!(operation(&op).contains("18446744073709.551"));
}
