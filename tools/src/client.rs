//! The control socket's client: each call of the VMM's API as one function
//! over the types of [`lmb_vmm::protocol`].
//!
//! A [`Client`] is a path and a deadline; it holds no connection, so it can be
//! shared between threads and outlives the VM it speaks to.

use std::path::{Path, PathBuf};
use std::time::Duration;

use lmb_vmm::protocol::{
    API_PREFIX, ErrorReply, LmbList, MemoryInfo, MemoryRequest, Operation, VmInfo,
};
use serde::de::DeserializeOwned;

use crate::http::{self, HttpError, Reply};

/// How long a call that waits for nothing may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// What a waiting call allows on top of the operation's own deadline, so that
/// the VMM's answer to a passed deadline arrives.
const WAIT_MARGIN: Duration = Duration::from_secs(10);

/// Code of the refusal of an operation that no guest driver can serve.
pub const CODE_DRIVER_NOT_ACTIVE: &str = "driver_not_active";

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No exchange came about.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// The VM refused, and says why.
    #[error("{}", reply.error)]
    Refused {
        /// HTTP status, 400 to 599.
        status: u16,
        /// The VM's reason and its code.
        reply: ErrorReply,
    },
    /// A reply came that is not of this API.
    #[error(
        "the program at {} sent no legal reply ({what}); is this the control socket of an \
         lmb-vmm, and of the same version as this lmb?",
        socket.display()
    )]
    Unexpected {
        /// The socket's path.
        socket: PathBuf,
        /// What was wrong.
        what: String,
    },
}

impl ClientError {
    /// The code of the VM's refusal, if it was one.
    #[must_use]
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Refused { reply, .. } => Some(&reply.code),
            Self::Http(_) | Self::Unexpected { .. } => None,
        }
    }
}

/// A VM's control socket.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
    timeout: Duration,
}

impl Client {
    /// A client of the socket at `socket`. Nothing is opened yet.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self {
            socket: socket.into(),
            timeout: CALL_TIMEOUT,
        }
    }

    /// The same client with another deadline for calls that do not wait for
    /// an operation (default 10 s).
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The socket's path.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The VM as a whole.
    ///
    /// # Errors
    /// [`ClientError`]; so for every call below.
    pub fn vm(&self) -> Result<VmInfo, ClientError> {
        self.get("/vm")
    }

    /// The VM's memory, its windows, and the operation that runs or ran last.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn memory(&self) -> Result<MemoryInfo, ClientError> {
        self.get("/memory")
    }

    /// All LMBs of the VM, in runs of equal ones.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn lmbs(&self) -> Result<LmbList, ClientError> {
        self.get("/memory/lmbs")
    }

    /// Starts an operation on the VM's memory. With `request.wait` the reply
    /// comes when it has ended, however it ended; else at once.
    ///
    /// # Errors
    /// [`ClientError`]; a VM without an active driver refuses with
    /// [`CODE_DRIVER_NOT_ACTIVE`].
    pub fn start_operation(&self, request: &MemoryRequest) -> Result<Operation, ClientError> {
        let body = serde_json::to_vec(request).map_err(|e| self.unexpected(e.to_string()))?;
        let timeout = if request.wait {
            Duration::from_millis(request.timeout_ms).saturating_add(WAIT_MARGIN)
        } else {
            self.timeout
        };
        self.call("POST", "/memory/operations", Some(&body), timeout)
    }

    /// One operation.
    ///
    /// # Errors
    /// [`ClientError`]; the VM refuses an id it does not know.
    pub fn operation(&self, id: u64) -> Result<Operation, ClientError> {
        self.get(&format!("/operations/{id}"))
    }

    /// Cancels a running operation: the target becomes what is plugged.
    ///
    /// # Errors
    /// [`ClientError`]; the VM refuses an id it does not know or that has ended.
    pub fn cancel(&self, id: u64) -> Result<Operation, ClientError> {
        let path = format!("/operations/{id}");
        self.call("DELETE", &path, None, self.timeout)
    }

    /// The operations the VM remembers, oldest first.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn operations(&self) -> Result<Vec<Operation>, ClientError> {
        self.get("/operations")
    }

    /// Powers the VM off. The process ends after its reply.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn power_off(&self) -> Result<(), ClientError> {
        self.act("/vm/power-off")
    }

    /// Resets the VM, as its reset button would.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn reset(&self) -> Result<(), ClientError> {
        self.act("/vm/reset")
    }

    /// Metrics in Prometheus' text form.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn metrics(&self) -> Result<String, ClientError> {
        let reply = self.exchange("GET", "/metrics", None, self.timeout)?;
        let body = self.accepted(reply)?;
        String::from_utf8(body).map_err(|_| self.unexpected("metrics that are no text"))
    }

    /// Any call, its reply unread: status and body. `path` is absolute,
    /// [`API_PREFIX`] included.
    ///
    /// # Errors
    /// [`ClientError::Http`] alone: a refusal is a reply here.
    pub fn raw(
        &self,
        method: &str,
        path: &str,
        body: Option<&[u8]>,
    ) -> Result<(u16, Vec<u8>), ClientError> {
        let reply = self.exchange(method, path, body, self.timeout)?;
        Ok((reply.status, reply.body))
    }

    fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.call("GET", path, None, self.timeout)
    }

    fn act(&self, path: &str) -> Result<(), ClientError> {
        let reply = self.exchange("POST", &format!("{API_PREFIX}{path}"), None, self.timeout)?;
        self.accepted(reply).map(drop)
    }

    fn call<T: DeserializeOwned>(
        &self,
        method: &str,
        path: &str,
        body: Option<&[u8]>,
        timeout: Duration,
    ) -> Result<T, ClientError> {
        let reply = self.exchange(method, &format!("{API_PREFIX}{path}"), body, timeout)?;
        let body = self.accepted(reply)?;
        serde_json::from_slice(&body).map_err(|e| self.unexpected(e.to_string()))
    }

    fn exchange(
        &self,
        method: &str,
        path: &str,
        body: Option<&[u8]>,
        timeout: Duration,
    ) -> Result<Reply, ClientError> {
        Ok(http::exchange(&self.socket, method, path, body, timeout)?)
    }

    /// The body of a 2xx reply; every other reply as an error.
    fn accepted(&self, reply: Reply) -> Result<Vec<u8>, ClientError> {
        match reply.status {
            200..=299 => Ok(reply.body),
            status @ 400..=599 => match serde_json::from_slice(&reply.body) {
                Ok(reply) => Err(ClientError::Refused { status, reply }),
                Err(_) => Err(self.unexpected(format!("status {status} without a reason"))),
            },
            status => Err(self.unexpected(format!("status {status}"))),
        }
    }

    fn unexpected(&self, what: impl Into<String>) -> ClientError {
        ClientError::Unexpected {
            socket: self.socket.clone(),
            what: what.into(),
        }
    }
}
