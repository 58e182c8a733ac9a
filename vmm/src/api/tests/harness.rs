//! The server in a real event loop, on a real socket; clients that read and
//! write only when the test says so, all on one thread.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use event_manager::{
    EventManager, EventOps, Events, MutEventSubscriber, SubscriberId, SubscriberOps,
};

use crate::api::{ApiServer, Context, InterestChange, VmControl};
use crate::coordinator::tests::rig::{Rig, TestClock};
use crate::protocol::{
    BootTimeline, EntryKind, ErrorReply, KernelInfo, SandboxInfo, VmInfo, VmState,
};
use crate::timeline::Clock;

const FIRST_TOKEN: u32 = 7;

/// A machine that only notes what is asked of it.
#[derive(Default)]
pub(super) struct Control {
    pub(super) power_offs: u32,
    pub(super) resets: u32,
}

impl VmControl for Control {
    fn vm_info(&self, boot: &BootTimeline) -> VmInfo {
        VmInfo {
            version: "1.2\"3".into(),
            pid: 4,
            state: VmState::Running,
            cpus: 2,
            kernel: KernelInfo {
                path: "/k".into(),
                version: None,
                entry: EntryKind::Elf,
                kaslr: false,
                cmdline: "quiet".into(),
            },
            boot: boot.clone(),
            vcpu_exits: 314,
            sandbox: SandboxInfo::default(),
        }
    }

    fn power_off(&mut self) {
        self.power_offs += 1;
    }

    fn reset(&mut self) {
        self.resets += 1;
    }
}

/// What the event loop owns.
pub(super) struct Served {
    api: ApiServer,
    pub(super) rig: Rig,
    pub(super) control: Control,
}

impl Served {
    fn context(&mut self) -> (&mut ApiServer, Context<'_>) {
        let context = Context {
            coordinator: &mut self.rig.coordinator,
            vm: &mut self.control,
        };
        (&mut self.api, context)
    }
}

fn apply(changes: &[InterestChange], ops: &mut EventOps<'_>) {
    for change in changes {
        change.apply(ops).expect("a change the event manager takes");
    }
}

impl MutEventSubscriber for Served {
    fn process(&mut self, events: Events, ops: &mut EventOps<'_>) {
        let (api, mut context) = self.context();
        let changes = api.handle(events.data(), events.event_set(), &mut context);
        apply(&changes, ops);
    }

    fn init(&mut self, ops: &mut EventOps<'_>) {
        let changes = self.api.interests();
        apply(&changes, ops);
    }
}

/// The event loop.
pub(super) struct Harness {
    manager: EventManager<Served>,
    id: SubscriberId,
    directory: tempfile::TempDir,
    pub(super) clock: Arc<TestClock>,
}

impl Harness {
    /// A VM with an active driver.
    pub(super) fn new() -> Self {
        Self::with(Rig::new())
    }

    pub(super) fn with(rig: Rig) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let clock = Arc::clone(&rig.clock);
        let shared: Arc<dyn Clock> = Arc::clone(&clock) as _;
        let api = ApiServer::bind_with_clock(&directory.path().join("s"), FIRST_TOKEN, shared);
        let mut manager = EventManager::new().unwrap();
        let id = manager.add_subscriber(Served {
            api: api.unwrap(),
            rig,
            control: Control::default(),
        });
        Self {
            manager,
            id,
            directory,
            clock,
        }
    }

    pub(super) fn served(&mut self) -> &mut Served {
        self.manager.subscriber_mut(self.id).unwrap()
    }

    pub(super) fn rig(&mut self) -> &mut Rig {
        &mut self.served().rig
    }

    pub(super) fn connect(&self) -> Client {
        let stream = UnixStream::connect(self.directory.path().join("s")).unwrap();
        stream.set_nonblocking(true).unwrap();
        Client {
            stream,
            received: Vec::new(),
            ended: false,
        }
    }

    /// Turns of the loop until nothing is ready. A loop that never gets quiet
    /// would spin in the VMM.
    pub(super) fn turn(&mut self) {
        for _ in 0..10_000 {
            let ready = self.manager.run_with_timeout(0).unwrap();
            let now_ns = self.clock.now_ns();
            let served = self.served();
            served.rig.coordinator.on_deadline(now_ns);
            let (api, mut context) = served.context();
            let changes = api.on_deadline(now_ns, &mut context);
            let due_ns = api.next_deadline_ns();
            assert!(
                due_ns.is_none_or(|due_ns| due_ns > now_ns),
                "would spin by time"
            );
            let quiet = ready == 0 && changes.is_empty();
            apply(&changes, &mut self.manager.event_ops(self.id).unwrap());
            if quiet {
                return;
            }
        }
        panic!("the loop does not get quiet");
    }

    pub(super) fn pass_ms(&mut self, ms: u64) {
        self.clock.advance_ms(ms);
        self.turn();
    }

    /// Sends a request on a connection of its own and returns the one reply.
    pub(super) fn call(&mut self, request: &str) -> Reply {
        let mut client = self.connect();
        client.send(request.as_bytes());
        self.turn();
        client.reply()
    }

    pub(super) fn get(&mut self, path: &str) -> Reply {
        self.call(&format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n"))
    }

    pub(super) fn post(&mut self, path: &str, body: &str) -> Reply {
        self.call(&post(path, body))
    }
}

