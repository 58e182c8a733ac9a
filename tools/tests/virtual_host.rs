//! The virtual KVM host, booted for real. It needs QEMU (which root installs)
//! and Debian's kernel package (fetched once into the cache).

#![allow(clippy::unwrap_used, reason = "a failing step fails the test")]

use std::ffi::OsString;
use std::fs::Permissions;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use lmb_tools::host::{Clock, HostError, HostRun, attach};
use lmb_tools::packages::{Cache, DEFAULT_KERNEL_PACKAGE, KernelPackage, qemu};
use rustix::process::{Pid, Signal, kill_process};

fn host(script: &str) -> HostRun {
    let cache = Cache::open().unwrap();
    let note = |text: &str| eprintln!("{text}");
    let kernel = KernelPackage::fetch(&cache, DEFAULT_KERNEL_PACKAGE, false, &note).unwrap();
    let command = ["sh", "-c", script].map(OsString::from).to_vec();
    let mut host = HostRun::new(kernel, qemu(&note).unwrap(), command);
    host.memory_mib = 1024;
    host.limit = Duration::from_secs(120);
    host
}

/// The exit code and the output's lines.
fn run(host: &HostRun) -> (u8, Vec<String>) {
    let state = tempfile::tempdir().unwrap();
    let cache = Cache::at(state.path()).unwrap();
    let mut lines = Vec::new();
    let code = host
        .run_lines(&cache, &mut |line| lines.push(line.to_owned()))
        .unwrap();
    (code, lines)
}

#[test]
fn a_command_finds_kvm_its_files_and_returns_its_code() {
    let mut host = host(
        "[ -c /dev/kvm ] && grep -qw svm /proc/cpuinfo && echo kvm\n\
         cat /etc/marker; echo 'to stderr' >&2; echo \"$LMB_HOST_KIND\"; printf 'no end'; exit 7",
    );
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "marker\n").unwrap();
    let argument = format!("{}:/etc/marker", file.path().display());
    host.files = vec![argument.parse().unwrap()];
    let (code, lines) = run(&host);
    assert_eq!(code, 7, "{lines:?}");
    assert_eq!(lines[..3], ["kvm", "marker", "to stderr"]);
    assert!(lines[3].starts_with("virtual KVM host (QEMU "), "{lines:?}");
    assert!(lines[3].contains(&host.kernel.version), "{lines:?}");
    assert_eq!(lines[4..], ["no end"]);
}

#[test]
fn output_arrives_whole_and_unchanged() {
    // Longer than every buffer on its way, with what a terminal would change.
    let host = host("seq 1 5000; printf 'a\\tb\\r\\nc\\004d\\n'");
    let (code, lines) = run(&host);
    assert_eq!(code, 0);
    assert_eq!(lines.len(), 5002);
    for (number, line) in (1..=5000).zip(&lines) {
        assert_eq!(*line, number.to_string());
    }
    assert_eq!(lines[5000..], ["a\tb\r", "c\u{4}d"]);
}

#[test]
fn what_the_command_leaves_running_does_not_hold_the_host() {
    let host = host(
        "[ -t 1 ] || [ -t 2 ] || echo 'no terminal'\n\
         sleep 1000 & (trap '' TERM HUP; while :; do sleep 1000; done) &\n\
         echo left; exit 3",
    );
    let (code, lines) = run(&host);
    assert_eq!(code, 3, "{lines:?}");
    assert_eq!(lines, ["no terminal", "left"]);
}

#[test]
fn a_command_reads_its_input_unchanged_and_to_its_end() {
    // More than every buffer on its way holds, for a command that starts to
    // read late, with each byte that a terminal would take for itself.
    let input: Vec<u8> = (0..=255).cycle().take(3 << 20).collect();
    let mut host =
        host("[ -t 0 ] || echo 'no terminal'; seq 1 300000 >/dev/null; md5sum; cat; echo over");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &input).unwrap();
    let here = Command::new("md5sum")
        .stdin(std::fs::File::open(file.path()).unwrap())
        .output()
        .unwrap();
    let state = tempfile::tempdir().unwrap();
    let cache = Cache::at(state.path()).unwrap();
    host.limit = Duration::from_secs(180);
    let (attached, end) = attach().unwrap();
    let mut output = Vec::new();
    let code = thread::scope(|scope| {
        let copying = scope.spawn(|| attached.copy_all(input.as_slice()));
        let code = host.run_attached(&cache, end, &mut |bytes| output.write_all(bytes));
        copying.join().unwrap().unwrap();
        code
    });
    let text = String::from_utf8_lossy(&output[..output.len().min(200)]);
    assert_eq!(code.unwrap(), 0, "{text}");
    let sum = String::from_utf8(here.stdout).unwrap();
    assert_eq!(text, format!("no terminal\n{sum}over\n"));
}

#[test]
fn a_command_and_its_caller_can_talk_and_a_stop_ends_them() {
    let host = host("while read -r line; do echo \"got $line\"; done; sleep 1000");
    let state = tempfile::tempdir().unwrap();
    let cache = Cache::at(state.path()).unwrap();
    let (attached, end) = attach().unwrap();
    let (mut ours, mut theirs) = UnixStream::pair().unwrap();
    let error = thread::scope(|scope| {
        let running = scope.spawn(|| {
            let mut output = |bytes: &[u8]| theirs.write_all(bytes);
            host.run_attached(&cache, end, &mut output).unwrap_err()
        });
        let mut input = attached.input();
        for word in ["one", "\x03two\x1a"] {
            input.write_all(format!("{word}\n").as_bytes()).unwrap();
            let mut answer = vec![0; word.len() + 5];
            ours.read_exact(&mut answer).unwrap();
            assert_eq!(answer, format!("got {word}\n").into_bytes());
        }
        assert!(attached.end_input().unwrap());
        attached.stop();
        running.join().unwrap()
    });
    assert!(matches!(error, HostError::Stopped), "{error}");
}

