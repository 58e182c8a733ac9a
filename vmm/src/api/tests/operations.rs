//! Calls as clients make them.

use super::harness::{Harness, post};
use crate::coordinator::tests::rig::{BOOT_LMBS, LMB_BYTES, Rig, WINDOW_LMBS};
use crate::protocol::{MemoryInfo, Operation, OperationState, VmInfo};

const START: &str = "/api/v1/memory/operations";

#[test]
fn the_vm_its_memory_and_its_metrics_are_told() {
    let mut harness = Harness::new();
    let vm: VmInfo = harness.get("/api/v1/vm").json();
    assert_eq!((vm.cpus, vm.boot.boots), (2, 1));
    let reply = harness.get("/api/v1/memory");
    assert_eq!(reply.field("content-type"), Some("application/json"));
    let memory: MemoryInfo = reply.json();
    assert_eq!(memory.boot_bytes, BOOT_LMBS * LMB_BYTES);
    assert_eq!(memory.max_bytes, (BOOT_LMBS + WINDOW_LMBS) * LMB_BYTES);
    assert!(memory.windows[0].driver_active && memory.operation.is_none());
    let metrics = harness.get("/metrics");
    let text = String::from_utf8(metrics.body.clone()).unwrap();
    assert!(
        metrics
            .field("content-type")
            .unwrap()
            .starts_with("text/plain; version=0.0.4")
    );
    assert!(
        text.contains("lmb_vm_info{version=\"1.2\\\"3\"} 1\n"),
        "{text}"
    );
    assert!(text.contains("lmb_window_driver_active{window=\"0\"} 1\n"));
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let value = line.rsplit(' ').next().unwrap();
        assert!(value.parse::<u64>().is_ok(), "{line}");
        let name = line.split(['{', ' ']).next().unwrap();
        assert!(
            text.contains(&format!("# TYPE {name} ")),
            "{name} has no type"
        );
    }
}

