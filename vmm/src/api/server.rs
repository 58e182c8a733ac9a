//! The control socket's listener and its connections, driven by the event
//! loop.
//!
//! The loop registers what [`ApiServer::interests`] says, hands every event
//! whose data is one of the server's tokens to [`ApiServer::handle`], and calls
//! [`ApiServer::on_deadline`] once in each of its turns (held replies that
//! became due are sent there too). Each of these returns the changes of
//! interest to apply at once, before the next call. A socket that is to be
//! closed lives until then, so that no event of its number can be taken for
//! another's.
//!
//! States of the listener: listening → pausing (the process has no more file
//! descriptors) → listening. At most [`MAX_CONNECTIONS`] clients are served; a
//! further one is told so and let go.

use std::io::{ErrorKind, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use event_manager::{EventOps, Events};
use vmm_sys_util::epoll::EventSet;

use super::connection::{Connection, Fate};
use super::dispatch::Context;
use super::http::Reply;
use super::socket::{ControlSocket, SocketError};
use crate::timeline::{Clock, MonotonicClock};

/// Most clients at a time.
pub const MAX_CONNECTIONS: usize = 32;
/// How long the listener rests when no connection can be accepted.
const PAUSE_NS: u64 = 1_000_000_000;

/// A change of what the event loop is to wait for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum InterestChange {
    /// A new descriptor.
    Add(RawFd, u32, EventSet),
    /// Other events of a known one.
    Modify(RawFd, u32, EventSet),
    /// One that is about to be closed.
    Remove(RawFd),
}

impl InterestChange {
    /// Applies the change to an event manager.
    ///
    /// # Errors
    ///
    /// The event manager's.
    pub fn apply(&self, ops: &mut EventOps<'_>) -> Result<(), event_manager::Error> {
        match *self {
            Self::Add(fd, token, set) => ops.add(Events::with_data_raw(fd, token, set)),
            Self::Modify(fd, token, set) => ops.modify(Events::with_data_raw(fd, token, set)),
            Self::Remove(fd) => ops.remove(Events::empty_raw(fd)),
        }
    }
}

struct Client {
    connection: Connection,
    /// What the event loop waits for.
    interest: EventSet,
}

/// See the module's head.
pub struct ApiServer {
    socket: ControlSocket,
    first_token: u32,
    clients: Vec<Option<Client>>,
    closing: Vec<UnixStream>,
    changes: Vec<InterestChange>,
    paused_until_ns: Option<u64>,
    next_deadline_ns: Option<u64>,
    clock: Arc<dyn Clock>,
}

impl ApiServer {
    /// Makes the control socket at `path`. Tokens are `first_token` and the
    /// [`MAX_CONNECTIONS`] after it.
    ///
    /// # Errors
    ///
    /// [`SocketError`].
    pub fn bind(path: &Path, first_token: u32) -> Result<Self, SocketError> {
        Self::bind_with_clock(path, first_token, Arc::new(MonotonicClock))
    }