#[test]
fn a_vm_in_it_has_a_console_its_definition_and_an_end_in_order() {
    // A program in the VMM's place, so that what reaches it can be seen.
    let dir = tempfile::tempdir().unwrap();
    let vmm = dir.path().join("vmm");
    let script = "#!/bin/sh\n\
         trap 'echo asked to end; exit 0' TERM\n\
         echo \"$@\"; cat /guest/kernel /guest/initrd /guest/vm.json; echo\n\
         read -r line; echo \"got $line\"; read -r line; sleep 1000 & wait\n";
    std::fs::write(&vmm, script).unwrap();
    std::fs::set_permissions(&vmm, Permissions::from_mode(0o755)).unwrap();
    for (name, text) in [
        ("kernel", "the kernel\n"),
        ("initrd", "the initrd\n"),
        (
            "vm.json",
            r#"{"initrd":"initrd","kernel":"gone","memory":"1G"}"#,
        ),
    ] {
        std::fs::write(dir.path().join(name), text).unwrap();
    }
    let mut lmb = Command::new(env!("CARGO_BIN_EXE_lmb"))
        .args(["run", "--host", "virtual", "--host-limit", "120s"])
        .args(["--config", "vm.json", "--kernel", "kernel", "--vmm"])
        .arg(&vmm)
        .current_dir(dir.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = lmb.stdin.take().unwrap();
    stdin.write_all(b"\x01xtyped\n").unwrap();
    // The end of a pipe is not the VM's.
    drop(stdin);
    let mut output = BufReader::new(lmb.stdout.take().unwrap());
    let mut lines = Vec::new();
    let mut read_to = |last: &str| {
        while lines.last().is_none_or(|line: &String| line != last) {
            let mut line = String::new();
            assert!(output.read_line(&mut line).unwrap() > 0, "{lines:?}");
            lines.push(line.trim_end().to_owned());
        }
    };
    read_to("got \u{1}xtyped");
    kill_process(Pid::from_child(&lmb), Signal::TERM).unwrap();
    read_to("asked to end");
    assert_eq!(lmb.wait().unwrap().code(), Some(143));
    assert_eq!(
        lines,
        [
            "--api-socket /vm.sock --kernel /guest/kernel --config /guest/vm.json",
            "the kernel",
            "the initrd",
            r#"{"initrd":"/guest/initrd","kernel":"/guest/kernel","memory":"1G"}"#,
            "got \u{1}xtyped",
            "asked to end",
        ]
    );
}

#[test]
fn numa_nodes_and_huge_pages_are_there() {
    let mut host = host(
        "cd /sys/devices/system/node; cat node*/distance node*/cpulist\n\
         cat /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages; nproc",
    );
    host.cpus = 2;
    host.nodes_mib = vec![512, 512];
    host.distances = vec!["0-1=40".parse().unwrap()];
    host.hugepages_2m = 16;
    let (code, lines) = run(&host);
    assert_eq!(code, 0, "{lines:?}");
    assert_eq!(lines, ["10 40", "40 10", "0", "1", "16", "2"]);
}

#[test]
fn the_instruction_clock_repeats_itself() {
    let mut host = host(
        "cat /sys/devices/system/clocksource/clocksource0/current_clocksource; cat /proc/uptime",
    );
    host.clock = Clock::Instructions;
    let (first, second) = (run(&host), run(&host));
    assert_eq!(first.0, 0, "{first:?}");
    assert_eq!(first.1[0], "tsc");
    let uptime_s = |lines: &[String]| -> f64 {
        let first = lines[1].split(' ').next().unwrap();
        first.parse().unwrap()
    };
    let (a, b) = (uptime_s(&first.1), uptime_s(&second.1));
    assert!((a - b).abs() < 0.1, "{a} s and {b} s for the same work");
}

#[test]
fn a_run_that_does_not_end_is_stopped_and_its_state_kept() {
    let state = tempfile::tempdir().unwrap();
    let cache = Cache::at(state.path()).unwrap();
    let mut host = host("sleep 1000");
    host.limit = Duration::from_secs(6);
    let error = host.run_lines(&cache, &mut |_| {}).unwrap_err();
    let HostError::TimedOut { log, .. } = &error else {
        panic!("{error}");
    };
    let directory = log.directory.as_ref().unwrap();
    assert!(error.to_string().contains(directory.to_str().unwrap()));
    let registers = std::fs::read_to_string(directory.join("state.txt")).unwrap();
    assert!(registers.contains("RIP="), "{registers}");
}

#[test]
fn a_host_that_goes_down_says_why() {
    let state = tempfile::tempdir().unwrap();
    let cache = Cache::at(state.path()).unwrap();
    let host = host("echo last words; echo c > /proc/sysrq-trigger");
    let mut lines = Vec::new();
    let error = host
        .run_lines(&cache, &mut |line| lines.push(line.to_owned()))
        .unwrap_err();
    assert!(matches!(error, HostError::Failed { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("went down while the command ran"), "{text}");
    assert!(text.contains("sysrq"), "the console's end is shown: {text}");
}
