//! The control API on a real socket in a real event loop: several clients that
//! send any bytes in any pieces, read or do not, and come and go, while a guest
//! does what it is asked to.
//!
//! Every reply is well-formed, the loop gets quiet after each step, and the
//! server still serves at the end. Limits of allocation are libFuzzer's.

#![no_main]

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use event_manager::{
    EventManager, EventOps, Events, MutEventSubscriber, SubscriberId, SubscriberOps,
};
use libfuzzer_sys::fuzz_target;
use lmb_devices::MemRequest;
use lmb_fuzz::host::Host;
use lmb_fuzz::input::Input;
use lmb_fuzz::machine::{LMB_BYTES, Machine, layout, memory};
use lmb_vmm::api::{ApiServer, Context, InterestChange, VmControl};
use lmb_vmm::protocol::{
    BootTimeline, EntryKind, ErrorReply, KernelInfo, SandboxInfo, VmInfo, VmState,
};
use lmb_vmm::timeline::Clock;

const FIRST_TOKEN: u32 = 7;
const CLIENTS: u8 = 4;
/// Longest reply that is read; the metrics have a few KiB, and the record of
/// operations is bounded.
const MAX_REPLY_BYTES: usize = 1 << 20;
/// Media types of the API.
const JSON: &str = "application/json";

static SOCKET: LazyLock<PathBuf> =
    LazyLock::new(|| std::env::temp_dir().join(format!("lmb-fuzz-http-{}", std::process::id())));

/// A machine that only notes what is asked of it.
#[derive(Default)]
struct Control {
    calls: u64,
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
            vcpu_exits: self.calls,
            sandbox: SandboxInfo::default(),
        }
    }

    fn power_off(&mut self) {
        self.calls += 1;
    }

    fn reset(&mut self) {
        self.calls += 1;
    }
}

/// What the event loop owns.
struct Served<'m> {
    api: ApiServer,
    machine: Machine<'m>,
    control: Control,
}

impl Served<'_> {
    fn context(&mut self) -> (&mut ApiServer, Context<'_>) {
        let context = Context {
            coordinator: &mut self.machine.coordinator,
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

impl MutEventSubscriber for Served<'_> {
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

/// A client, and what it has not read as replies yet.
struct Client {
    stream: UnixStream,
    received: Vec<u8>,
    /// A reply to HEAD has no body, and which reply is one is not followed: the
    /// framing is checked as long as no HEAD was sent.
    framed: bool,
}

impl Client {
    fn send(&mut self, bytes: &[u8]) {
        self.framed &= !bytes.windows(2).any(|pair| pair == b"HE" || pair == b"EA");
        // A single byte may be part of it too.
        self.framed &= bytes.len() > 3 || !bytes.iter().any(|byte| b"HEAD".contains(byte));
        let mut sent = 0;
        while let Some(rest) = bytes.get(sent..).filter(|rest| !rest.is_empty()) {
            match self.stream.write(rest) {
                Ok(length) => sent += length,
                Err(error) => {
                    let kind = error.kind();
                    let expected = matches!(kind, ErrorKind::WouldBlock | ErrorKind::BrokenPipe);
                    assert!(expected, "{error}");
                    return;
                }
            }
        }
    }

    fn receive(&mut self) {
        let mut chunk = [0; 4096];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => break,
                Ok(length) => self.received.extend_from_slice(&chunk[..length]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // Closed with bytes of ours unread, after the reply was.
                Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
                Err(error) => panic!("{error}"),
            }
        }
        if self.framed {
            while let Some(length) = check_reply(&self.received) {
                self.received.drain(..length);
            }
            assert!(self.received.len() < MAX_REPLY_BYTES);
        } else {
            self.received.clear();
        }
    }
}

/// Checks a reply and returns its length, if it is whole.
fn check_reply(bytes: &[u8]) -> Option<usize> {
    let mut headers = [httparse::EMPTY_HEADER; 16];
    let mut response = httparse::Response::new(&mut headers);
    let head = match response.parse(bytes).expect("an HTTP reply") {
        httparse::Status::Complete(length) => length,
        httparse::Status::Partial => return None,
    };
    let status = response.code.expect("a status");
    let field = |name: &str| {
        let found = response
            .headers
            .iter()
            .find(|field| field.name.eq_ignore_ascii_case(name));
        found.map(|field| std::str::from_utf8(field.value).expect("a field is text"))
    };
    if status == 100 || status == 204 {
        assert_eq!(field("content-length"), None);
        return Some(head);
    }
    assert!(matches!(
        status,
        200 | 202 | 400 | 404 | 405 | 408 | 409 | 411 | 413 | 415 | 417 | 431 | 503
    ));
    let length: usize = field("content-length")
        .expect("a length")
        .parse()
        .expect("a number");
    assert!(length < MAX_REPLY_BYTES);
    let body = bytes.get(head..head + length)?;
    if field("content-type") == Some(JSON) {
        let _: serde_json::Value = serde_json::from_slice(body).expect("JSON");
    } else {
        assert!(std::str::from_utf8(body).is_ok_and(|text| text.ends_with('\n')));
    }
    if status >= 400 {
        let error: ErrorReply = serde_json::from_slice(body).expect("a refusal");
        assert!(!error.error.is_empty() && !error.code.is_empty());
    }
    Some(head + length)
}

/// The loop and its clients.
struct Harness<'m> {
    manager: EventManager<Served<'m>>,
    id: SubscriberId,
    clients: [Option<Client>; CLIENTS as usize],
}

