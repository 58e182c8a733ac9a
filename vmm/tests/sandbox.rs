//! Each kind of thread in the sandbox: what stops it, and what it can do.
//!
//! A sandbox is for good, so each probe runs in a process of its own: this
//! program again, with the name of the test that acts as a probe then. This is
//! one of the files where unsafe code is allowed: system calls by number.
#![allow(unsafe_code, clippy::unwrap_used)]

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use libc::c_long;
use lmb_vmm::protocol::SandboxInfo;
use lmb_vmm::sandbox::{Sandbox, ThreadKind};

/// Names the probe in the process that is one.
const PROBE: &str = "LMB_SANDBOX_PROBE";
/// What a probe ends with that nothing stopped, and that found all in order.
const SURVIVED: i32 = 42;

const KINDS: [(&str, ThreadKind); 4] = [
    ("main", ThreadKind::Main),
    ("vCPU", ThreadKind::Vcpu),
    ("effects", ThreadKind::Effects),
    ("prefault", ThreadKind::Prefault),
];

fn call(number: c_long, arguments: [c_long; 5]) -> io::Result<c_long> {
    let [a, b, c, d, e] = arguments;
    let last: c_long = 0;
    // SAFETY: the tests pass null or plain numbers for pointers that the
    // kernel would write to; what is mapped is not used.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, last) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}

fn int(value: i32) -> c_long {
    value.into()
}

/// Runs `probe` in another process; `test` is the name of the test that calls
/// [`become_probe`] first.
fn run(test: &str, probe: &str) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(PROBE, probe)
        .output()
        .unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// In a probe's process, its name.
fn probe() -> Option<String> {
    std::env::var(PROBE).ok()
}

/// Enters the sandbox as lmb-vmm does, starts a thread of this kind, and ends
/// the process when `work` is done.
fn confined(kind: ThreadKind, socket: Option<&Path>, work: impl FnOnce(SandboxInfo) + Send) -> ! {
    let (sandbox, info) = Sandbox::enter(socket).unwrap();
    if kind == ThreadKind::Main {
        work(info);
    } else {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                sandbox.confine(kind).unwrap();
                work(info);
            });
            thread.join().unwrap();
        });
    }
    std::process::exit(SURVIVED);
}

