//! One HTTP/1.1 exchange over a Unix socket: connect, write the request, read
//! the reply, close. Nothing is kept between calls, so there is no state but
//! the deadline that the whole exchange shares: a peer that drips bytes cannot
//! hold the caller longer than that.
//!
//! The peer is not trusted: head and body are bounded, lengths are checked,
//! and transfer codings that the control socket never uses are refused.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Most bytes a reply's head may have.
const HEAD_LIMIT: usize = 16 << 10;
/// Most bytes a reply's body may have.
const BODY_LIMIT: usize = 16 << 20;
/// Most header lines a reply may have.
const HEADER_LIMIT: usize = 64;

/// A reply as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// HTTP status, 100 to 999.
    pub status: u16,
    /// The body's bytes.
    pub body: Vec<u8>,
}

/// Why an exchange failed.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// Nobody listens there.
    #[error(
        "no VM answers at {} ({reason}); is the VM running? `lmb run` prints its socket",
        socket.display()
    )]
    Connect {
        /// The socket's path.
        socket: PathBuf,
        /// The operating system's reason.
        reason: std::io::Error,
    },
    /// The deadline passed.
    #[error(
        "the VM at {} did not answer within {} ms; see its log, or try again",
        socket.display(),
        timeout.as_millis()
    )]
    Timeout {
        /// The socket's path.
        socket: PathBuf,
        /// The deadline of the exchange.
        timeout: Duration,
    },
    /// The connection broke.
    #[error(
        "the connection to the VM at {} broke ({reason}); did the VM end?",
        socket.display()
    )]
    Broken {
        /// The socket's path.
        socket: PathBuf,
        /// The operating system's reason.
        reason: std::io::Error,
    },
    /// What came is no reply.
    #[error(
        "the program at {} sent no legal reply ({what}); is this the control socket of an lmb-vmm?",
        socket.display()
    )]
    Malformed {
        /// The socket's path.
        socket: PathBuf,
        /// What was wrong with it.
        what: String,
    },
}

/// Sends one request and reads its reply within `timeout`.
///
/// # Errors
/// [`HttpError`], each naming the socket and what to do.
pub fn exchange(
    socket: &Path,
    method: &str,
    path: &str,
    body: Option<&[u8]>,
    timeout: Duration,
) -> Result<Reply, HttpError> {
    let mut call = Call {
        stream: connect(socket)?,
        socket,
        timeout,
        start: Instant::now(),
    };
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\n\
         Connection: close\r\n{type_line}Content-Length: {length}\r\n\r\n",
        type_line = if body.is_some() {
            "Content-Type: application/json\r\n"
        } else {
            ""
        },
        length = body.map_or(0, <[u8]>::len),
    );
    let mut request = head.into_bytes();
    request.extend_from_slice(body.unwrap_or_default());
    // A server may answer (and close) before it has read everything, so a
    // failed write is only reported when there is no reply to read either.
    let written = call.write(&request);
    match (call.read_reply(), written) {
        (Err(HttpError::Malformed { .. } | HttpError::Broken { .. }), Err(error)) => Err(error),
        (reply, _) => reply,
    }
}

/// Connects without waiting: a Unix socket whose queue is full would otherwise
/// block for as long as its owner does not accept.
///
/// # Errors
/// [`HttpError::Connect`].
pub fn connect(socket: &Path) -> Result<UnixStream, HttpError> {
    let try_connect = || -> std::io::Result<UnixStream> {
        let address = SocketAddrUnix::new(socket)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::connect(&fd, &address)?;
        let stream = UnixStream::from(fd);
        stream.set_nonblocking(false)?;
        Ok(stream)
    };
    try_connect().map_err(|reason| HttpError::Connect {
        socket: socket.to_owned(),
        reason,
    })
}

struct Call<'a> {
    stream: UnixStream,
    socket: &'a Path,
    timeout: Duration,
    start: Instant,
}

struct Head {
    status: u16,
    length: Option<usize>,
    bytes: usize,
}

