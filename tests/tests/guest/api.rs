//! The control socket as curl and careless clients see it.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lmb_tests::{GuestSpec, GuestVm, Kernel, MIB};
use serde_json::Value;

use crate::cases::Case;
use crate::shared::{self, Standing};

const STOCK: Standing = Standing::Stock61;
const OPERATIONS: &str = "/memory/operations";
const ADD_ONE: &str = r#"{"action":"add","lmbs":1,"wait":true}"#;

pub(crate) const CASES: &[Case] = &[
    Case::on(STOCK, "api::socket_has_mode_0600", 1, socket_has_mode_0600),
    Case::on(
        STOCK,
        "api::vm_and_memory_by_curl",
        1,
        vm_and_memory_by_curl,
    ),
    Case::on(
        STOCK,
        "api::add_and_remove_by_curl",
        4,
        add_and_remove_by_curl,
    ),
    Case::on(
        STOCK,
        "api::operations_are_listed",
        4,
        operations_are_listed,
    ),
    Case::on(
        STOCK,
        "api::metrics_are_prometheus_text",
        1,
        metrics_are_prometheus_text,
    ),
    Case::on(
        STOCK,
        "api::wrong_requests_are_refused",
        3,
        wrong_requests_are_refused,
    ),
    Case::on(
        STOCK,
        "api::lmb_size_needs_a_restart",
        1,
        lmb_size_needs_a_restart,
    ),
    Case::on(
        STOCK,
        "api::careless_clients_harm_nobody",
        4,
        careless_clients_harm_nobody,
    ),
    Case::on(STOCK, "api::many_clients_at_once", 3, many_clients_at_once),
    Case::new(
        "api::power_off_behind_a_held_reply",
        5,
        power_off_behind_a_held_reply,
    ),
];

fn socket_has_mode_0600() -> Result<()> {
    shared::with(STOCK, |vm| {
        let mode = std::fs::metadata(vm.socket())?.permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
        Ok(())
    })
}

fn vm_and_memory_by_curl() -> Result<()> {
    shared::with(STOCK, |vm| {
        let reply = vm.curl().get("/vm")?;
        assert_eq!(reply.status, 200, "{reply:?}");
        assert!(
            reply.content_type.starts_with("application/json"),
            "{reply:?}"
        );
        let json = reply.json()?;
        assert_eq!(json["state"], "running");
        assert_eq!(json["pid"], vm.pid());
        assert_eq!(json["cpus"], 1);
        let json = vm.curl().get("/memory")?.json()?;
        assert_eq!(json["lmb_size_bytes"], 128 * MIB);
        assert_eq!(json["boot_bytes"], 256 * MIB);
        assert_eq!(json["boot_lmbs"], 2);
        assert_eq!(json["total_bytes"], 256 * MIB);
        assert_eq!(json["target_bytes"], 256 * MIB);
        assert_eq!(json["max_bytes"], 2304 * MIB);
        let window = &json["windows"][0];
        assert_eq!(window["size_bytes"], 2048 * MIB);
        assert_eq!(window["usable_bytes"], 2048 * MIB);
        assert_eq!(window["total_lmbs"], 16);
        assert_eq!(window["first_lmb"], 2);
        assert_eq!(window["driver_active"], true);
        // HEAD has no body.
        let head = vm.curl().call(&["--head"], "/vm")?;
        assert_eq!(head.status, 200, "{head:?}");
        Ok(())
    })
}

fn operate(vm: &GuestVm, body: &str) -> Result<Value> {
    let reply = vm.curl().post("/memory/operations", body)?;
    ensure!(matches!(reply.status, 200 | 202), "{reply:?}");
    reply.json()
}

