//! A control socket in this process, for tests of those who call one.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixListener;
use std::thread::{self, JoinHandle};

use super::api::Api;

/// A server that gives the next of its replies to each connection.
pub(super) struct Server {
    place: tempfile::TempDir,
    serving: JoinHandle<Vec<(String, String)>>,
}

impl Server {
    pub(super) fn start(replies: &[&str]) -> Self {
        let place = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(place.path().join("api.sock")).unwrap();
        let replies: Vec<String> = replies.iter().map(|&reply| reply.to_owned()).collect();
        let serving = thread::spawn(move || {
            let answer = |reply: String| {
                let (stream, _) = listener.accept().unwrap();
                let mut reader = BufReader::new(stream);
                let mut head = Vec::new();
                loop {
                    let mut line = String::new();
                    reader.read_line(&mut line).unwrap();
                    let line = line.trim_end().to_owned();
                    if line.is_empty() {
                        break;
                    }
                    head.push(line);
                }
                let length = head
                    .iter()
                    .find_map(|line| line.strip_prefix("Content-Length: "))
                    .map_or(0, |length| length.parse().unwrap());
                let mut body = vec![0; length];
                reader.read_exact(&mut body).unwrap();
                reader.get_mut().write_all(reply.as_bytes()).unwrap();
                let request = head[0].strip_suffix(" HTTP/1.1").unwrap().to_owned();
                (request, String::from_utf8(body).unwrap())
            };
            replies.into_iter().map(answer).collect()
        });
        Self { place, serving }
    }

    pub(super) fn api(&self, vmm: &'static str) -> Api {
        Api {
            vmm,
            socket: self.place.path().join("api.sock"),
        }
    }

    /// The requests that came, once each reply was given: the first line
    /// without the protocol, and the body.
    pub(super) fn requests(self) -> Vec<(String, String)> {
        self.serving.join().unwrap()
    }
}

/// A reply with a JSON body.
pub(super) fn ok(body: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// A reply without a body.
pub(super) const DONE: &str = "HTTP/1.1 204 No Content\r\n\r\n";
