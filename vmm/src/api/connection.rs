//! One connection of a client.
//!
//! States: *reading* (a request is awaited or coming in) → *held* (its reply
//! waits for an operation) → reading; any → *draining* (the last reply is
//! written and our side shut; what the client still sends is read and thrown
//! away for a moment, since closing before it is read would take the reply
//! away from the client) → closed. Nothing is read while a reply is held or
//! being written, so a client cannot make the VMM hold more than one reply and
//! one request for it.
//!
//! Each state has one deadline, set when it is entered and at the first byte
//! of a request; a slow byte does not move it. Owner: the server.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use vmm_sys_util::epoll::EventSet;

use super::dispatch::{Context, Held, Outcome, dispatch, held_reply};
use super::http::{CONTINUE, Head, MAX_BODY_BYTES, MAX_HEAD_BYTES, Method, Reply, parse_head};
use super::routes::route;
use crate::timeline::Clock;

/// How long a client may be idle, take to send a request, or take to read a
/// reply.
const PATIENCE_NS: u64 = 30_000_000_000;
/// How long what a client sends is thrown away after the last reply.
const DRAIN_NS: u64 = 2_000_000_000;
/// How much of it.
const DRAIN_BYTES: usize = 16 << 20;
/// Bytes taken from the socket at once.
const CHUNK_BYTES: usize = 16 << 10;
/// Requests served in one go, so that one client cannot keep the loop.
const REQUESTS_AT_ONCE: usize = 16;

/// Whether a connection goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Keep,
    Close,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Reading,
    Held(HeldCall),
    Draining { left_bytes: usize },
}

#[derive(Clone, Copy, Debug)]
struct HeldCall {
    held: Held,
    head_only: bool,
}

/// See the module's head.
#[derive(Debug)]
pub(super) struct Connection {
    stream: UnixStream,
    phase: Phase,
    input: Vec<u8>,
    /// The head of the request whose body is coming in.
    head: Option<Head>,
    output: Vec<u8>,
    written: usize,
    /// The client will send no more.
    ended: bool,
    /// Close after the output.
    last: bool,
    deadline_ns: u64,
}

impl Connection {
    /// A connection just accepted; its stream must not block.
    pub(super) fn new(stream: UnixStream, now_ns: u64) -> Self {
        Self {
            stream,
            phase: Phase::Reading,
            input: Vec::new(),
            head: None,
            output: Vec::new(),
            written: 0,
            ended: false,
            last: false,
            deadline_ns: now_ns.saturating_add(PATIENCE_NS),
        }
    }

    pub(super) fn stream(&self) -> &UnixStream {
        &self.stream
    }

    pub(super) fn into_stream(self) -> UnixStream {
        self.stream
    }

    /// What to wait for.
    pub(super) fn interest(&self) -> EventSet {
        if self.writing() {
            return EventSet::OUT;
        }
        match self.phase {
            Phase::Reading | Phase::Draining { .. } => EventSet::IN,
            Phase::Held(_) => EventSet::empty(),
        }
    }

    fn writing(&self) -> bool {
        self.written < self.output.len()
    }

    /// When [`Connection::on_deadline`] is next to be called.
    pub(super) fn deadline_ns(&self, context_deadline: impl Fn(Held) -> Option<u64>) -> u64 {
        match self.phase {
            Phase::Held(call) if !self.writing() => context_deadline(call.held).unwrap_or(0),
            _ => self.deadline_ns,
        }
    }

    /// The operation a held reply waits for.
    pub(super) fn held(&self) -> Option<Held> {
        match self.phase {
            Phase::Held(call) => Some(call.held),
            _ => None,
        }
    }

    fn patience(&mut self, clock: &dyn Clock) {
        self.deadline_ns = clock.now_ns().saturating_add(PATIENCE_NS);
    }

    /// Goes on after the socket became ready.
    pub(super) fn on_ready(
        &mut self,
        ready: EventSet,
        clock: &dyn Clock,
        context: &mut Context<'_>,
    ) -> Fate {
        if ready.contains(EventSet::ERROR) {
            return Fate::Close;
        }
        let gone = ready.contains(EventSet::HANG_UP);
        if gone && (self.held().is_some() || self.writing()) {
            return Fate::Close;
        }
        if ready.intersects(EventSet::IN | EventSet::HANG_UP) && !self.writing() {
            match self.phase {
                Phase::Reading => {
                    if self.fill(clock) == Fate::Close {
                        return Fate::Close;
                    }
                }
                Phase::Draining { left_bytes } => return self.drain(left_bytes),
                Phase::Held(_) => {}
            }
        }
        self.advance(clock, context)
    }

    /// Sends a held reply that has become due.
    pub(super) fn settle(&mut self, clock: &dyn Clock, context: &mut Context<'_>) -> Fate {
        let Phase::Held(call) = self.phase else {
            return Fate::Keep;
        };
        let Some(reply) = held_reply(call.held, clock.now_ns(), context) else {
            return Fate::Keep;
        };
        self.phase = Phase::Reading;
        self.push(&reply, call.head_only, clock);
        self.advance(clock, context)
    }

    /// The deadline has passed.
    pub(super) fn on_deadline(&mut self, clock: &dyn Clock, context: &mut Context<'_>) -> Fate {
        match self.phase {
            Phase::Held(_) if !self.writing() => self.settle(clock, context),
            Phase::Reading if !self.writing() && !self.input.is_empty() => {
                let text = format!(
                    "the request was not complete after {} seconds",
                    PATIENCE_NS / 1_000_000_000
                );
                let reply = Reply::error(408, "request_timeout", text).closing();
                self.push(&reply, false, clock);
                self.advance(clock, context)
            }
            _ => Fate::Close,
        }
    }

