//! HTTP/1.1 (RFC 9112) as far as the control API needs it: request heads by
//! httparse, bodies by Content-Length, replies.
//!
//! Nothing here keeps state; whatever bytes come, the answer is "more", a
//! head, or a refusal to send.

use serde::Serialize;

use crate::protocol::ErrorReply;

/// Longest request head, bytes, its final empty line included.
pub(super) const MAX_HEAD_BYTES: usize = 16 << 10;
/// Longest request body, bytes.
pub(super) const MAX_BODY_BYTES: usize = 64 << 10;
/// Most header fields of a request.
const MAX_HEADERS: usize = 64;

/// Sent when a client asks before it sends its body.
pub(super) const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// A request method that some route knows, or another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Method {
    /// Read.
    Get,
    /// Read, but only the head of the reply.
    Head,
    /// Do.
    Post,
    /// Change.
    Patch,
    /// Remove.
    Delete,
    /// Any other.
    Other(String),
}

impl Method {
    fn parse(name: &str) -> Self {
        match name {
            "GET" => Self::Get,
            "HEAD" => Self::Head,
            "POST" => Self::Post,
            "PATCH" => Self::Patch,
            "DELETE" => Self::Delete,
            other => Self::Other(other.to_owned()),
        }
    }

    /// The method's name.
    #[must_use]
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Get => "GET",
            Self::Head => "HEAD",
            Self::Post => "POST",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
            Self::Other(name) => name,
        }
    }
}

/// The head of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) method: Method,
    /// Path with its query, as sent.
    pub(super) target: String,
    /// Bytes of the body.
    pub(super) body_bytes: usize,
    /// Whether the client waits for `100 Continue`.
    pub(super) expects_continue: bool,
    /// Whether the connection goes on after the reply.
    pub(super) keep_alive: bool,
    /// Bytes of the head itself.
    pub(super) head_bytes: usize,
}

/// A reply, before it is encoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reply {
    /// HTTP status.
    pub(super) status: u16,
    /// Media type of the body.
    pub(super) content_type: &'static str,
    /// Body; empty for 204.
    pub(super) body: Vec<u8>,
    /// Methods the resource knows, for 405.
    pub(super) allow: Option<String>,
    /// Whether the connection must end after it, since what follows on it
    /// cannot be understood.
    pub(super) close: bool,
}

impl Reply {
    /// A JSON body.
    pub(super) fn json<T: Serialize>(status: u16, body: &T) -> Self {
        match serde_json::to_vec(body) {
            Ok(mut body) => {
                // A terminal's prompt then starts on a line of its own.
                body.push(b'\n');
                Self::new(status, "application/json", body)
            }
            Err(error) => {
                tracing::error!(%error, "a reply could not be encoded");
                let body = br#"{"error":"the reply could not be encoded","code":"internal"}"#;
                Self::new(500, "application/json", body.to_vec())
            }
        }
    }

    /// A refusal or failure with its reason.
    pub(super) fn error(status: u16, code: &str, error: impl Into<String>) -> Self {
        let body = ErrorReply {
            error: error.into(),
            code: code.to_owned(),
        };
        Self::json(status, &body)
    }

    /// No body.
    pub(super) fn no_content() -> Self {
        Self::new(204, "", Vec::new())
    }

    pub(super) fn new(status: u16, content_type: &'static str, body: Vec<u8>) -> Self {
        Self {
            status,
            content_type,
            body,
            allow: None,
            close: false,
        }
    }

    /// The same reply, after which the connection ends.
    pub(super) fn closing(mut self) -> Self {
        self.close = true;
        self
    }

    /// Appends the reply to `output`. `head_only` leaves the body out, as HEAD
    /// wants it.
    pub(super) fn encode(&self, head_only: bool, keep_alive: bool, output: &mut Vec<u8>) {
        let mut head = format!("HTTP/1.1 {} {}\r\n", self.status, reason(self.status));
        if self.status != 204 {
            head.push_str(&format!(
                "Content-Type: {}\r\nContent-Length: {}\r\n",
                self.content_type,
                self.body.len()
            ));
        }
        if let Some(allow) = &self.allow {
            head.push_str(&format!("Allow: {allow}\r\n"));
        }
        head.push_str("Cache-Control: no-store\r\n");
        if !keep_alive || self.close {
            head.push_str("Connection: close\r\n");
        }
        head.push_str("\r\n");
        output.extend_from_slice(head.as_bytes());
        if !head_only {
            output.extend_from_slice(&self.body);
        }
    }
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        202 => "Accepted",
        204 => "No Content",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        409 => "Conflict",
        411 => "Length Required",
        413 => "Content Too Large",
        415 => "Unsupported Media Type",
        417 => "Expectation Failed",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        503 => "Service Unavailable",
        _ => "Error",
    }
}