impl Call<'_> {
    fn remaining(&self) -> Result<Duration, HttpError> {
        self.timeout
            .checked_sub(self.start.elapsed())
            .filter(|left| !left.is_zero())
            .ok_or_else(|| self.timed_out())
    }

    fn timed_out(&self) -> HttpError {
        HttpError::Timeout {
            socket: self.socket.to_owned(),
            timeout: self.timeout,
        }
    }

    fn failed(&self, reason: std::io::Error) -> HttpError {
        if matches!(reason.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) {
            return self.timed_out();
        }
        HttpError::Broken {
            socket: self.socket.to_owned(),
            reason,
        }
    }

    fn malformed(&self, what: impl Into<String>) -> HttpError {
        HttpError::Malformed {
            socket: self.socket.to_owned(),
            what: what.into(),
        }
    }

    fn write(&mut self, mut bytes: &[u8]) -> Result<(), HttpError> {
        while !bytes.is_empty() {
            let left = self.remaining()?;
            self.stream
                .set_write_timeout(Some(left))
                .map_err(|e| self.failed(e))?;
            match self.stream.write(bytes) {
                Ok(0) => return Err(self.failed(ErrorKind::WriteZero.into())),
                Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(self.failed(e)),
            }
        }
        Ok(())
    }

    /// Reads some bytes; 0 at the end of the stream.
    fn read_some(&mut self, into: &mut Vec<u8>) -> Result<usize, HttpError> {
        let mut chunk = [0u8; 8192];
        loop {
            let left = self.remaining()?;
            self.stream
                .set_read_timeout(Some(left))
                .map_err(|e| self.failed(e))?;
            match self.stream.read(&mut chunk) {
                Ok(count) => {
                    into.extend_from_slice(chunk.get(..count).unwrap_or_default());
                    return Ok(count);
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(self.failed(e)),
            }
        }
    }

    fn read_reply(&mut self) -> Result<Reply, HttpError> {
        let mut bytes = Vec::new();
        let head = loop {
            if let Some(head) = self.parse_head(&bytes)? {
                break head;
            }
            if bytes.len() > HEAD_LIMIT {
                return Err(self.malformed(format!("a head of more than {HEAD_LIMIT} bytes")));
            }
            if self.read_some(&mut bytes)? == 0 {
                return Err(self.malformed(if bytes.is_empty() {
                    "it closed the connection without one"
                } else {
                    "its head was cut short"
                }));
            }
        };
        let mut body = bytes.split_off(head.bytes);
        if let Some(length) = head.length {
            if length > BODY_LIMIT {
                return Err(self.malformed(format!("a body of {length} bytes")));
            }
            while body.len() < length {
                if self.read_some(&mut body)? == 0 {
                    let got = body.len();
                    return Err(self.malformed(format!("{got} of {length} bytes of its body")));
                }
            }
            body.truncate(length);
        } else {
            while self.read_some(&mut body)? > 0 {
                if body.len() > BODY_LIMIT {
                    return Err(self.malformed(format!("a body of more than {BODY_LIMIT} bytes")));
                }
            }
        }
        Ok(Reply {
            status: head.status,
            body,
        })
    }

    fn parse_head(&self, bytes: &[u8]) -> Result<Option<Head>, HttpError> {
        let mut headers = [httparse::EMPTY_HEADER; HEADER_LIMIT];
        let mut parsed = httparse::Response::new(&mut headers);
        let end = match parsed.parse(bytes) {
            Ok(httparse::Status::Complete(end)) => end,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(e) => return Err(self.malformed(e.to_string())),
        };
        let status = parsed.code.unwrap_or_default();
        let mut length = None;
        for header in parsed.headers.iter() {
            if header.name.eq_ignore_ascii_case("transfer-encoding") {
                return Err(self.malformed("a transfer coding, which lmb does not read"));
            }
            if header.name.eq_ignore_ascii_case("content-length") {
                let value = std::str::from_utf8(header.value)
                    .ok()
                    .map(str::trim)
                    .filter(|text| text.bytes().all(|b| b.is_ascii_digit()))
                    .and_then(|text| text.parse::<usize>().ok())
                    .ok_or_else(|| self.malformed("a Content-Length that is no number"))?;
                if length.is_some_and(|known| known != value) {
                    return Err(self.malformed("two lengths for one body"));
                }
                length = Some(value);
            }
        }
        // These never have a body, whatever their headers say (RFC 9112, 6.3).
        if matches!(status, 100..=199 | 204 | 304) {
            length = Some(0);
        }
        Ok(Some(Head {
            status,
            length,
            bytes: end,
        }))
    }
}

#[cfg(test)]
#[path = "http_tests.rs"]
mod tests;