    /// Takes in what has come, as far as there is room for a request.
    fn fill(&mut self, clock: &dyn Clock) -> Fate {
        let mut chunk = [0; CHUNK_BYTES];
        while self.input.len() < MAX_HEAD_BYTES + MAX_BODY_BYTES {
            match self.stream.read(&mut chunk) {
                Ok(0) => {
                    self.ended = true;
                    return Fate::Keep;
                }
                Ok(length) => {
                    if self.input.is_empty() {
                        self.patience(clock);
                    }
                    self.input
                        .extend_from_slice(chunk.get(..length).unwrap_or_default());
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Fate::Keep,
                Err(_) => return Fate::Close,
            }
        }
        Fate::Keep
    }

    /// Throws away what comes.
    fn drain(&mut self, mut left_bytes: usize) -> Fate {
        let mut chunk = [0; CHUNK_BYTES];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(length) if length > 0 && length <= left_bytes => left_bytes -= length,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.phase = Phase::Draining { left_bytes };
                    return Fate::Keep;
                }
                _ => return Fate::Close,
            }
        }
    }

    /// Writes what there is to write and serves the requests that are there.
    fn advance(&mut self, clock: &dyn Clock, context: &mut Context<'_>) -> Fate {
        for _ in 0..REQUESTS_AT_ONCE {
            if self.flush(clock) == Fate::Close {
                return Fate::Close;
            }
            if self.writing() || !matches!(self.phase, Phase::Reading) {
                return Fate::Keep;
            }
            if self.last {
                return self.start_draining(clock);
            }
            if !self.serve_one(clock, context) {
                return if self.ended { Fate::Close } else { Fate::Keep };
            }
        }
        // The last reply is not written yet: the socket, ready for it, brings
        // the loop back here after the others' turn.
        Fate::Keep
    }

    fn start_draining(&mut self, clock: &dyn Clock) -> Fate {
        if self.stream.shutdown(Shutdown::Write).is_err() {
            return Fate::Close;
        }
        self.input = Vec::new();
        self.deadline_ns = clock.now_ns().saturating_add(DRAIN_NS);
        self.drain(DRAIN_BYTES)
    }

    fn flush(&mut self, clock: &dyn Clock) -> Fate {
        if !self.writing() {
            return Fate::Keep;
        }
        while let Some(rest) = self
            .output
            .get(self.written..)
            .filter(|rest| !rest.is_empty())
        {
            match self.stream.write(rest) {
                Ok(0) => return Fate::Close,
                Ok(length) => self.written = self.written.saturating_add(length),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Fate::Keep,
                Err(_) => return Fate::Close,
            }
        }
        self.output.clear();
        self.written = 0;
        self.patience(clock);
        Fate::Keep
    }

    fn push(&mut self, reply: &Reply, head_only: bool, clock: &dyn Clock) {
        self.last |= reply.close;
        reply.encode(head_only, !self.last, &mut self.output);
        self.patience(clock);
    }

    /// Serves the request at the start of the input. Returns whether something
    /// was done: a reply, a hold, or an interim reply.
    fn serve_one(&mut self, clock: &dyn Clock, context: &mut Context<'_>) -> bool {
        let (head, body) = match self.take_request() {
            Ok(Some(request)) => request,
            Ok(None) => return self.wait_for_more(clock),
            Err(reply) => {
                self.push(&reply, false, clock);
                return true;
            }
        };
        let accepted_ns = clock.now_ns();
        let head_only = head.method == Method::Head;
        self.last = !head.keep_alive;
        let outcome = match route(&head.method, &head.target, &body) {
            Ok(action) => {
                tracing::debug!(
                    method = head.method.name(),
                    target = head.target,
                    "API call"
                );
                dispatch(action, accepted_ns, context)
            }
            Err(reply) => Outcome::Reply(reply),
        };
        match outcome {
            Outcome::Reply(reply) => self.push(&reply, head_only, clock),
            Outcome::Hold(held) => match held_reply(held, accepted_ns, context) {
                Some(reply) => self.push(&reply, head_only, clock),
                None => self.phase = Phase::Held(HeldCall { held, head_only }),
            },
        }
        true
    }

    /// A request is incomplete: what is to be done about it.
    fn wait_for_more(&mut self, clock: &dyn Clock) -> bool {
        if self.ended && !self.input.is_empty() {
            let text = "the connection ended within a request";
            let reply = Reply::error(400, "bad_http", text).closing();
            self.input.clear();
            self.push(&reply, false, clock);
            return true;
        }
        match &mut self.head {
            Some(head) if head.expects_continue => {
                head.expects_continue = false;
                self.output.extend_from_slice(CONTINUE);
                true
            }
            _ => false,
        }
    }

    /// Takes a whole request from the start of the input.
    fn take_request(&mut self) -> Result<Option<(Head, Vec<u8>)>, Reply> {
        let head = match self.head.take() {
            Some(head) => head,
            None => match parse_head(&self.input)? {
                Some(head) => head,
                None => return Ok(None),
            },
        };
        let end = head.head_bytes.saturating_add(head.body_bytes);
        let Some(body) = self.input.get(head.head_bytes..end) else {
            self.head = Some(head);
            return Ok(None);
        };
        let body = body.to_vec();
        self.input.drain(..end);
        Ok(Some((head, body)))
    }
}