#[test]
fn an_operation_without_waiting_is_followed_by_its_number() {
    let mut harness = Harness::new();
    let reply = harness.post(START, r#"{"action":"add","lmbs":2}"#);
    assert_eq!(reply.status, 202);
    let id = reply.json::<Operation>().id;
    harness.rig().run();
    let operation: Operation = harness.get(&format!("/api/v1/operations/{id}")).json();
    assert_eq!(operation.state, OperationState::Done);
    assert_eq!(operation.timeline.replied_ns, None, "nobody waited");
    let all: Vec<Operation> = harness.get("/api/v1/operations").json();
    assert_eq!(all, [operation]);
    let reply = harness.post(START, r#"{"action":"set","lmbs":34}"#);
    assert_eq!(reply.status, 200, "it had nothing to do");
}

#[test]
fn a_waiting_call_is_answered_at_the_end_and_others_meanwhile() {
    let mut harness = Harness::new();
    let mut waiting = harness.connect();
    let request = post(
        START,
        r#"{"action":"add","size_bytes":4194304,"wait":true}"#,
    );
    waiting.send(request.as_bytes());
    waiting.send(b"GET /api/v1/vm HTTP/1.1\r\nHost: x\r\n\r\n");
    harness.turn();
    assert!(waiting.next_reply().is_none());
    let memory: MemoryInfo = harness.get("/api/v1/memory").json();
    assert_eq!(memory.operation.unwrap().state, OperationState::Running);
    harness.rig().run();
    harness.turn();
    let reply = waiting.next_reply().unwrap();
    let operation: Operation = reply.json();
    assert_eq!((reply.status, operation.state), (200, OperationState::Done));
    assert!(operation.timeline.replied_ns > operation.timeline.last_answer_ns);
    let next: VmInfo = waiting.reply().json();
    assert_eq!(next.cpus, 2, "the pipelined request comes after");
}

#[test]
fn a_waiting_call_ends_with_its_deadline_a_successor_or_a_cancel() {
    let mut harness = Harness::new();
    let wait = |timeout_ms: u64| {
        let body = format!(r#"{{"action":"add","lmbs":1,"wait":true,"timeout_ms":{timeout_ms}}}"#);
        post(START, &body)
    };
    let mut client = harness.connect();
    client.send(wait(2_000).as_bytes());
    harness.turn();
    harness.pass_ms(2_001);
    let incomplete: Operation = client.reply().json();
    assert_eq!(incomplete.state, OperationState::Incomplete);
    assert!(incomplete.message.unwrap().contains("wanted"));

    client.send(wait(60_000).as_bytes());
    harness.turn();
    let mut second = harness.connect();
    second.send(wait(60_000).as_bytes());
    harness.turn();
    let superseded: Operation = client.reply().json();
    assert_eq!(superseded.state, OperationState::Superseded);

    let id = superseded.id + 1;
    let cancel = format!("DELETE /api/v1/operations/{id} HTTP/1.1\r\nHost: x\r\n\r\n");
    let reply = harness.call(&cancel);
    assert_eq!(reply.json::<Operation>().state, OperationState::Cancelled);
    assert_eq!(
        second.reply().json::<Operation>().state,
        OperationState::Cancelled
    );
    let again = harness.call(&cancel);
    assert_eq!(
        (again.status, again.code().as_str()),
        (409, "operation_ended")
    );
}

#[test]
fn a_call_that_waits_for_usable_is_answered_by_the_guests_report() {
    let mut harness = Harness::new();
    let body = r#"{"action":"add","lmbs":2,"wait":true,"wait_usable":true,"timeout_ms":5000}"#;
    let mut client = harness.connect();
    client.send(post(START, body).as_bytes());
    harness.turn();
    harness.rig().run();
    harness.turn();
    assert!(client.next_reply().is_none(), "done, not yet usable");
    harness.rig().report_usable(2);
    harness.turn();
    let operation: Operation = client.reply().json();
    assert!(operation.timeline.usable_ns.is_some());

    client.send(post(START, body).as_bytes());
    harness.turn();
    harness.rig().run();
    harness.pass_ms(5_001);
    let operation: Operation = client.reply().json();
    assert_eq!(operation.state, OperationState::Done);
    assert_eq!(operation.timeline.usable_ns, None);
}

#[test]
fn refusals_have_their_status_and_code() {
    let mut harness = Harness::with(Rig::without_driver());
    let cases = [
        (r#"{"action":"add","lmbs":1}"#, 409, "driver_not_active"),
        (r#"{"action":"add"}"#, 400, "bad_amount"),
        (
            r#"{"action":"add","lmbs":1,"size_bytes":2097152}"#,
            400,
            "bad_amount",
        ),
        (r#"{"action":"remove","lmbs":0}"#, 400, "zero_amount"),
        (
            r#"{"action":"add","lmbs":1,"timeout_ms":0}"#,
            400,
            "bad_timeout",
        ),
        (r#"{"action":"set","size_bytes":1000}"#, 400, "bad_size"),
        (
            r#"{"action":"set","size_bytes":2097152}"#,
            400,
            "below_boot",
        ),
        (r#"{"action":"add","lmbs":17}"#, 400, "above_max"),
        (r#"{"action":"add","lmbs":1,"gift":1}"#, 400, "bad_body"),
    ];
    for (body, status, code) in cases {
        let reply = harness.post(START, body);
        assert_eq!(
            (reply.status, reply.code().as_str()),
            (status, code),
            "{body}"
        );
    }
    assert_eq!(harness.get("/api/v1/operations/1").code(), "not_found");
    let reply = harness.post("/api/v1/memory", "");
    assert_eq!(reply.status, 405);
    assert_eq!(reply.field("allow"), Some("GET, HEAD, PATCH"));
    harness.rig().coordinator.system_reset(0);
    let reply = harness.post(START, r#"{"action":"add","lmbs":1}"#);
    assert_eq!((reply.status, reply.code().as_str()), (409, "resetting"));
}

#[test]
fn a_window_that_failed_refuses_operations_at_once() {
    let mut harness = Harness::new();
    *harness.rig().host.bomb.lock().unwrap() = true;
    harness.rig().add(1);
    harness.rig().run();
    let reply = harness.post(START, r#"{"action":"add","lmbs":1}"#);
    assert_eq!(
        (reply.status, reply.code().as_str()),
        (409, "window_failed")
    );
}

#[test]
fn power_requests_reach_the_machine_after_a_reply() {
    let mut harness = Harness::new();
    assert_eq!(harness.post("/api/v1/vm/reset", "").status, 204);
    assert_eq!(harness.post("/api/v1/vm/power-off", "{}").status, 204);
    let control = &harness.served().control;
    assert_eq!((control.resets, control.power_offs), (1, 1));
}

#[test]
fn a_client_that_goes_away_cancels_nothing() {
    let mut harness = Harness::new();
    let mut client = harness.connect();
    client.send(post(START, r#"{"action":"add","lmbs":3,"wait":true}"#).as_bytes());
    harness.turn();
    drop(client);
    harness.turn();
    harness.rig().run();
    harness.turn();
    let all: Vec<Operation> = harness.get("/api/v1/operations").json();
    assert_eq!(all[0].state, OperationState::Done);
    assert_eq!(all[0].timeline.replied_ns, None);
}

#[test]
fn a_client_that_sent_all_and_waits_gets_its_reply() {
    let mut harness = Harness::new();
    let mut client = harness.connect();
    client.send(post(START, r#"{"action":"add","lmbs":3,"wait":true}"#).as_bytes());
    client.finish_sending();
    harness.turn();
    harness.rig().run();
    harness.turn();
    assert_eq!(
        client.reply().json::<Operation>().state,
        OperationState::Done
    );
    client.receive();
    assert!(client.ended);
}
