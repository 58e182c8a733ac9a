//! `lmb` and its client against the VMM's own API server and coordinator, on
//! a real socket. No guest runs, so no driver is active.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::thread::JoinHandle;

use lmb_memory::{Bytes, GuestBlock, Hotplug, Layout, LmbSize, PageSize};
use lmb_tools::client::{CODE_DRIVER_NOT_ACTIVE, Client};
use lmb_vmm::api::{ApiServer, Context, InterestChange, VmControl};
use lmb_vmm::coordinator::{Coordinator, RequestError};
use lmb_vmm::protocol::{
    BootTimeline, EntryKind, KernelInfo, MemoryInfo, Operation, OperationState, SandboxInfo,
    VmInfo, VmState,
};
use lmb_vmm::timeline::monotonic_ns;
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::EventFd;

const GIB: u64 = 1 << 30;

/// The machine behind the API: ends when it is powered off.
#[derive(Default)]
struct Machine {
    off: bool,
    resets: u64,
}

impl VmControl for Machine {
    fn vm_info(&self, boot: &BootTimeline) -> VmInfo {
        VmInfo {
            version: "test".into(),
            pid: std::process::id(),
            state: VmState::Running,
            cpus: 1,
            kernel: KernelInfo {
                path: "/boot/vmlinuz".into(),
                version: None,
                entry: EntryKind::Elf,
                kaslr: false,
                cmdline: "quiet".into(),
            },
            boot: boot.clone(),
            vcpu_exits: 0,
            sandbox: SandboxInfo::default(),
        }
    }

    fn power_off(&mut self) {
        self.off = true;
    }

    fn reset(&mut self) {
        self.resets += 1;
    }
}

fn layout() -> Layout {
    Layout::compute(&lmb_memory::MemoryRequest {
        memory: Bytes::new(GIB),
        max_memory: Some(Bytes::new(9 * GIB)),
        lmb_size: LmbSize::new(Bytes::new(GIB / 4)).unwrap(),
        guest_block: GuestBlock::Follow,
        slot_size: None,
        page_size: PageSize::Small,
        hotplug: Hotplug::VirtioMem,
        phys_bits: 46,
        kernel_reach: None,
        max_map_count: None,
        max_slots: 509,
    })
    .unwrap()
}

/// Serves until the machine is powered off: how often it was reset.
fn serve(mut server: ApiServer) -> u64 {
    let effect_done = Arc::new(EventFd::new(libc::EFD_NONBLOCK).unwrap());
    let mut coordinator = Coordinator::new(&layout(), monotonic_ns(), effect_done);
    let mut machine = Machine::default();
    let epoll = Epoll::new().unwrap();
    apply(&epoll, &server.interests());
    let mut events = [EpollEvent::default(); 16];
    while !machine.off {
        let count = epoll.wait(100, &mut events).unwrap();
        let mut context = Context {
            coordinator: &mut coordinator,
            vm: &mut machine,
        };
        for event in &events[..count] {
            let token = u32::try_from(event.data()).unwrap();
            let ready = event.event_set();
            apply(&epoll, &server.handle(token, ready, &mut context));
        }
        let now = monotonic_ns();
        context.coordinator.on_deadline(now);
        apply(&epoll, &server.on_deadline(now, &mut context));
    }
    machine.resets
}

fn apply(epoll: &Epoll, changes: &[InterestChange]) {
    for change in changes {
        let (operation, fd, token, set) = match *change {
            InterestChange::Add(fd, token, set) => (ControlOperation::Add, fd, token, set),
            InterestChange::Modify(fd, token, set) => (ControlOperation::Modify, fd, token, set),
            InterestChange::Remove(fd) => (ControlOperation::Delete, fd, 0, EventSet::empty()),
        };
        epoll
            .ctl(operation, fd, EpollEvent::new(set, token.into()))
            .unwrap();
    }
}

struct Vm {
    _dir: tempfile::TempDir,
    socket: PathBuf,
    server: JoinHandle<u64>,
}