fn bad(text: impl Into<String>) -> Reply {
    Reply::error(400, "bad_http", text).closing()
}

fn head_too_long() -> Reply {
    let text = format!(
        "the request head is longer than {MAX_HEAD_BYTES} bytes or has more than {MAX_HEADERS} fields"
    );
    Reply::error(431, "head_too_long", text).closing()
}

/// Reads a request head from the start of `input`: `None` if it is not
/// complete yet.
///
/// # Errors
///
/// The refusal to send, after which the connection must end: it cannot be
/// known where the next request starts.
pub(super) fn parse_head(input: &[u8]) -> Result<Option<Head>, Reply> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut fields);
    let window = input.get(..MAX_HEAD_BYTES).unwrap_or(input);
    let head_bytes = match request.parse(window) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if input.len() >= MAX_HEAD_BYTES => {
            return Err(head_too_long());
        }
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => return Err(head_too_long()),
        Err(httparse::Error::Version) => {
            let text = "this is not HTTP/1.1 or HTTP/1.0; the control socket speaks HTTP/1.1";
            return Err(Reply::error(400, "bad_version", text).closing());
        }
        Err(error) => {
            let text = format!("the request head is not HTTP/1.1: {error}");
            return Err(bad(text));
        }
    };
    let fields = read_fields(request.headers)?;
    let http_1_0 = request.version == Some(0);
    if !http_1_0 && fields.hosts == 0 {
        return Err(bad(
            "a request of HTTP/1.1 needs a Host field; any name will do",
        ));
    }
    Ok(Some(Head {
        method: Method::parse(request.method.unwrap_or_default()),
        target: request.path.unwrap_or_default().to_owned(),
        body_bytes: fields.body_bytes.unwrap_or(0),
        expects_continue: fields.expects_continue && !http_1_0,
        keep_alive: if http_1_0 {
            fields.keep_alive
        } else {
            !fields.close
        },
        head_bytes,
    }))
}

#[derive(Default)]
struct Fields {
    body_bytes: Option<usize>,
    expects_continue: bool,
    close: bool,
    keep_alive: bool,
    hosts: usize,
}