type Call = (&'static str, c_long, [c_long; 5]);

/// What no thread may do.
fn stopped_calls() -> Vec<Call> {
    let rwx = int(libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC);
    let private = int(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let at = int(libc::AT_FDCWD);
    vec![
        ("a program", libc::SYS_execve, [0; 5]),
        ("a program by descriptor", libc::SYS_execveat, [0; 5]),
        (
            "a process",
            libc::SYS_clone,
            [int(libc::SIGCHLD), 0, 0, 0, 0],
        ),
        ("a process by fork", libc::SYS_fork, [0; 5]),
        ("a process by vfork", libc::SYS_vfork, [0; 5]),
        (
            "a user namespace",
            libc::SYS_clone,
            [
                int(libc::CLONE_VM | libc::CLONE_SIGHAND | libc::CLONE_THREAD)
                    | int(libc::CLONE_NEWUSER),
                0,
                0,
                0,
                0,
            ],
        ),
        ("leaving namespaces", libc::SYS_unshare, [0; 5]),
        (
            "a socket",
            libc::SYS_socket,
            [int(libc::AF_INET), 1, 0, 0, 0],
        ),
        (
            "a Unix socket",
            libc::SYS_socket,
            [int(libc::AF_UNIX), 1, 0, 0, 0],
        ),
        ("a connection", libc::SYS_connect, [0; 5]),
        ("a name for a socket", libc::SYS_bind, [0; 5]),
        (
            "writing a file",
            libc::SYS_openat,
            [at, 0, int(libc::O_WRONLY), 0, 0],
        ),
        (
            "changing a file",
            libc::SYS_openat,
            [at, 0, int(libc::O_RDWR), 0, 0],
        ),
        (
            "making a file",
            libc::SYS_openat,
            [at, 0, int(libc::O_CREAT), 0, 0],
        ),
        (
            "emptying a file",
            libc::SYS_open,
            [0, int(libc::O_TRUNC), 0, 0, 0],
        ),
        ("another kind of open", libc::SYS_openat2, [0; 5]),
        ("renaming", libc::SYS_rename, [0; 5]),
        ("a file's mode", libc::SYS_fchmod, [0; 5]),
        (
            "executable memory",
            libc::SYS_mmap,
            [0, 4096, rwx, private, -1],
        ),
        (
            "making memory executable",
            libc::SYS_mprotect,
            [0, 4096, rwx, 0, 0],
        ),
        (
            "the same by key",
            libc::SYS_pkey_mprotect,
            [0, 4096, rwx, 0, 0],
        ),
        ("a personality", libc::SYS_personality, [0; 5]),
        ("ptrace", libc::SYS_ptrace, [0; 5]),
        ("another's memory", libc::SYS_process_vm_writev, [0; 5]),
        ("a signal to another", libc::SYS_kill, [1, 0, 0, 0, 0]),
        (
            "a signal to another's thread",
            libc::SYS_tgkill,
            [1, 1, 0, 0, 0],
        ),
        (
            "the handler of SIGSYS",
            libc::SYS_rt_sigaction,
            [int(libc::SIGSYS), 0, 0, 8, 0],
        ),
        ("another user", libc::SYS_setuid, [0; 5]),
        ("capabilities", libc::SYS_capset, [0; 5]),
        ("mounting", libc::SYS_mount, [0; 5]),
        ("a kernel module", libc::SYS_init_module, [0; 5]),
        ("BPF", libc::SYS_bpf, [0; 5]),
        ("performance counters", libc::SYS_perf_event_open, [0; 5]),
        ("io_uring", libc::SYS_io_uring_setup, [0; 5]),
        ("handling page faults", libc::SYS_userfaultfd, [0; 5]),
        (
            "typing on the terminal",
            libc::SYS_ioctl,
            [0, 0x5412, 0, 0, 0],
        ),
        (
            "a process setting",
            libc::SYS_prctl,
            [int(libc::PR_SET_DUMPABLE), 1, 0, 0, 0],
        ),
    ]
}

const KVM_CREATE_VM: c_long = 0xae01;
const KVM_SET_USER_MEMORY_REGION: c_long = 0x4020_ae46;
const KVM_RUN: c_long = 0xae80;

/// What only other kinds may do.
fn calls_of_others(kind: ThreadKind) -> Vec<Call> {
    let memfd = ("a file in memory", libc::SYS_memfd_create, [0; 5]);
    let unlink = ("removing a name", libc::SYS_unlink, [0; 5]);
    let accept = ("a client", libc::SYS_accept4, [-1, 0, 0, 0, 0]);
    let ioctl = |what, request| (what, libc::SYS_ioctl, [-1, request, 0, 0, 0]);
    let create = ioctl("making a VM", KVM_CREATE_VM);
    let slot = ioctl("a memory slot", KVM_SET_USER_MEMORY_REGION);
    let enter = ioctl("entering the guest", KVM_RUN);
    let flags = int(libc::CLONE_VM | libc::CLONE_SIGHAND | libc::CLONE_THREAD);
    let thread = ("a thread", libc::SYS_clone, [flags, 0, 0, 0, 0]);
    match kind {
        ThreadKind::Main => vec![],
        ThreadKind::Vcpu => vec![memfd, unlink, accept, create, slot, thread],
        ThreadKind::Effects => vec![memfd, unlink, accept, create, enter],
        ThreadKind::Prefault => vec![memfd, unlink, accept, create, slot, enter, thread],
    }
}

#[test]
fn each_kind_of_thread_is_stopped_at_what_it_never_does() {
    let calls = |kind| stopped_calls().into_iter().chain(calls_of_others(kind));
    if let Some(probe) = probe() {
        let (name, index) = probe.split_once(' ').unwrap();
        let (_, kind) = KINDS.into_iter().find(|(n, _)| *n == name).unwrap();
        let (_, number, arguments) = calls(kind).nth(index.parse().unwrap()).unwrap();
        confined(kind, None, move |_| drop(call(number, arguments)));
    }
    for (name, kind) in KINDS {
        for (index, (what, number, _)) in calls(kind).enumerate() {
            let output = run(
                "each_kind_of_thread_is_stopped_at_what_it_never_does",
                &format!("{name} {index}"),
            );
            let said = text(&output);
            assert_eq!(output.status.code(), Some(1), "{name}: {what}: {said}");
            let told = format!("the sandbox stopped system call {number} (");
            assert!(said.contains(&told), "{name}: {what}: {said}");
            assert!(said.contains(&format!(" of a {name} thread")), "{said}");
        }
    }
}

#[test]
fn opening_and_clone3_are_answered_as_if_the_kernel_had_none() {
    if let Some(probe) = probe() {
        let (_, kind) = KINDS.into_iter().find(|(name, _)| *name == probe).unwrap();
        confined(kind, None, |_| {
            let refused = File::open("/proc/self/status").unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(libc::ENOSYS));
            let refused = call(libc::SYS_clone3, [0; 5]).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(libc::ENOSYS));
        });
    }
    for (name, _) in KINDS {
        let output = run(
            "opening_and_clone3_are_answered_as_if_the_kernel_had_none",
            name,
        );
        assert_eq!(output.status.code(), Some(SURVIVED), "{}", text(&output));
    }
}

/// Allocates much and little, and gives it back.
fn allocate() {
    let mut kept = Vec::new();
    for size in [100, 5000, 200_000, 40 << 20] {
        let mut bytes = vec![1_u8; size];
        bytes.extend_from_slice(&[2; 4096]);
        kept.push(bytes);
    }
    assert!(kept.iter().all(|bytes| bytes.last() == Some(&2)));
}

