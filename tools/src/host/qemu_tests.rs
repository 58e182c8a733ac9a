use std::path::{Path, PathBuf};

use super::{RunFiles, arguments, check, parse_version};
use crate::host::{Clock, Distance, HostError, HostRun, Threads};
use crate::packages::KernelPackage;

fn host() -> HostRun {
    let kernel = KernelPackage {
        package: None,
        package_version: None,
        version: "6.1.0".into(),
        vmlinuz: "/k/vmlinuz".into(),
        modules_dir: None,
    };
    HostRun::new(kernel, PathBuf::from("qemu"), vec!["true".into()])
}

fn text(run: &HostRun) -> String {
    text_with(run, false)
}

fn text_with(run: &HostRun, input: bool) -> String {
    let files = RunFiles {
        initramfs: Path::new("/w/initramfs"),
        console: Path::new("/w,x/console"),
        status: Path::new("/w/status"),
        monitor: Path::new("/w/monitor"),
        input,
    };
    let words: Vec<String> = arguments(run, &files)
        .into_iter()
        .map(|word| word.into_string().unwrap())
        .collect();
    words.join(" ")
}

fn refusal(change: impl Fn(&mut HostRun)) -> String {
    let mut run = host();
    change(&mut run);
    match check(&run) {
        Err(HostError::Refused(text)) => text,
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn the_defaults_are_taken() {
    assert!(check(&host()).is_ok());
    let text = text(&host());
    for part in [
        "-accel tcg,thread=single",
        "-cpu max,-erms,-fsrm,phys-bits=46",
        "-smp 1",
        "-m 3072M",
        "-kernel /k/vmlinuz",
        "-initrd /w/initramfs",
        "-no-reboot",
        "tsc=reliable clocksource=tsc highres=off nohz=off",
    ] {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
    for part in ["-icount", "-numa", "hugepages"] {
        assert!(!text.contains(part), "{part} is in {text}");
    }
}

#[test]
fn the_serial_ports_are_console_output_and_status_in_this_order() {
    let text = text(&host());
    let at = |part: &str| text.find(part).unwrap();
    assert!(at("-serial chardev:console") < at("-serial chardev:output"));
    assert!(at("-serial chardev:output") < at("-serial chardev:status"));
    assert!(text.contains("stdio,id=output"));
}

#[test]
fn an_input_takes_standard_input_alone_and_moves_no_port() {
    let (without, with) = (text(&host()), text_with(&host(), true));
    assert!(!without.contains("virtio") && !without.contains("id=input"));
    assert!(with.contains("-chardev socket,id=input,fd=0"), "{with}");
    assert!(with.contains("virtserialport,chardev=input"), "{with}");
    // Two backends on one descriptor would share its bytes out.
    assert!(!with.contains("stdio,id="), "{with}");
    let ports = |text: &str| text.matches("-serial chardev:").count();
    assert_eq!(ports(&with), ports(&without));
}

#[test]
fn commas_in_paths_are_doubled() {
    assert!(text(&host()).contains("path=/w,,x/console"));
}

#[test]
fn the_instruction_clock_brings_its_remedies() {
    let mut run = host();
    run.clock = Clock::Instructions;
    assert!(check(&run).is_ok());
    let text = text(&run);
    assert!(text.contains("-icount shift=0,sleep=off"));
    assert!(text.contains("thread=single"));
    assert!(text.contains("highres=off"));
    assert!(!text.contains("nohz"));
}

#[test]
fn several_cpus_run_in_threads_unless_told_otherwise() {
    let mut run = host();
    run.cpus = 2;
    assert!(text(&run).contains("thread=multi"));
    run.threads = Some(Threads::Single);
    assert!(text(&run).contains("thread=single"));
}

#[test]
fn nodes_get_memory_cpus_and_distances() {
    let mut run = host();
    run.cpus = 3;
    run.nodes_mib = vec![1024, 1536, 512];
    run.distances = vec![Distance {
        a: 2,
        b: 0,
        value: 31,
    }];
    assert!(check(&run).is_ok());
    let text = text(&run);
    for part in [
        "memory-backend-ram,id=memory1,size=1536M",
        "node,nodeid=0,memdev=memory0,cpus=0",
        "node,nodeid=2,memdev=memory2,cpus=2",
        "dist,src=0,dst=1,val=20",
        "dist,src=0,dst=2,val=31",
        "dist,src=1,dst=2,val=20",
    ] {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
}

#[test]
fn each_cpu_is_in_one_node() {
    let mut run = host();
    for (cpus, nodes) in [(1, 2), (2, 2), (5, 2), (3, 4), (8, 3)] {
        run.cpus = cpus;
        run.nodes_mib = vec![1024; nodes];
        let text = text(&run);
        let mut dealt: Vec<u32> = text
            .split("cpus=")
            .skip(1)
            .map(|rest| {
                let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
                digits.parse().unwrap()
            })
            .collect();
        dealt.sort_unstable();
        assert_eq!(dealt, (0..cpus).collect::<Vec<_>>(), "{cpus} in {nodes}");
    }
}

#[test]
fn huge_pages_are_reserved_at_boot() {
    let mut run = host();
    run.hugepages_2m = 64;
    run.hugepages_1g = 1;
    assert!(check(&run).is_ok());
    assert!(text(&run).contains("hugepagesz=1G hugepages=1 hugepagesz=2M hugepages=64"));
}

#[test]
fn what_cannot_work_is_refused_with_its_value() {
    for (text, part) in [
        (refusal(|run| run.command.clear()), "no command"),
        (refusal(|run| run.cpus = 0), "0 CPUs"),
        (refusal(|run| run.cpus = 256), "256 CPUs"),
        (refusal(|run| run.memory_mib = 511), "511 MiB"),
        (refusal(|run| run.phys_bits = 35), "35 physical"),
        (refusal(|run| run.phys_bits = 53), "53 physical"),
        (refusal(|run| run.hugepages_1g = 3), "do not fit"),
        (refusal(|run| run.hugepages_2m = u64::MAX), "do not fit"),
        (
            refusal(|run| run.hugepages_1g = u64::MAX / 1024),
            "do not fit",
        ),
        (refusal(|run| run.nodes_mib = vec![1024, 1024]), "sum up"),
        (
            refusal(|run| run.nodes_mib = vec![3072, 0]),
            "without memory",
        ),
        (
            refusal(|run| run.nodes_mib = vec![u64::MAX, 3073]),
            "sum up",
        ),
        (refusal(|run| run.nodes_mib = vec![24; 129]), "129 NUMA"),
    ] {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
}

#[test]
fn the_instruction_clock_is_refused_with_several_cpus_or_threads() {
    let text = refusal(|run| {
        run.clock = Clock::Instructions;
        run.cpus = 2;
    });
    assert!(text.contains("--cpus 1"), "{text}");
    let text = refusal(|run| {
        run.clock = Clock::Instructions;
        run.threads = Some(Threads::Multi);
    });
    assert!(text.contains("--threads single"), "{text}");
}

#[test]
fn distances_that_lead_nowhere_are_refused() {
    for distance in ["0-0=20", "0-2=20", "7-1=20", "0-1=10"] {
        let text = refusal(|run| {
            run.nodes_mib = vec![1536, 1536];
            run.distances = vec![distance.parse().unwrap()];
        });
        assert!(text.contains(distance), "{distance}: {text}");
    }
    for text in ["", "0-1", "0=20", "a-b=c", "0-1=256", "0-1=-1"] {
        assert!(text.parse::<Distance>().is_err(), "{text:?}");
    }
}

#[test]
fn qemus_version_is_read() {
    let text = "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7)\nCopyright (c)\n";
    assert_eq!(parse_version(text).as_deref(), Some("7.2.22"));
    assert_eq!(parse_version("bash 5.2"), None);
    assert_eq!(parse_version("QEMU emulator version "), None);
}
