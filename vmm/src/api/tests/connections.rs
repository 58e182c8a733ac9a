//! Connections: slow, greedy, broken and hostile clients.

use proptest::prelude::*;

use super::harness::{Client, Harness, post};
use crate::api::MAX_CONNECTIONS;
use crate::protocol::VmInfo;

const GET_VM: &[u8] = b"GET /api/v1/vm HTTP/1.1\r\nHost: x\r\n\r\n";

#[test]
fn a_request_may_come_byte_by_byte() {
    let mut harness = Harness::new();
    let mut client = harness.connect();
    let request = post("/api/v1/vm/reset", "{ }");
    for byte in request.as_bytes() {
        assert!(client.next_reply().is_none());
        client.send(&[*byte]);
        harness.turn();
    }
    assert_eq!(client.reply().status, 204);
    assert_eq!(harness.served().control.resets, 1);
}

#[test]
fn pipelined_requests_are_answered_in_order_on_a_kept_connection() {
    let mut harness = Harness::new();
    let mut client = harness.connect();
    let mut requests = Vec::new();
    for number in 0..200 {
        let path = if number % 3 == 0 { "/api/v1/vm" } else { "/x" };
        requests.extend_from_slice(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes());
    }
    client.send(&requests);
    harness.turn();
    for number in 0..200 {
        // The server stops while the client's socket is full.
        harness.turn();
        let reply = client.next_reply().unwrap();
        assert_eq!(
            reply.status,
            if number % 3 == 0 { 200 } else { 404 },
            "{number}"
        );
    }
    client.send(GET_VM);
    harness.turn();
    assert_eq!(client.reply().status, 200);
    assert!(!client.ended);
}

#[test]
fn a_client_that_does_not_read_is_not_read_from() {
    let mut harness = Harness::new();
    let mut client = harness.connect();
    let mut sent = 0;
    loop {
        let now = client.send(&GET_VM.repeat(64));
        harness.turn();
        sent += now;
        if now == 0 {
            break;
        }
        assert!(sent < 8 << 20, "the server takes in without end");
    }
    // The last request may have been cut; the rest of it goes on.
    let whole = sent / GET_VM.len();
    let mut answered = 0;
    while client.next_reply().is_some() {
        answered += 1;
        harness.turn();
    }
    assert_eq!(answered, whole);
    client.send(&GET_VM[sent % GET_VM.len()..]);
    harness.turn();
    assert_eq!(client.reply().status, 200);
}

