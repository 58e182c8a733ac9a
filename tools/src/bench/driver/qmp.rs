//! QEMU's control protocol (QMP), as much of it as a measurement needs: one
//! JSON object a line; a greeting, then replies with the id of their command
//! and events with the time at which they happened.
//! Source: docs/interop/qmp-spec of QEMU.
//!
//! The peer is not trusted to be QEMU: lines are bounded, and what is no
//! message ends the connection with an error.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::{Value, json};

/// Longest line taken.
const LINE_BYTES: u64 = 1 << 20;

/// A line from QEMU.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Message {
    /// The first line.
    Greeting,
    /// A command's result.
    Return(Value),
    /// A command was refused.
    Error {
        class: String,
        text: String,
    },
    Event(Event),
}

/// Something that happened by itself.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Event {
    pub(super) name: String,
    pub(super) data: Value,
    /// When it happened, on QEMU's real-time clock, in microseconds; QEMU
    /// holds some events back for up to a second.
    pub(super) realtime_us: u64,
}

/// What is wrong with a line.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum LineError {
    #[error("a line that is no JSON object ({0})")]
    Json(String),
    #[error("a line that is neither greeting, reply nor event")]
    Unknown,
}

#[derive(Deserialize)]
struct Line {
    #[serde(rename = "QMP")]
    greeting: Option<Value>,
    #[serde(rename = "return")]
    returned: Option<Value>,
    error: Option<Refusal>,
    event: Option<String>,
    #[serde(default)]
    data: Value,
    timestamp: Option<Timestamp>,
}

#[derive(Deserialize)]
struct Refusal {
    #[serde(default)]
    class: String,
    #[serde(default)]
    desc: String,
}

/// QEMU writes -1 into both where it has no clock.
#[derive(Deserialize)]
struct Timestamp {
    seconds: i64,
    microseconds: i64,
}

impl Timestamp {
    fn us(&self) -> Option<u64> {
        let seconds = u64::try_from(self.seconds).ok()?;
        let rest = u64::try_from(self.microseconds).ok()?;
        seconds.checked_mul(1_000_000)?.checked_add(rest)
    }
}

/// Reads one line.
pub(super) fn parse(line: &[u8]) -> Result<Message, LineError> {
    let line: Line =
        serde_json::from_slice(line).map_err(|error| LineError::Json(error.to_string()))?;
    if line.greeting.is_some() {
        return Ok(Message::Greeting);
    }
    if let Some(error) = line.error {
        return Ok(Message::Error {
            class: error.class,
            text: error.desc,
        });
    }
    if let Some(name) = line.event {
        return Ok(Message::Event(Event {
            name,
            data: line.data,
            realtime_us: line.timestamp.and_then(|at| at.us()).unwrap_or(0),
        }));
    }
    line.returned.map(Message::Return).ok_or(LineError::Unknown)
}

/// A connection. A thread reads, so that waiting costs nothing.
#[derive(Debug)]
pub(super) struct Qmp {
    stream: UnixStream,
    messages: Receiver<Result<Message, String>>,
    events: Vec<Event>,
}

impl Qmp {
    /// Takes the greeting and leaves negotiation mode.
    pub(super) fn open(stream: UnixStream, limit: Duration) -> Result<Self> {
        let reader = stream
            .try_clone()
            .context("cannot share QEMU's control socket")?;
        let (sender, messages) = channel();
        thread::Builder::new()
            .name("qmp".to_owned())
            .spawn(move || {
                let mut reader = BufReader::new(reader);
                loop {
                    let message = read_line(&mut reader);
                    let last = message.is_err();
                    if sender.send(message).is_err() || last {
                        return;
                    }
                }
            })
            .context("cannot start a thread")?;
        let mut qmp = Self {
            stream,
            messages,
            events: Vec::new(),
        };
        match qmp.next(limit)? {
            Some(Message::Greeting) => {}
            other => bail!("QEMU did not greet but sent {other:?}"),
        }
        qmp.execute("qmp_capabilities", &json!({}), limit)?;
        Ok(qmp)
    }

    /// Runs a command: what it returned. Events that come before are kept.
    pub(super) fn execute(
        &mut self,
        command: &str,
        arguments: &Value,
        limit: Duration,
    ) -> Result<Value> {
        let mut line = serde_json::to_vec(&json!({"execute": command, "arguments": arguments}))?;
        line.push(b'\n');
        self.stream
            .write_all(&line)
            .with_context(|| format!("cannot send {command} to QEMU"))?;
        let deadline = Instant::now() + limit;
        loop {
            match self.next(deadline.saturating_duration_since(Instant::now()))? {
                Some(Message::Return(value)) => return Ok(value),
                Some(Message::Error { class, text }) => {
                    bail!("QEMU refused {command}: {text} ({class})")
                }
                Some(Message::Event(event)) => self.events.push(event),
                Some(Message::Greeting) => bail!("QEMU greeted a second time"),
                None => bail!("QEMU did not answer {command} within {limit:?}"),
            }
        }
    }

    /// The next event, waited for until `limit` is over.
    pub(super) fn event(&mut self, limit: Duration) -> Result<Option<Event>> {
        if !self.events.is_empty() {
            return Ok(Some(self.events.remove(0)));
        }
        let deadline = Instant::now() + limit;
        loop {
            match self.next(deadline.saturating_duration_since(Instant::now()))? {
                Some(Message::Event(event)) => return Ok(Some(event)),
                Some(_) => {}
                None => return Ok(None),
            }
        }
    }