fn read_fields(headers: &[httparse::Header<'_>]) -> Result<Fields, Reply> {
    let mut fields = Fields::default();
    for header in headers {
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        let value = std::str::from_utf8(header.value).unwrap_or("").trim();
        if is("content-length") {
            let length = body_length(value)?;
            if fields.body_bytes.is_some_and(|other| other != length) {
                return Err(bad("two Content-Length fields that differ"));
            }
            fields.body_bytes = Some(length);
        } else if is("transfer-encoding") {
            let text = "this server takes no chunked or otherwise encoded bodies; \
                        send the body with a Content-Length";
            return Err(Reply::error(411, "length_required", text).closing());
        } else if is("content-encoding") && !value.eq_ignore_ascii_case("identity") {
            let text = format!("Content-Encoding {value:?} is not understood; send plain JSON");
            return Err(Reply::error(415, "bad_encoding", text).closing());
        } else if is("expect") {
            if !value.eq_ignore_ascii_case("100-continue") {
                let text = format!("Expect: {value:?} cannot be met; leave the field out");
                return Err(Reply::error(417, "bad_expectation", text).closing());
            }
            fields.expects_continue = true;
        } else if is("connection") {
            for option in value.split(',').map(str::trim) {
                fields.close |= option.eq_ignore_ascii_case("close");
                fields.keep_alive |= option.eq_ignore_ascii_case("keep-alive");
            }
        } else if is("host") {
            fields.hosts += 1;
        }
    }
    if fields.hosts > 1 {
        return Err(bad("more than one Host field"));
    }
    Ok(fields)
}

/// Content-Length's value: decimal digits alone (RFC 9110, 8.6).
fn body_length(value: &str) -> Result<usize, Reply> {
    if value.is_empty() || !value.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(bad(format!("Content-Length {value:?} is not a number")));
    }
    match value.parse::<usize>() {
        Ok(length) if length <= MAX_BODY_BYTES => Ok(length),
        _ => {
            let text = format!(
                "a body of {value} bytes is too long; the longest is {MAX_BODY_BYTES} bytes"
            );
            Err(Reply::error(413, "body_too_long", text).closing())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn head(text: &str) -> Head {
        parse_head(text.as_bytes()).unwrap().unwrap()
    }

    fn refused(text: &str) -> (u16, String) {
        let reply = parse_head(text.as_bytes()).unwrap_err();
        assert!(reply.close);
        let body: ErrorReply = serde_json::from_slice(&reply.body).unwrap();
        (reply.status, body.code)
    }

    #[test]
    fn a_head_is_read_once_it_is_whole() {
        let text =
            "POST /x?y HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-Continue\r\n\r\n";
        for cut in 0..text.len() {
            assert_eq!(
                parse_head(&text.as_bytes()[..cut]),
                Ok(None),
                "cut at {cut}"
            );
        }
        let expected = Head {
            method: Method::Post,
            target: "/x?y".into(),
            body_bytes: 5,
            expects_continue: true,
            keep_alive: true,
            head_bytes: text.len(),
        };
        assert_eq!(head(&format!("{text}hello and more")), expected);
    }

    #[test]
    fn connections_are_kept_as_the_version_says() {
        assert!(head("GET / HTTP/1.1\r\nHost: a\r\n\r\n").keep_alive);
        assert!(!head("GET / HTTP/1.1\r\nHost: a\r\nConnection: x, Close\r\n\r\n").keep_alive);
        assert!(!head("GET / HTTP/1.0\r\n\r\n").keep_alive);
        assert!(head("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").keep_alive);
    }

    #[test]
    fn what_cannot_be_understood_is_refused_with_a_reason() {
        let with = |field: &str| format!("POST / HTTP/1.1\r\nHost: a\r\n{field}\r\n\r\n");
        let cases = [
            (with("Transfer-Encoding: chunked"), 411, "length_required"),
            (with("Content-Length: 65537"), 413, "body_too_long"),
            (
                with("Content-Length: 99999999999999999999999"),
                413,
                "body_too_long",
            ),
            (with("Content-Length: +5"), 400, "bad_http"),
            (with("Content-Length: "), 400, "bad_http"),
            (
                with("Content-Length: 1\r\nContent-Length: 2"),
                400,
                "bad_http",
            ),
            (with("Content-Encoding: gzip"), 415, "bad_encoding"),
            (with("Expect: cake"), 417, "bad_expectation"),
            (with("Host: b"), 400, "bad_http"),
            ("GET / HTTP/1.1\r\n\r\n".into(), 400, "bad_http"),
            ("PRI * HTTP/2.0\r\n\r\n".into(), 400, "bad_version"),
            ("\x16\x03\x01\x02\x00".into(), 400, "bad_http"),
            (with(&"A: b\r\n".repeat(MAX_HEADERS)), 431, "head_too_long"),
            (
                with(&format!("A: {}", "b".repeat(MAX_HEAD_BYTES))),
                431,
                "head_too_long",
            ),
        ];
        for (text, status, code) in cases {
            assert_eq!(refused(&text), (status, code.to_owned()), "{text:.60}");
        }
        assert_eq!(
            head(&with("Content-Length: 65536")).body_bytes,
            MAX_BODY_BYTES
        );
    }

    #[test]
    fn the_longest_head_is_taken_and_a_longer_one_is_not() {
        let start = "GET / HTTP/1.1\r\nHost: a\r\nA: ";
        let fill = MAX_HEAD_BYTES - start.len() - 4;
        let text = format!("{start}{}\r\n\r\n", "b".repeat(fill));
        assert_eq!(head(&text).head_bytes, MAX_HEAD_BYTES);
        let text = format!("{start}{}\r\n\r\n", "b".repeat(fill + 1));
        assert_eq!(refused(&text).0, 431);
    }

    #[test]
    fn replies_are_framed() {
        let mut output = Vec::new();
        let reply = Reply::error(404, "not_found", "no");
        reply.encode(false, true, &mut output);
        let text = String::from_utf8(output).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 404 Not Found\r\n"));
        assert!(head.contains(&format!("Content-Length: {}", body.len())));
        assert!(!head.contains("Connection"));
        let mut output = Vec::new();
        Reply::no_content().encode(false, false, &mut output);
        let text = String::from_utf8(output).unwrap();
        assert!(text.ends_with("Connection: close\r\n\r\n") && !text.contains("Length"));
    }

    proptest! {
        #[test]
        fn any_bytes_wait_or_are_read_or_refused(
            start in prop_oneof![Just(""), Just("GET / HTTP/1.1\r\n"), Just("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: ")],
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let mut input = start.as_bytes().to_vec();
            input.extend_from_slice(&bytes);
            match parse_head(&input) {
                Ok(Some(head)) => prop_assert!(head.head_bytes <= input.len() && head.body_bytes <= MAX_BODY_BYTES),
                Ok(None) => prop_assert!(input.len() < MAX_HEAD_BYTES),
                Err(reply) => prop_assert!(reply.close && (400..500).contains(&reply.status)),
            }
        }
    }
}