pub(super) fn post(path: &str, body: &str) -> String {
    let length = body.len();
    format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n{body}")
}

pub(super) struct Client {
    stream: UnixStream,
    received: Vec<u8>,
    /// The server has closed its side.
    pub(super) ended: bool,
}

impl Client {
    /// Sends as much as the socket takes; returns how much.
    pub(super) fn send(&mut self, bytes: &[u8]) -> usize {
        let mut sent = 0;
        while sent < bytes.len() {
            match self.stream.write(&bytes[sent..]) {
                Ok(length) => sent += length,
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::BrokenPipe) =>
                {
                    break;
                }
                Err(error) => panic!("{error}"),
            }
        }
        sent
    }

    pub(super) fn finish_sending(&self) {
        // A server that has closed already makes this fail.
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Takes in what has come.
    pub(super) fn receive(&mut self) {
        let mut chunk = [0; 4096];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => {
                    self.ended = true;
                    return;
                }
                Ok(length) => self.received.extend_from_slice(&chunk[..length]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => panic!("the reply is lost: {error}"),
            }
        }
    }

    /// Takes the next whole reply, if it has come.
    pub(super) fn next_reply(&mut self) -> Option<Reply> {
        self.receive();
        let (reply, length) = Reply::parse(&self.received)?;
        self.received.drain(..length);
        Some(reply)
    }

    /// The one reply that has come.
    pub(super) fn reply(&mut self) -> Reply {
        let reply = self.next_reply().expect("a reply");
        assert!(self.received.is_empty(), "bytes after the reply");
        reply
    }

    pub(super) fn leftovers(&self) -> &[u8] {
        &self.received
    }
}

#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) fields: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

impl Reply {
    fn parse(bytes: &[u8]) -> Option<(Self, usize)> {
        let mut headers = [httparse::EMPTY_HEADER; 16];
        let mut response = httparse::Response::new(&mut headers);
        let head = match response.parse(bytes).expect("an HTTP reply") {
            httparse::Status::Complete(length) => length,
            httparse::Status::Partial => return None,
        };
        let fields: Vec<(String, String)> = response
            .headers
            .iter()
            .map(|field| {
                let value = String::from_utf8(field.value.to_vec()).unwrap();
                (field.name.to_ascii_lowercase(), value)
            })
            .collect();
        let length = fields.iter().find(|field| field.0 == "content-length");
        let length = length.map_or(0, |field| field.1.parse::<usize>().unwrap());
        let body = bytes.get(head..head + length)?.to_vec();
        let status = response.code.unwrap();
        let reply = Self {
            status,
            fields,
            body,
        };
        Some((reply, head + length))
    }

    pub(super) fn field(&self, name: &str) -> Option<&str> {
        let found = self.fields.iter().find(|field| field.0 == name);
        found.map(|field| field.1.as_str())
    }

    pub(super) fn json<T: serde::de::DeserializeOwned>(&self) -> T {
        serde_json::from_slice(&self.body).unwrap()
    }

    /// The code of a refusal, which must carry a reason.
    pub(super) fn code(&self) -> String {
        assert!(self.status >= 400, "{self:?}");
        let error: ErrorReply = self.json();
        assert!(!error.error.is_empty());
        error.code
    }
}
