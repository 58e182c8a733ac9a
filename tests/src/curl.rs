//! The control socket through curl: what a user without the project's own
//! tools does.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use lmb_vmm::protocol::{API_PREFIX, ErrorReply};
use serde_json::Value;

use crate::place::curl_program;

/// A reply as curl saw it.
#[derive(Clone, Debug)]
pub struct Reply {
    /// HTTP status.
    pub status: u16,
    /// Its `Content-Type`.
    pub content_type: String,
    /// Body.
    pub body: String,
}

impl Reply {
    /// The body as JSON.
    ///
    /// # Errors
    /// When it is none.
    pub fn json(&self) -> Result<Value> {
        serde_json::from_str(&self.body).with_context(|| format!("no JSON: {self:?}"))
    }

    /// The body of a refusal.
    ///
    /// # Errors
    /// When this is no 4xx with a reason.
    pub fn refusal(&self) -> Result<ErrorReply> {
        ensure!((400..500).contains(&self.status), "no 4xx: {self:?}");
        let reply: ErrorReply =
            serde_json::from_str(&self.body).with_context(|| format!("no reason: {self:?}"))?;
        ensure!(
            !reply.error.is_empty() && !reply.code.is_empty(),
            "an empty reason: {self:?}"
        );
        Ok(reply)
    }
}

/// curl on one control socket.
#[derive(Clone, Debug)]
pub struct Curl {
    socket: PathBuf,
}

impl Curl {
    pub(crate) fn new(socket: PathBuf) -> Self {
        Self { socket }
    }

    /// `GET` of a path below the API's prefix.
    ///
    /// # Errors
    /// When there is no HTTP reply.
    pub fn get(&self, path: &str) -> Result<Reply> {
        self.call(&[], path)
    }

    /// `POST` of a body to a path below the API's prefix.
    ///
    /// # Errors
    /// When there is no HTTP reply.
    pub fn post(&self, path: &str, body: &str) -> Result<Reply> {
        self.call(
            &["-H", "Content-Type: application/json", "--data-raw", body],
            path,
        )
    }

    /// Any call: curl's `options`, then a path below the API's prefix, or an
    /// absolute one that starts with two slashes.
    ///
    /// # Errors
    /// When there is no HTTP reply.
    pub fn call(&self, options: &[&str], path: &str) -> Result<Reply> {
        let url = match path.strip_prefix("//") {
            Some(path) => format!("http://localhost/{path}"),
            None => format!("http://localhost{API_PREFIX}{path}"),
        };
        let output = Command::new(curl_program()?)
            .args(["--silent", "--show-error", "--max-time", "120"])
            .arg("--unix-socket")
            .arg(&self.socket)
            .args(["--write-out", "\n%{http_code} %{content_type}"])
            .args(options)
            .arg(&url)
            .output()
            .context("cannot run curl")?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(
            output.status.success(),
            "curl {options:?} {url}: {} {text}",
            String::from_utf8_lossy(&output.stderr)
        );
        let (body, tail) = text.rsplit_once('\n').context("no status from curl")?;
        let (status, content_type) = tail.split_once(' ').context("no type from curl")?;
        Ok(Reply {
            status: status.parse().context("no status from curl")?,
            content_type: content_type.to_owned(),
            body: body.to_owned(),
        })
    }
}