#[test]
fn every_kind_of_thread_can_allocate_write_wait_and_panic() {
    if let Some(probe) = probe() {
        let (name, end) = probe.split_once(' ').unwrap();
        let (_, kind) = KINDS.into_iter().find(|(n, _)| *n == name).unwrap();
        let (mut reader, mut writer) = UnixStream::pair().unwrap();
        confined(kind, None, |_| {
            allocate();
            if kind == ThreadKind::Main {
                writer.write_all(b"x").unwrap();
                let mut byte = [0];
                reader.read_exact(&mut byte).unwrap();
            }
            let (_sender, receiver) = std::sync::mpsc::channel::<()>();
            let began = Instant::now();
            let wait = receiver.recv_timeout(Duration::from_millis(1));
            assert!(wait.is_err() && began.elapsed() >= Duration::from_millis(1));
            match end {
                "panics" => panic!("as it should"),
                "aborts" => std::process::abort(),
                _ => {}
            }
        });
    }
    let test = "every_kind_of_thread_can_allocate_write_wait_and_panic";
    for (name, _) in KINDS {
        let output = run(test, &format!("{name} ends"));
        assert_eq!(output.status.code(), Some(SURVIVED), "{}", text(&output));
        for end in ["panics", "aborts"] {
            let output = run(test, &format!("{name} {end}"));
            let said = text(&output);
            assert!(!said.contains("the sandbox stopped"), "{name}: {said}");
            assert_ne!(output.status.code(), Some(SURVIVED));
            assert_eq!(said.contains("as it should"), end == "panics", "{said}");
        }
    }
}

#[test]
fn effects_and_the_main_thread_can_change_memory_and_start_threads() {
    if let Some(probe) = probe() {
        let (_, kind) = KINDS.into_iter().find(|(name, _)| *name == probe).unwrap();
        lmb_memory::open_host_views(lmb_memory::PageSize::Thp);
        confined(kind, None, |_| {
            std::thread::spawn(allocate).join().unwrap();
            let none = int(libc::PROT_NONE);
            let flags = int(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
            let address = call(libc::SYS_mmap, [0, 1 << 21, none, flags, -1]).unwrap();
            let open = int(libc::PROT_READ | libc::PROT_WRITE);
            call(libc::SYS_mprotect, [address, 1 << 21, open, 0, 0]).unwrap();
            let populate = int(libc::MADV_POPULATE_WRITE);
            call(libc::SYS_madvise, [address, 1 << 21, populate, 0, 0]).unwrap();
            call(libc::SYS_munmap, [address, 1 << 21, 0, 0, 0]).unwrap();
        });
    }
    for name in ["main", "effects"] {
        let output = run(
            "effects_and_the_main_thread_can_change_memory_and_start_threads",
            name,
        );
        assert_eq!(output.status.code(), Some(SURVIVED), "{}", text(&output));
    }
}

#[test]
fn the_kernel_agrees_about_rights_and_names() {
    if let Some(probe) = probe() {
        let root = Path::new(&probe);
        let (ours, other) = (root.join("ours"), root.join("other"));
        let mut status = File::open("/proc/thread-self/status").unwrap();
        confined(ThreadKind::Main, Some(&ours.join("socket")), |info| {
            let mut text = String::new();
            status.rewind().unwrap();
            status.read_to_string(&mut text).unwrap();
            let field = |name: &str| {
                let line = text.lines().find(|line| line.starts_with(name)).unwrap();
                line.split_ascii_whitespace().nth(1).unwrap().to_owned()
            };
            for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
                assert_eq!(field(set), "0000000000000000", "{set}");
            }
            assert_eq!(
                (field("NoNewPrivs:"), field("Seccomp:")),
                ("1".into(), "2".into())
            );
            std::fs::remove_file(ours.join("socket")).unwrap();
            // Landlock alone stands before the rest of the file system here.
            let removed = std::fs::remove_file(other.join("precious"));
            assert_eq!(removed.is_err(), info.landlock_abi.is_some(), "{info:?}");
        });
    }
    let root = tempfile::tempdir().unwrap();
    for (directory, file) in [("ours", "socket"), ("other", "precious")] {
        std::fs::create_dir(root.path().join(directory)).unwrap();
        std::fs::write(root.path().join(directory).join(file), "").unwrap();
    }
    let output = run(
        "the_kernel_agrees_about_rights_and_names",
        root.path().to_str().unwrap(),
    );
    assert_eq!(output.status.code(), Some(SURVIVED), "{}", text(&output));
    assert!(!root.path().join("ours/socket").exists());
}

#[test]
fn without_a_sandbox_nothing_is_confined() {
    for (_, kind) in KINDS {
        Sandbox::off().confine(kind).unwrap();
    }
    assert!(File::open("/proc/self/status").is_ok());
}