#[test]
fn connections_end_as_the_client_wants() {
    let mut harness = Harness::new();
    let mut client = harness.connect();
    client.send(b"GET /api/v1/vm HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    client.send(GET_VM);
    harness.turn();
    let reply = client.reply();
    assert_eq!(reply.field("connection"), Some("close"));
    client.receive();
    assert!(client.ended && client.leftovers().is_empty());
    let mut client = harness.connect();
    client.send(b"GET /api/v1/vm HTTP/1.0\r\n\r\n");
    harness.turn();
    assert_eq!(client.reply().status, 200);
    client.receive();
    assert!(client.ended);
}

#[test]
fn head_is_get_without_the_body() {
    let mut harness = Harness::new();
    let mut client = harness.connect();
    client.send(b"HEAD /api/v1/memory HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    harness.turn();
    assert!(client.next_reply().is_none(), "no body comes");
    let head = String::from_utf8(client.leftovers().to_vec()).unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.ends_with("\r\n\r\n"));
    assert!(client.ended);
}

#[test]
fn a_client_that_asks_before_it_sends_is_told_to() {
    let mut harness = Harness::new();
    let mut client = harness.connect();
    client.send(b"POST /api/v1/vm/reset HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
    harness.turn();
    assert_eq!(client.reply().status, 100);
    client.send(b"{}");
    harness.turn();
    assert_eq!(client.reply().status, 204);
}

#[test]
fn what_is_too_long_is_refused_and_the_refusal_can_be_read() {
    let mut harness = Harness::new();
    let body = vec![b' '; 200_000];
    let requests = [
        (
            "POST /api/v1/vm/reset HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n"
                .to_owned(),
            413,
        ),
        (format!("GET /{} HTTP/1.1\r\n", "x".repeat(20_000)), 431),
        (
            "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned(),
            411,
        ),
    ];
    for (head, status) in requests {
        let mut client = harness.connect();
        client.send(head.as_bytes());
        client.send(&body);
        harness.turn();
        assert_eq!(client.next_reply().unwrap().status, status);
        client.receive();
        assert!(client.ended);
    }
    let longest = post(
        "/api/v1/vm/reset",
        &format!("{{{}}}", " ".repeat((64 << 10) - 2)),
    );
    assert_eq!(harness.call(&longest).status, 204);
}

#[test]
fn garbage_is_answered_and_the_connection_ends() {
    let mut harness = Harness::new();
    for garbage in [
        &b"\x16\x03\x01\x00\xa5\x01"[..],
        b"\0\0\0\0",
        b"hello\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
    ] {
        let mut client = harness.connect();
        client.send(garbage);
        harness.turn();
        let reply = client.reply();
        assert!(matches!(reply.code().as_str(), "bad_http" | "bad_version"));
        client.receive();
        assert!(client.ended);
    }
}

#[test]
fn idle_and_slow_clients_are_let_go() {
    let mut harness = Harness::new();
    let (mut idle, mut slow, mut busy) = (harness.connect(), harness.connect(), harness.connect());
    slow.send(b"GET /api/v1/vm HT");
    harness.turn();
    harness.pass_ms(20_000);
    slow.send(b"TP/1.1\r\n");
    busy.send(GET_VM);
    harness.turn();
    assert_eq!(busy.reply().status, 200);
    harness.pass_ms(10_001);
    idle.receive();
    assert!(idle.ended && idle.leftovers().is_empty());
    assert_eq!(
        slow.reply().code(),
        "request_timeout",
        "a slow byte gives no new time"
    );
    busy.receive();
    assert!(!busy.ended);
    harness.pass_ms(20_000);
    busy.receive();
    assert!(busy.ended);
}

#[test]
fn a_client_in_excess_is_told_and_a_place_is_free_again_later() {
    let mut harness = Harness::new();
    let mut clients: Vec<Client> = (0..MAX_CONNECTIONS).map(|_| harness.connect()).collect();
    harness.turn();
    let mut excess = harness.connect();
    harness.turn();
    let reply = excess.reply();
    assert_eq!(
        (reply.status, reply.code().as_str()),
        (503, "too_many_clients")
    );
    clients.pop();
    harness.turn();
    assert_eq!(harness.get("/api/v1/vm").status, 200);
    clients.iter_mut().for_each(|client| {
        client.send(GET_VM);
    });
    harness.turn();
    for client in &mut clients {
        assert_eq!(client.reply().json::<VmInfo>().pid, 4);
    }
}

#[test]
fn a_client_that_vanishes_in_a_request_leaves_its_place() {
    let mut harness = Harness::new();
    for round in 0..3 * MAX_CONNECTIONS {
        let mut client = harness.connect();
        client.send(&GET_VM[..round % GET_VM.len()]);
        if round % 2 == 0 {
            harness.turn();
        }
        drop(client);
        harness.turn();
    }
    assert_eq!(harness.get("/api/v1/vm").status, 200);
}

/// Bytes that look more or less like requests.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        Just(GET_VM.to_vec()),
        Just(b"POST /api/v1/memory/operations HTTP/1.1\r\nHost: x\r\n".to_vec()),
        Just(b"Content-Length: 9\r\n\r\n{\"act".to_vec()),
        Just(b"Expect: 100-continue\r\n\r\n".to_vec()),
        Just(b"\r\n".to_vec()),
        proptest::collection::vec(any::<u8>(), 0..30),
    ];
    proptest::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_in_any_pieces_are_answered_or_waited_for(
        bytes in bytes(), cuts in proptest::collection::vec(1_usize..40, 1..20),
    ) {
        let mut harness = Harness::new();
        let mut client = harness.connect();
        let mut rest = &bytes[..];
        for cut in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (now, later) = rest.split_at((*cut).min(rest.len()));
            client.send(now);
            harness.turn();
            rest = later;
        }
        client.finish_sending();
        harness.turn();
        while let Some(reply) = client.next_reply() {
            prop_assert!(matches!(reply.status, 100 | 200 | 202 | 400..=499), "{}", reply.status);
        }
        prop_assert!(client.leftovers().is_empty(), "half a reply");
        prop_assert!(client.ended, "the connection is closed after all");
        prop_assert_eq!(harness.get("/api/v1/vm").status, 200);
    }
}
