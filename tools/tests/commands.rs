//! The `lmb` program as a user calls it: against a control socket that speaks
//! canned HTTP, and with a program in the VMM's place for the console.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, ChildStdout, Command, Output, Stdio};
use std::thread::JoinHandle;

use lmb_vmm::protocol::{
    ErrorReply, MemoryAction, Operation, OperationState, OperationTimeline, RequestCounts,
};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, OutputModes, Termios, tcgetattr};

const GIB: u64 = 1 << 30;

fn lmb() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lmb"));
    command.env_remove("LMB_SOCKET").stdin(Stdio::null());
    command
}

fn operation(state: OperationState) -> Operation {
    Operation {
        id: 7,
        action: MemoryAction::Add,
        state,
        from_bytes: GIB,
        target_bytes: 2 * GIB,
        plugged_bytes: GIB,
        lmb_size_bytes: GIB / 4,
        timeout_ms: 60_000,
        timeline: OperationTimeline::default(),
        requests: RequestCounts::default(),
        acpi: None,
        changes: Vec::new(),
        message: None,
    }
}

/// A control socket that answers one call; its thread gives the request.
struct Vm {
    dir: tempfile::TempDir,
    server: JoinHandle<String>,
}

impl Vm {
    fn answering(status: u16, body: &impl serde::Serialize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("vm.sock")).unwrap();
        let body = serde_json::to_string(body).unwrap();
        let server = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream);
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                assert!(reader.read_line(&mut head).unwrap() > 0, "{head}");
            }
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("Content-Length: "))
                .unwrap()
                .parse()
                .unwrap();
            let mut request = vec![0; length];
            reader.read_exact(&mut request).unwrap();
            let reply = format!(
                "HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            );
            reader.get_mut().write_all(reply.as_bytes()).unwrap();
            let line = head.lines().next().unwrap_or_default().to_owned();
            format!("{line}\n{}", String::from_utf8(request).unwrap())
        });
        Self { dir, server }
    }

    /// Runs lmb on it: what lmb did and what the socket was asked.
    fn run(self, arguments: &[&str]) -> (Output, String) {
        let output = lmb()
            .args(arguments)
            .env("LMB_SOCKET", self.dir.path().join("vm.sock"))
            .output()
            .unwrap();
        (output, self.server.join().unwrap())
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn an_operations_end_is_the_exit_code() {
    for (state, code) in [
        (OperationState::Done, 0),
        (OperationState::Incomplete, 3),
        (OperationState::Superseded, 4),
        (OperationState::Cancelled, 4),
        (OperationState::Aborted, 4),
    ] {
        let (output, request) =
            Vm::answering(200, &operation(state)).run(&["mem", "add", "1G", "-t", "5s"]);
        assert_eq!(output.status.code(), Some(code), "{state:?}");
        assert!(text(&output.stdout).starts_with("operation 7 (add): "));
        assert_eq!(text(&output.stderr), "");
        assert_eq!(
            request,
            "POST /api/v1/memory/operations HTTP/1.1\n\
             {\"action\":\"add\",\"size_bytes\":1073741824,\"timeout_ms\":5000,\"wait\":true,\
             \"wait_usable\":false}"
        );
    }
}

#[test]
fn without_waiting_the_id_is_printed() {
    let vm = Vm::answering(202, &operation(OperationState::Running));
    let (output, request) = vm.run(&["mem", "remove", "-q", "4", "--no-wait"]);
    assert_eq!(text(&output.stdout), "7\n");
    assert_eq!(output.status.code(), Some(0));
    assert!(
        request.contains("\"lmbs\":4") && request.contains("\"wait\":false"),
        "{request}"
    );
    let vm = Vm::answering(200, &operation(OperationState::Cancelled));
    let (output, request) = vm.run(&["mem", "cancel", "7"]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(request, "DELETE /api/v1/operations/7 HTTP/1.1\n");
}

#[test]
fn json_is_the_reply_itself() {
    let sent = operation(OperationState::Incomplete);
    let (output, _) = Vm::answering(200, &sent).run(&["mem", "set", "2G", "--json"]);
    let read: Operation = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(read, sent);
    assert_eq!(output.status.code(), Some(3));
}

#[test]
fn a_refusal_is_one_line_and_a_code() {
    let refusal = |code: &str| ErrorReply {
        error: "the guest has no active driver; load virtio_mem".to_owned(),
        code: code.to_owned(),
    };
    for (word, code) in [("driver_not_active", 5), ("bad_size", 1)] {
        let (output, _) = Vm::answering(409, &refusal(word)).run(&["mem", "add", "1G"]);
        assert_eq!(output.status.code(), Some(code));
        assert_eq!(text(&output.stdout), "");
        let message = text(&output.stderr);
        assert!(
            message.starts_with("lmb: cannot add 1 GiB to the VM at /"),
            "{message}"
        );
        assert!(
            message.ends_with(": the guest has no active driver; load virtio_mem\n"),
            "{message}"
        );
        assert_eq!(message.lines().count(), 1, "{message}");
    }
}

#[test]
fn no_vm_and_wrong_lines_have_codes_of_their_own() {
    let output = lmb()
        .args(["mem", "show", "--socket", "/nonexistent/vm.sock"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let message = text(&output.stderr);
    assert!(
        message.contains("is the VM running? `lmb run` prints its socket"),
        "{message}"
    );
    assert_eq!(
        lmb().args(["mem", "add"]).output().unwrap().status.code(),
        Some(2)
    );
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    for arguments in [
        &["completions", "bash"][..],
        &["host", "check"],
        &["run", "--help"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = lmb().args(arguments).stdout(writer).output().unwrap();
        assert_eq!(text(&output.stderr), "", "{arguments:?}");
        // `host check` answers by its exit code.
        assert!(
            matches!(output.status.code(), Some(0 | 1)),
            "{arguments:?}: {}",
            output.status
        );
    }
}

/// A program in the VMM's place, and a directory for its socket.
struct Stand {
    dir: tempfile::TempDir,
    program: PathBuf,
}

impl Stand {
    fn with_script(script: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("vmm");
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
        Self { dir, program }
    }

    /// `lmb run` with it. The native host is named, so that the test does not
    /// depend on this machine's KVM.
    fn command(&self) -> Command {
        let mut command = lmb();
        command
            .args(["run", "--host", "native", "--vmm"])
            .arg(&self.program)
            .env("XDG_RUNTIME_DIR", self.dir.path());
        command
    }
}

#[test]
fn a_dry_run_passes_flags_and_exit_code_through() {
    let stand = Stand::with_script("printf '%s\\n' \"$@\"; exit 9");
    let output = stand
        .command()
        .args([
            "--dry-run",
            "--lmb-size",
            "128M",
            "--kernel",
            "/k",
            "--",
            "--later-flag",
        ])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(9));
    assert_eq!(
        text(&output.stdout),
        "--kernel\n/k\n--memory=1G\n--lmb-size=128M\n--max-memory=9663676416\n--dry-run\n--later-flag\n"
    );
}

/// `lmb run` at a terminal of its own.
struct Session {
    _stand: Stand,
    master: OwnedFd,
    terminal: OwnedFd,
    found: Termios,
    child: Child,
    console: BufReader<ChildStdout>,
    messages: BufReader<ChildStderr>,
}

impl Session {
    fn start(script: &str) -> Self {
        let stand = Stand::with_script(script);
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let terminal = rustix::fs::open(name.as_c_str(), flags, Mode::empty()).unwrap();
        let found = tcgetattr(&terminal).unwrap();
        assert!(
            found
                .local_modes
                .contains(LocalModes::ICANON | LocalModes::ISIG)
        );
        let mut child = stand
            .command()
            .args(["--kernel", "/k", "--initrd", "/i"])
            .stdin(Stdio::from(terminal.try_clone().unwrap()))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let console = BufReader::new(child.stdout.take().unwrap());
        let messages = BufReader::new(child.stderr.take().unwrap());
        Self {
            _stand: stand,
            master,
            terminal,
            found,
            child,
            console,
            messages,
        }
    }

    fn types(&self, keys: &[u8]) {
        assert_eq!(rustix::io::write(&self.master, keys).unwrap(), keys.len());
    }

    fn message_with(&mut self, part: &str) -> String {
        let mut line = String::new();
        while !line.contains(part) {
            line.clear();
            assert!(
                self.messages.read_line(&mut line).unwrap() > 0,
                "no {part:?}"
            );
        }
        line
    }

    /// Returns when the terminal is raw: the keys only come through then.
    fn reach_raw_mode(&mut self) {
        self.types(b"\x01h");
        self.message_with("Ctrl-A x        end the VM");
        let raw = tcgetattr(&self.terminal).unwrap();
        assert!(
            !raw.local_modes
                .intersects(LocalModes::ICANON | LocalModes::ISIG | LocalModes::ECHO)
        );
        assert!(raw.output_modes.contains(OutputModes::OPOST));
    }

    /// Waits for the end: the exit code, once the terminal is as it was.
    fn end(mut self) -> Option<i32> {
        let status = self.child.wait().unwrap();
        let left = tcgetattr(&self.terminal).unwrap();
        assert_eq!(left.local_modes, self.found.local_modes);
        assert_eq!(left.input_modes, self.found.input_modes);
        assert_eq!(left.output_modes, self.found.output_modes);
        assert_eq!(left.control_modes, self.found.control_modes);
        status.code()
    }
}

#[test]
fn the_console_passes_keys_and_the_guests_end() {
    let mut session = Session::start("read line; echo \"got:$line\"; read line; exit 3");
    let place = session.message_with("control socket");
    assert!(
        place.contains("lmb/vm.sock") && place.contains("Ctrl-A x"),
        "{place}"
    );
    session.reach_raw_mode();
    session.types(b"l\x03s\n");
    let mut line = Vec::new();
    session.console.read_until(b'\n', &mut line).unwrap();
    // Ctrl-C is the guest's, too.
    assert_eq!(line, b"got:l\x03s\n");
    session.types(b"\n");
    assert_eq!(session.end(), Some(3));
}

#[test]
fn the_escape_key_ends_the_vm() {
    let mut session = Session::start("exec cat");
    session.reach_raw_mode();
    session.types(b"\x01x");
    assert_eq!(session.end(), Some(0));
}

#[test]
fn a_signal_ends_the_vm_and_restores_the_terminal() {
    for (signal, code) in [(Signal::TERM, 143), (Signal::HUP, 129), (Signal::INT, 130)] {
        let mut session = Session::start("exec cat");
        session.reach_raw_mode();
        kill_process(Pid::from_child(&session.child), signal).unwrap();
        assert_eq!(session.end(), Some(code));
    }
}

#[test]
fn a_vmm_that_a_signal_ends_is_named() {
    let mut session = Session::start("read line; kill -KILL $$");
    session.reach_raw_mode();
    session.types(b"\n");
    let message = session.message_with("lmb-vmm");
    assert_eq!(message, "lmb: signal 9 ended lmb-vmm\n");
    assert_eq!(session.end(), Some(137));
}

#[test]
fn input_that_is_no_terminal_goes_to_the_guest_as_it_is() {
    let stand = Stand::with_script("cat");
    let mut child = stand
        .command()
        .args(["--kernel", "/k", "--initrd", "/i"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"a\x01x\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.stdout, b"a\x01x\n");
    assert_eq!(output.status.code(), Some(0));
}