    /// Forgets events that came so far.
    pub(super) fn forget_events(&mut self) -> Result<()> {
        while self.event(Duration::ZERO)?.is_some() {}
        Ok(())
    }

    fn next(&mut self, limit: Duration) -> Result<Option<Message>> {
        match self.messages.recv_timeout(limit) {
            Ok(Ok(message)) => Ok(Some(message)),
            Ok(Err(reason)) => bail!("QEMU's control socket: {reason}"),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => bail!("QEMU's control socket is closed"),
        }
    }
}

fn read_line(reader: &mut impl BufRead) -> Result<Message, String> {
    let mut line = Vec::new();
    let mut bounded = reader.take(LINE_BYTES);
    match bounded.read_until(b'\n', &mut line) {
        Ok(0) => Err("it was closed".to_owned()),
        Ok(_) if line.last() != Some(&b'\n') => {
            Err("a line without end, or longer than 1 MiB".to_owned())
        }
        Ok(_) => parse(&line).map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GREETING: &str = r#"{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}, "package": "Debian"}, "capabilities": ["oob"]}}"#;
    const SIZE_CHANGE: &str = r#"{"timestamp": {"seconds": 1700000000, "microseconds": 25}, "event": "MEMORY_DEVICE_SIZE_CHANGE", "data": {"id": "vmem0", "size": 1073741824, "qom-path": "/machine/peripheral/vmem0"}}"#;

    #[test]
    fn the_four_kinds_of_lines() {
        assert_eq!(parse(GREETING.as_bytes()), Ok(Message::Greeting));
        assert_eq!(parse(br#"{"return": {}}"#), Ok(Message::Return(json!({}))));
        assert_eq!(
            parse(br#"{"error": {"class": "GenericError", "desc": "no such device"}}"#),
            Ok(Message::Error {
                class: "GenericError".into(),
                text: "no such device".into()
            })
        );
        let Ok(Message::Event(event)) = parse(SIZE_CHANGE.as_bytes()) else {
            panic!("no event");
        };
        assert_eq!(event.realtime_us, 1_700_000_000_000_025);
        assert_eq!(event.data["size"], json!(1 << 30));
    }

    #[test]
    fn hostile_lines_are_errors_or_harmless() {
        for line in [
            &b"{}"[..],
            b"[]",
            b"null",
            b"{\"return\"",
            b"\xff\xfe",
            b"",
            b"{\"QMP\": null}",
        ] {
            assert!(parse(line).is_err(), "{:?}", String::from_utf8_lossy(line));
        }
        for line in [
            r#"{"event": "X", "timestamp": {"seconds": -1, "microseconds": -1}}"#,
            r#"{"event": "X", "timestamp": {"seconds": 9223372036854775807, "microseconds": 1}}"#,
            r#"{"event": "X"}"#,
        ] {
            let Ok(Message::Event(event)) = parse(line.as_bytes()) else {
                panic!("{line}");
            };
            assert_eq!(event.realtime_us, 0);
        }
        let long = vec![b' '; usize::try_from(LINE_BYTES).unwrap() + 2];
        assert!(read_line(&mut &long[..]).unwrap_err().contains("1 MiB"));
        assert!(
            read_line(&mut &b"{\"return\": 1}"[..])
                .unwrap_err()
                .contains("without end")
        );
    }

    fn peer(script: &'static [u8]) -> UnixStream {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(script).unwrap();
        // Kept open as QEMU keeps it.
        std::mem::forget(theirs.try_clone().unwrap());
        ours
    }

    const WAIT: Duration = Duration::from_secs(10);

    #[test]
    fn events_before_a_reply_are_kept_in_order() {
        let stream = peer(
            b"{\"QMP\": {}}\n{\"return\": {}}\n{\"event\": \"A\"}\n{\"event\": \"B\"}\n{\"return\": 7}\n{\"event\": \"C\"}\n",
        );
        let mut qmp = Qmp::open(stream, WAIT).unwrap();
        assert_eq!(qmp.execute("query", &json!({}), WAIT).unwrap(), json!(7));
        for name in ["A", "B", "C"] {
            assert_eq!(qmp.event(WAIT).unwrap().unwrap().name, name);
        }
        assert_eq!(qmp.event(Duration::ZERO).unwrap(), None);
    }

    #[test]
    fn a_peer_that_is_not_qemu_is_refused() {
        for script in [
            &b"HTTP/1.1 400 Bad Request\r\n"[..],
            b"{\"return\": 1}\n",
            b"\n\n",
        ] {
            assert!(Qmp::open(peer(script), WAIT).is_err());
        }
        let refused = peer(b"{\"QMP\": {}}\n{\"error\": {\"class\": \"C\", \"desc\": \"why\"}}\n");
        let text = Qmp::open(refused, WAIT).unwrap_err().to_string();
        assert!(text.contains("why"), "{text}");
    }

    proptest! {
        #[test]
        fn no_bytes_break_the_parser(line in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(message) = parse(&line) {
                prop_assert!(line.contains(&b'{'), "{message:?}");
            }
        }
    }
}