impl<'m> Harness<'m> {
    fn new(machine: Machine<'m>) -> Self {
        let clock: Arc<dyn Clock> = Arc::clone(&machine.clock) as _;
        let api = ApiServer::bind_with_clock(&SOCKET, FIRST_TOKEN, clock).expect("a socket");
        let mut manager = EventManager::new().expect("an event loop");
        let id = manager.add_subscriber(Served {
            api,
            machine,
            control: Control::default(),
        });
        Self {
            manager,
            id,
            clients: [const { None }; CLIENTS as usize],
        }
    }

    fn served(&mut self) -> &mut Served<'m> {
        self.manager.subscriber_mut(self.id).expect("it stays")
    }

    /// Turns of the loop until nothing is ready.
    fn turn(&mut self) {
        for _ in 0..10_000 {
            let ready = self.manager.run_with_timeout(0).expect("a turn");
            let served = self.served();
            let now_ns = served.machine.clock.now_ns();
            served.machine.coordinator.on_deadline(now_ns);
            let (api, mut context) = served.context();
            let changes = api.on_deadline(now_ns, &mut context);
            let due_ns = api.next_deadline_ns();
            assert!(due_ns.is_none_or(|due_ns| due_ns > now_ns), "spins by time");
            let quiet = ready == 0 && changes.is_empty();
            let mut ops = self.manager.event_ops(self.id).expect("it stays");
            apply(&changes, &mut ops);
            if quiet {
                return;
            }
        }
        panic!("the loop does not get quiet");
    }

    fn client(&mut self, number: usize) -> &mut Client {
        self.clients[number].get_or_insert_with(|| {
            let stream = UnixStream::connect(&*SOCKET).expect("the server listens");
            stream.set_nonblocking(true).expect("a socket");
            Client {
                stream,
                received: Vec::new(),
                framed: true,
            }
        })
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let op = input.u8();
        let number = usize::from(op % CLIENTS);
        match op / 16 {
            // Mostly a piece of a request.
            0..=8 => {
                let len = usize::from(input.u8());
                let bytes = input.bytes(len);
                self.client(number).send(bytes);
            }
            9 | 10 => self.client(number).receive(),
            11 => {
                let (byte, blocks) = (input.u8(), usize::from(input.u8()));
                self.client(number).send(&vec![byte; 512 * blocks]);
            }
            12 => {
                // A server that has closed already makes this fail.
                let _ = self.client(number).stream.shutdown(Shutdown::Write);
            }
            13 => self.clients[number] = None,
            14 => {
                let ms = u64::from(input.u16());
                self.served().machine.clock.advance_ms(ms);
            }
            _ => guest(&mut self.served().machine, input.below(8)),
        }
        self.turn();
    }

    /// All clients read and leave; another one is served.
    fn finish(&mut self) {
        for client in self.clients.iter_mut().flatten() {
            client.receive();
        }
        self.turn();
        self.clients = [const { None }; CLIENTS as usize];
        self.turn();
        let client = self.client(0);
        client.send(b"GET /api/v1/memory HTTP/1.1\r\nHost: x\r\n\r\n");
        client.framed = true;
        self.turn();
        let client = self.client(0);
        let mut reply = [0; 64 << 10];
        let length = client.stream.read(&mut reply).expect("a reply");
        assert!(reply.starts_with(b"HTTP/1.1 200 "));
        assert_eq!(check_reply(&reply[..length]), Some(length));
    }
}

/// The guest takes up to `steps` steps towards what is requested.
fn guest(machine: &mut Machine<'_>, steps: u8) {
    if machine.driver.is_none() {
        machine.probe();
    }
    let window = &machine.coordinator.memory_info().windows[0];
    machine.book.requested = window.requested_lmbs;
    machine.host.set_bound(window.requested_lmbs);
    for _ in 0..steps {
        let (have, wanted) = (machine.book.count(), machine.book.requested);
        let at = |lmb: u64| machine.book.addr + lmb * LMB_BYTES;
        let request = match have.cmp(&wanted) {
            std::cmp::Ordering::Less => MemRequest::Plug {
                addr: at(have),
                nb_blocks: 1,
            },
            std::cmp::Ordering::Greater => MemRequest::Unplug {
                addr: at(have - 1),
                nb_blocks: 1,
            },
            std::cmp::Ordering::Equal => return,
        };
        machine.ask(&[request]);
    }
}

fuzz_target!(|data: &[u8]| {
    let layout = layout();
    let parts = memory(&layout);
    let (Some(window), Some(access)) = (parts.window, parts.access) else {
        panic!("the layout has a window");
    };
    let ram = parts.guest;
    let mut machine = Machine::new(&layout, &ram, Host::new(window), access);
    machine.probe();
    let mut harness = Harness::new(machine);
    let mut input = Input::new(data);
    for _ in 0..64 {
        if input.is_empty() {
            break;
        }
        harness.step(&mut input);
    }
    harness.finish();
});
