//! The exchange against a real listener that speaks canned bytes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use proptest::prelude::*;
use std::os::unix::net::UnixListener;
use std::thread::JoinHandle;

/// Serves one connection: reads the whole request, writes `reply`, closes.
fn serve(reply: Vec<u8>) -> (tempfile::TempDir, PathBuf, JoinHandle<Vec<u8>>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("vm.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let request = read_request(&mut stream);
        // A client that has seen enough may be gone already.
        let _ = stream.write_all(&reply);
        request
    });
    (dir, path, server)
}

fn read_request(stream: &mut UnixStream) -> Vec<u8> {
    let mut request = Vec::new();
    let mut byte = [0u8; 1];
    while !request.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte).unwrap() == 0 {
            return request;
        }
        request.push(byte[0]);
    }
    let head = String::from_utf8(request.clone()).unwrap();
    let length: usize = head
        .lines()
        .find_map(|line| line.strip_prefix("Content-Length: "))
        .expect("every request names its length")
        .parse()
        .unwrap();
    let mut body = vec![0u8; length];
    stream.read_exact(&mut body).unwrap();
    request.extend(body);
    request
}

fn ask(reply: &[u8]) -> Result<Reply, HttpError> {
    let (_dir, path, server) = serve(reply.to_vec());
    let answer = exchange(&path, "GET", "/x", None, Duration::from_secs(20));
    server.join().unwrap();
    answer
}

fn complaint(reply: &[u8]) -> String {
    match ask(reply) {
        Err(HttpError::Malformed { what, .. }) => what,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_request_is_whole_and_its_reply_is_read_to_its_length() {
    let (_dir, path, server) =
        serve(b"HTTP/1.1 202 Accepted\r\nContent-Length: 2\r\n\r\n{}surplus".to_vec());
    let reply = exchange(
        &path,
        "POST",
        "/a/b",
        Some(b"{\"x\":1}"),
        Duration::from_secs(20),
    );
    assert_eq!(
        reply.unwrap(),
        Reply {
            status: 202,
            body: b"{}".to_vec()
        }
    );
    let request = String::from_utf8(server.join().unwrap()).unwrap();
    assert!(
        request.starts_with("POST /a/b HTTP/1.1\r\nHost: "),
        "{request}"
    );
    assert!(request.contains("\r\nConnection: close\r\n"), "{request}");
    assert!(
        request.contains("\r\nContent-Type: application/json\r\n"),
        "{request}"
    );
    assert!(request.ends_with("\r\n\r\n{\"x\":1}"), "{request}");
}

#[test]
fn without_a_length_the_body_ends_with_the_connection() {
    let reply = ask(b"HTTP/1.1 200 OK\r\nServer: x\r\n\r\nall of it").unwrap();
    assert_eq!(reply.body, b"all of it");
    let reply = ask(b"HTTP/1.1 204 No Content\r\nContent-Length: 9\r\n\r\n").unwrap();
    assert_eq!(reply.body, b"");
}

#[test]
fn hostile_and_truncated_replies_are_named() {
    assert_eq!(complaint(b""), "it closed the connection without one");
    assert_eq!(
        complaint(b"HTTP/1.1 200 OK\r\nA: b"),
        "its head was cut short"
    );
    assert_eq!(
        complaint(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12345"),
        "5 of 10 bytes of its body"
    );
    assert!(!complaint(b"SSH-2.0-OpenSSH_9.2\r\n").is_empty());
    for length in ["-1", "+1", "abc", "0x10", "99999999999999999999999"] {
        let reply = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
        assert_eq!(
            complaint(reply.as_bytes()),
            "a Content-Length that is no number"
        );
    }
    assert_eq!(
        complaint(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n"),
        "a body of 99999999999 bytes"
    );
    assert_eq!(
        complaint(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"),
        "two lengths for one body"
    );
    assert_eq!(
        complaint(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        "a transfer coding, which lmb does not read"
    );
    let mut endless = b"HTTP/1.1 200 OK\r\nA: ".to_vec();
    endless.resize(HEAD_LIMIT * 2, b'a');
    assert_eq!(complaint(&endless), "a head of more than 16384 bytes");
    let many: String = (0..=HEADER_LIMIT).map(|n| format!("H{n}: x\r\n")).collect();
    assert!(!complaint(format!("HTTP/1.1 200 OK\r\n{many}\r\n").as_bytes()).is_empty());
}

#[test]
fn a_body_without_end_is_bounded() {
    let mut endless = b"HTTP/1.1 200 OK\r\n\r\n".to_vec();
    endless.resize(BODY_LIMIT + 100_000, b'a');
    assert_eq!(complaint(&endless), "a body of more than 16777216 bytes");
}

#[test]
fn a_silent_server_meets_the_deadline() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("vm.sock");
    // Never accepted: the connection stands in the listener's queue.
    let _listener = UnixListener::bind(&path).unwrap();
    let error = exchange(&path, "GET", "/", None, Duration::from_millis(50)).unwrap_err();
    assert!(matches!(error, HttpError::Timeout { .. }), "{error:?}");
    assert!(error.to_string().contains("within 50 ms"), "{error}");
}

#[test]
fn a_missing_socket_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("none.sock");
    let error = exchange(&path, "GET", "/", None, Duration::from_secs(1)).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("none.sock"), "{text}");
    assert!(text.contains("lmb run"), "{text}");
    let long = dir.path().join("x".repeat(200));
    assert!(matches!(connect(&long), Err(HttpError::Connect { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_bytes_break_the_reader(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        cut in 0usize..=43,
    ) {
        let mut reply = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"[..cut].to_vec();
        reply.extend(&bytes);
        if let Ok(read) = ask(&reply) {
            prop_assert!(read.body.len() <= bytes.len() + 5);
        }
    }
}