impl Vm {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("vm.sock");
        let server = ApiServer::bind(&socket, 10).unwrap();
        Self {
            _dir: dir,
            socket,
            server: std::thread::spawn(move || serve(server)),
        }
    }

    fn client(&self) -> Client {
        Client::new(&self.socket)
    }

    /// Powers it off: how often it was reset.
    fn end(self) -> u64 {
        self.client().power_off().unwrap();
        self.server.join().unwrap()
    }
}

fn lmb(socket: &Path, arguments: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lmb"))
        .args(arguments.split_whitespace())
        .arg("--socket")
        .arg(socket)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn every_call_is_understood_by_the_vmm() {
    let vm = Vm::start();
    let client = vm.client();
    assert_eq!(client.vm().unwrap().pid, std::process::id());
    let memory = client.memory().unwrap();
    assert_eq!((memory.boot_lmbs, memory.max_bytes), (4, 9 * GIB));
    assert_eq!(memory.windows[0].total_lmbs, 32);
    assert!(client.operations().unwrap().is_empty());
    assert!(client.metrics().unwrap().contains("# TYPE "));
    assert_eq!(client.operation(99).unwrap_err().code(), Some("not_found"));
    assert_eq!(client.cancel(99).unwrap_err().code(), Some("not_found"));
    client.reset().unwrap();
    let (status, body) = client.raw("BREW", "/api/v1/vm", None).unwrap();
    assert_eq!(status, 405);
    assert!(text(&body).contains("bad_method"));
    assert_eq!(vm.end(), 1);
}

#[test]
fn refusals_of_the_vmm_are_told_as_they_are() {
    // What `lmb` has an exit code of its own for is what the VMM says.
    assert_eq!(RequestError::DriverNotActive.code(), CODE_DRIVER_NOT_ACTIVE);
    let vm = Vm::start();
    for (arguments, begin, reason) in [
        (
            "mem add 100M",
            "lmb: cannot add 100 MiB to the VM at ",
            "256 MiB",
        ),
        (
            "mem set 512M",
            "lmb: cannot set the memory of the VM at ",
            "1 GiB",
        ),
        (
            "mem add 100G",
            "lmb: cannot add 100 GiB to the VM at ",
            "9 GiB",
        ),
        ("mem cancel 99", "lmb: cannot cancel operation 99: ", "99"),
        ("mem operations 99", "lmb: cannot show operation 99: ", "99"),
    ] {
        let output = lmb(&vm.socket, arguments);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let message = text(&output.stderr);
        assert!(message.starts_with(begin), "{message}");
        assert!(message[begin.len()..].contains(reason), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
    }
    // The size it already has succeeds at once, also without a driver.
    let output = lmb(&vm.socket, "mem set 1G --json");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let done: Operation = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(done.state, OperationState::Done);
    assert_eq!(
        vm.client().operation(done.id).unwrap().state,
        OperationState::Done
    );
    assert!(text(&lmb(&vm.socket, "mem operations").stdout).contains("set"));
    vm.end();
}

#[test]
fn the_commands_print_what_the_vmm_says() {
    let vm = Vm::start();
    let output = lmb(&vm.socket, "mem show");
    let table = text(&output.stdout);
    assert!(
        table.starts_with("LMB size 256 MiB, guest memory block 256 MiB"),
        "{table}"
    );
    let window: Vec<_> = table
        .lines()
        .find(|line| line.starts_with("window 0"))
        .unwrap()
        .split_whitespace()
        .skip(4)
        .collect();
    assert_eq!(window[..8], ["0", "B", "0", "0", "B", "0", "8", "GiB"]);
    let output = lmb(&vm.socket, "mem show --json");
    let info: MemoryInfo = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(info, vm.client().memory().unwrap());
    assert!(text(&lmb(&vm.socket, "vm show").stdout).contains("/boot/vmlinuz"));
    assert!(text(&lmb(&vm.socket, "metrics").stdout).contains("# HELP "));
    let output = lmb(&vm.socket, "vm power-off");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(vm.server.join().unwrap(), 0);
}