    /// The same with another clock.
    ///
    /// # Errors
    ///
    /// [`SocketError`].
    pub fn bind_with_clock(
        path: &Path,
        first_token: u32,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, SocketError> {
        let socket = ControlSocket::bind(path)?;
        tracing::info!(path = %socket.path().display(), "control socket");
        let listener = socket.listener().as_raw_fd();
        Ok(Self {
            socket,
            first_token,
            clients: (0..MAX_CONNECTIONS).map(|_| None).collect(),
            closing: Vec::new(),
            changes: vec![InterestChange::Add(listener, first_token, EventSet::IN)],
            paused_until_ns: None,
            next_deadline_ns: None,
            clock,
        })
    }

    /// What to wait for at first.
    #[must_use]
    pub fn interests(&mut self) -> Vec<InterestChange> {
        std::mem::take(&mut self.changes)
    }

    /// When [`ApiServer::on_deadline`] is to be called at the latest, on the
    /// clock.
    #[must_use]
    pub fn next_deadline_ns(&self) -> Option<u64> {
        self.next_deadline_ns
    }

    /// Takes an event of one of the server's descriptors.
    pub fn handle(
        &mut self,
        token: u32,
        ready: EventSet,
        context: &mut Context<'_>,
    ) -> Vec<InterestChange> {
        self.closing.clear();
        let slot = token
            .checked_sub(self.first_token)
            .and_then(|offset| usize::try_from(offset).ok());
        match slot {
            Some(0) => self.accept(),
            Some(slot) => {
                let clock = Arc::clone(&self.clock);
                self.with_client(slot - 1, |connection| {
                    connection.on_ready(ready, &*clock, context)
                });
            }
            None => {}
        }
        self.settle(context);
        self.changes_after(context)
    }

    /// Does what is due at `now_ns`, and sends held replies whose operation
    /// has ended.
    pub fn on_deadline(&mut self, now_ns: u64, context: &mut Context<'_>) -> Vec<InterestChange> {
        self.closing.clear();
        if self
            .paused_until_ns
            .is_some_and(|until_ns| until_ns <= now_ns)
        {
            self.paused_until_ns = None;
            self.listen_for(EventSet::IN);
        }
        self.settle(context);
        let clock = Arc::clone(&self.clock);
        for slot in 0..self.clients.len() {
            self.with_client(slot, |connection| {
                let coordinator = &context.coordinator;
                let due_ns =
                    connection.deadline_ns(|held| coordinator.reply_deadline_ns(held.operation));
                if due_ns <= now_ns {
                    connection.on_deadline(&*clock, context)
                } else {
                    Fate::Keep
                }
            });
        }
        self.changes_after(context)
    }

    /// Sends held replies that have become due. What one client's further
    /// requests do may make another's reply due, so until nothing changes.
    fn settle(&mut self, context: &mut Context<'_>) {
        let clock = Arc::clone(&self.clock);
        for _ in 0..MAX_CONNECTIONS {
            let now_ns = clock.now_ns();
            let due = |client: &Client| {
                client.connection.held().is_some_and(|held| {
                    let coordinator = &context.coordinator;
                    coordinator.reply_due(held.operation, held.wait_usable, now_ns)
                })
            };
            let found = self
                .clients
                .iter()
                .position(|slot| slot.as_ref().is_some_and(due));
            let Some(slot) = found else {
                return;
            };
            self.with_client(slot, |connection| connection.settle(&*clock, context));
        }
    }

    /// Lets a client's connection do something and takes the consequences.
    fn with_client(&mut self, slot: usize, act: impl FnOnce(&mut Connection) -> Fate) {
        let Some(place) = self.clients.get_mut(slot) else {
            return;
        };
        let Some(client) = place.as_mut() else {
            return;
        };
        let fate = act(&mut client.connection);
        let fd = client.connection.stream().as_raw_fd();
        if fate == Fate::Close {
            if let Some(client) = place.take() {
                self.closing.push(client.connection.into_stream());
            }
            self.changes.push(InterestChange::Remove(fd));
            return;
        }
        let interest = client.connection.interest();
        if interest != client.interest {
            client.interest = interest;
            let token = token_of(self.first_token, slot);
            self.changes
                .push(InterestChange::Modify(fd, token, interest));
        }
    }

    fn changes_after(&mut self, context: &Context<'_>) -> Vec<InterestChange> {
        let coordinator = &context.coordinator;
        let clients = self.clients.iter().flatten().map(|client| {
            client
                .connection
                .deadline_ns(|held| coordinator.reply_deadline_ns(held.operation))
        });
        self.next_deadline_ns = clients.chain(self.paused_until_ns).min();
        std::mem::take(&mut self.changes)
    }

    fn listen_for(&mut self, set: EventSet) {
        let fd = self.socket.listener().as_raw_fd();
        self.changes
            .push(InterestChange::Modify(fd, self.first_token, set));
    }

    /// Accepts what is waiting, a bounded number of times.
    fn accept(&mut self) {
        for _ in 0..MAX_CONNECTIONS {
            match self.socket.listener().accept() {
                Ok((stream, _)) => self.admit(stream),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::Interrupted | ErrorKind::ConnectionAborted
                    ) => {}
                Err(error) => {
                    tracing::warn!(%error, "no connection can be accepted for a moment");
                    let now_ns = self.clock.now_ns();
                    self.paused_until_ns = Some(now_ns.saturating_add(PAUSE_NS));
                    self.listen_for(EventSet::empty());
                    return;
                }
            }
        }
    }

    fn admit(&mut self, stream: UnixStream) {
        if let Err(error) = stream.set_nonblocking(true) {
            tracing::warn!(%error, "a connection could not be taken");
            return;
        }
        let Some(slot) = self.clients.iter().position(Option::is_none) else {
            turn_away(&stream);
            return;
        };
        let interest = EventSet::IN;
        let (fd, token) = (stream.as_raw_fd(), token_of(self.first_token, slot));
        self.changes.push(InterestChange::Add(fd, token, interest));
        if let Some(place) = self.clients.get_mut(slot) {
            let connection = Connection::new(stream, self.clock.now_ns());
            *place = Some(Client {
                connection,
                interest,
            });
        }
    }
}

fn token_of(first_token: u32, slot: usize) -> u32 {
    // There are MAX_CONNECTIONS slots, so this neither fails nor saturates
    // unless the first token was chosen at the end of the range.
    let offset = u32::try_from(slot.saturating_add(1)).unwrap_or(u32::MAX);
    first_token.saturating_add(offset)
}

/// Tells a client that there are too many. The reply fits any socket's empty
/// buffer; a client that sent before it read may see its end only.
fn turn_away(mut stream: &UnixStream) {
    let text = format!("{MAX_CONNECTIONS} clients are connected, which is the most; try again");
    let mut output = Vec::new();
    Reply::error(503, "too_many_clients", text)
        .closing()
        .encode(false, false, &mut output);
    if let Err(error) = stream.write_all(&output) {
        tracing::debug!(%error, "a client in excess was not told");
    }
}