fn add_and_remove_by_curl() -> Result<()> {
    shared::with(STOCK, |vm| {
        let add = operate(vm, r#"{"action":"add","size_bytes":268435456,"wait":true}"#)?;
        assert_eq!(add["state"], "done", "{add}");
        assert_eq!(add["plugged_bytes"], 512 * MIB);
        for stamp in [
            "announced_ns",
            "first_request_ns",
            "last_answer_ns",
            "replied_ns",
        ] {
            assert!(add["timeline"][stamp].as_u64() > Some(0), "{stamp}: {add}");
        }
        // Without waiting: 202, and the id leads to the end.
        let reply = vm
            .curl()
            .post("/memory/operations", r#"{"action":"remove","lmbs":2}"#)?;
        assert_eq!(reply.status, 202, "{reply:?}");
        let id = reply.json()?["id"].as_u64().context("no id")?;
        let end = vm.await_end(id)?;
        assert_eq!(end.plugged_bytes, 256 * MIB, "{end:#?}");
        Ok(())
    })
}

fn operations_are_listed() -> Result<()> {
    shared::with(STOCK, |vm| {
        let add = operate(vm, r#"{"action":"add","lmbs":1,"wait":true}"#)?;
        let remove = operate(vm, r#"{"action":"remove","lmbs":1,"wait":true}"#)?;
        let list = vm.curl().get("/operations")?.json()?;
        let ids: Vec<_> = list
            .as_array()
            .context("no list")?
            .iter()
            .map(|o| o["id"].clone())
            .collect();
        assert!(
            ids.contains(&add["id"]) && ids.contains(&remove["id"]),
            "{list}"
        );
        let one = vm
            .curl()
            .get(&format!("/operations/{}", add["id"]))?
            .json()?;
        assert_eq!(one["action"], "add");
        assert_eq!(one["state"], "done");
        // What has ended cannot be cancelled.
        let path = format!("/operations/{}", add["id"]);
        vm.curl().call(&["-X", "DELETE"], &path)?.refusal()?;
        Ok(())
    })
}

fn metrics_are_prometheus_text() -> Result<()> {
    shared::with(STOCK, |vm| {
        let reply = vm.curl().get("//metrics")?;
        assert_eq!(reply.status, 200, "{reply:?}");
        assert!(reply.content_type.starts_with("text/plain"), "{reply:?}");
        let mut samples = 0;
        for line in reply.body.lines().filter(|line| !line.is_empty()) {
            if line.starts_with("# HELP ") || line.starts_with("# TYPE ") {
                continue;
            }
            let (name, value) = line.rsplit_once(' ').with_context(|| line.to_owned())?;
            assert!(name.starts_with("lmb"), "{line}");
            value.parse::<f64>().with_context(|| line.to_owned())?;
            samples += 1;
        }
        assert!(samples > 10, "{}", reply.body);
        // The client finds them too.
        assert!(vm.client().metrics()?.contains("# TYPE"));
        Ok(())
    })
}

fn wrong_requests_are_refused() -> Result<()> {
    shared::with(STOCK, |vm| {
        let bodies = [
            ("no JSON", "add 1G"),
            ("nothing", ""),
            ("an array", "[]"),
            ("an unknown field", r#"{"action":"add","lmbs":1,"size":4}"#),
            ("an unknown action", r#"{"action":"double","lmbs":1}"#),
            ("no amount", r#"{"action":"add"}"#),
            (
                "two amounts",
                r#"{"action":"add","lmbs":1,"size_bytes":134217728}"#,
            ),
            ("a negative amount", r#"{"action":"add","lmbs":-1}"#),
            ("a fraction", r#"{"action":"add","lmbs":1.5}"#),
            (
                "no whole LMBs",
                r#"{"action":"add","size_bytes":134217729}"#,
            ),
            ("past the window", r#"{"action":"add","lmbs":17}"#),
            (
                "below boot memory",
                r#"{"action":"set","size_bytes":134217728}"#,
            ),
            ("more than there is", r#"{"action":"remove","lmbs":1}"#),
            (
                "a sum past 64 bits",
                r#"{"action":"add","lmbs":18446744073709551615}"#,
            ),
            (
                "a number past 64 bits",
                r#"{"action":"add","lmbs":18446744073709551616}"#,
            ),
            ("no deadline", r#"{"action":"add","lmbs":1,"timeout_ms":0}"#),
            (
                "a deadline past a day",
                r#"{"action":"add","lmbs":1,"timeout_ms":86400001}"#,
            ),
        ];
        for (what, body) in bodies {
            vm.curl()
                .post("/memory/operations", body)?
                .refusal()
                .context(what)?;
        }
        // Larger than any body, so from a file.
        let long = tempfile::NamedTempFile::new()?;
        std::fs::write(
            long.path(),
            format!(r#"{{"action":"{}"}}"#, "x".repeat(4 << 20)),
        )?;
        let from = format!("@{}", long.path().display());
        let options = ["--header", "Expect:", "--data-binary", &from];
        let reply = vm.curl().call(&options, "/memory/operations")?;
        assert!((400..500).contains(&reply.status), "{}", reply.status);
        let calls: [(&[&str], &str, u16); 7] = [
            (&[], "/nothing", 404),
            (&[], "//", 404),
            (&[], "/operations/999999", 404),
            (&[], "/operations/abc", 404),
            (&["-X", "DELETE"], "/vm", 405),
            (&["-X", "PUT"], "/memory", 405),
            (&[], "/memory/operations", 405),
        ];
        for (options, path, status) in calls {
            let reply = vm.curl().call(options, path)?;
            assert_eq!(reply.status, status, "{options:?} {path}: {reply:?}");
            reply.refusal()?;
        }
        // The VM is as it was.
        assert_eq!(vm.memory()?.target_bytes, 256 * MIB);
        assert_eq!(vm.sh_ok("echo alive")?, "alive");
        Ok(())
    })
}

fn lmb_size_needs_a_restart() -> Result<()> {
    shared::with(STOCK, |vm| {
        let reply = vm.curl().call(
            &[
                "-X",
                "PATCH",
                "--data-raw",
                r#"{"lmb_size_bytes":268435456}"#,
            ],
            "/memory",
        )?;
        let reason = reply.refusal()?;
        assert!(reason.error.contains("restart"), "{reason:?}");
        assert_eq!(vm.memory()?.lmb_size_bytes, 128 * MIB);
        Ok(())
    })
}

/// Sends bytes and hangs up, or takes the answer's first line.
fn raw(vm: &GuestVm, bytes: &[u8], read: bool) -> Result<String> {
    let mut stream = UnixStream::connect(vm.socket())?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.write_all(bytes)?;
    let mut answer = [0; 256];
    let count = if read { stream.read(&mut answer)? } else { 0 };
    let text = String::from_utf8_lossy(&answer[..count]).into_owned();
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

/// A whole POST.
fn post(path: &str, body: &str) -> String {
    format!(
        "POST /api/v1{path} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn careless_clients_harm_nobody() -> Result<()> {
    shared::with(STOCK, |vm| {
        // Some send half a request and stay.
        let mut stuck = Vec::new();
        for part in [
            &b"GET /api/v1/vm HT"[..],
            b"POST /api/v1/memory/operations HTTP/1.1\r\nContent-Length: 100\r\n\r\n{",
            b"",
        ] {
            let mut stream = UnixStream::connect(vm.socket())?;
            stream.write_all(part)?;
            stuck.push(stream);
        }
        // Others hang up in the middle.
        for part in [
            &b"GET"[..],
            b"POST /api/v1/memory/operations HTTP/1.1\r\n",
            b"\0\0\0",
        ] {
            raw(vm, part, false)?;
        }
        let start = Instant::now();
        assert_eq!(vm.curl().get("/vm")?.status, 200);
        assert!(
            start.elapsed() < Duration::from_secs(2),
            "{:?}",
            start.elapsed()
        );
        // What is no HTTP is told so.
        let answer = raw(vm, b"hello\r\n\r\n", true)?;
        assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
        let answer = raw(
            vm,
            b"GET /api/v1/vm HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
            true,
        )?;
        assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
        // A client that goes while its operation runs does not stop it.
        raw(vm, post(OPERATIONS, ADD_ONE).as_bytes(), false)?;
        lmb_tests::wait::until("the abandoned operation", lmb_tests::wait::SHORT, || {
            Ok((vm.memory()?.total_bytes == 384 * MIB).then_some(()))
        })?;
        drop(stuck);
        Ok(())
    })
}

fn many_clients_at_once() -> Result<()> {
    shared::with(STOCK, |vm| {
        let client = vm.client();
        let threads: Vec<_> = (0..8)
            .map(|_| {
                let client = client.clone();
                std::thread::spawn(move || -> Result<()> {
                    for _ in 0..20 {
                        ensure!(client.memory()?.boot_bytes == 256 * MIB);
                    }
                    Ok(())
                })
            })
            .collect();
        for thread in threads {
            match thread.join() {
                Ok(result) => result?,
                Err(_) => anyhow::bail!("a client panicked"),
            }
        }
        Ok(())
    })
}

fn power_off_behind_a_held_reply() -> Result<()> {
    // Both requests at once, which curl does not do: the second is read when
    // the first one's reply, which the guest makes due, is written.
    let mut vm = GuestSpec::new(Kernel::V6_1)
        .lmb_size("128M")
        .max_memory("512M")
        .boot_with_driver()?;
    let mut stream = UnixStream::connect(vm.socket())?;
    stream.set_read_timeout(Some(lmb_tests::wait::CHANGE))?;
    let both = post(OPERATIONS, ADD_ONE) + &post("/vm/power-off", "");
    stream.write_all(both.as_bytes())?;
    let mut answers = String::new();
    stream.read_to_string(&mut answers)?;
    let status = vm.await_exit()?;
    assert!(status.success(), "{status}: {answers}");
    let ok: Vec<_> = answers
        .match_indices("HTTP/1.1 2")
        .map(|(at, _)| at)
        .collect();
    assert_eq!(ok.len(), 2, "{answers}");
    assert!(answers[..ok[1]].contains(r#""state":"done""#), "{answers}");
    Ok(())
}
