//! A control socket that speaks HTTP with JSON: Firecracker's and Cloud
//! Hypervisor's.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;

use super::process::Process;
use crate::http::{self, HttpError};
use crate::output::printable;

/// How long a call may take.
const CALL: Duration = Duration::from_secs(30);
/// How often a socket that is not there yet is looked for.
const PERIOD: Duration = Duration::from_millis(4);
/// Most of a refusal that is shown, in characters.
const REASON_CHARS: usize = 2000;

/// The socket of one VMM.
#[derive(Clone, Debug)]
pub(super) struct Api {
    /// The VMM's name, for people.
    pub(super) vmm: &'static str,
    pub(super) socket: PathBuf,
}

impl Api {
    /// Waits until the VMM listens.
    pub(super) fn await_listening(&self, process: &mut Process) -> Result<()> {
        let start = Instant::now();
        loop {
            match http::connect(&self.socket) {
                Ok(_) => return Ok(()),
                Err(_) if start.elapsed() < CALL => {
                    process.check_alive()?;
                    thread::sleep(PERIOD);
                }
                Err(error) => return Err(self.failed("its API", &error)),
            }
        }
    }

    /// What there is at `path`.
    pub(super) fn get(&self, path: &str) -> Result<Value> {
        let body = self.call("GET", path, None)?;
        serde_json::from_slice(&body)
            .with_context(|| format!("{}'s answer to GET {path} is no JSON", self.vmm))
    }

    /// Puts or changes what is at `path`.
    pub(super) fn send(&self, method: &str, path: &str, body: &Value) -> Result<()> {
        self.call(method, path, Some(&serde_json::to_vec(body)?))
            .map(drop)
    }

    fn call(&self, method: &str, path: &str, body: Option<&[u8]>) -> Result<Vec<u8>> {
        let what = || format!("{method} {path}");
        let reply = http::exchange(&self.socket, method, path, body, CALL)
            .map_err(|error| self.failed(&what(), &error))?;
        if !(200..300).contains(&reply.status) {
            bail!(
                "{} refused {}: {} (HTTP status {})",
                self.vmm,
                what(),
                reason(&reply.body),
                reply.status
            );
        }
        Ok(reply.body)
    }

    /// The same error without advice that holds for lmb-vmm alone.
    fn failed(&self, what: &str, error: &HttpError) -> anyhow::Error {
        let reason = match error {
            HttpError::Connect { reason, .. } | HttpError::Broken { reason, .. } => {
                reason.to_string()
            }
            HttpError::Timeout { timeout, .. } => format!("no answer within {timeout:?}"),
            HttpError::Malformed { what, .. } => what.clone(),
        };
        anyhow!("{} does not answer {what}: {reason}", self.vmm)
    }
}

/// Why a request was refused, from the reply's body: Firecracker has it in
/// `fault_message`; Cloud Hypervisor sends plain text, or a list of errors, the
/// outermost first.
fn reason(body: &[u8]) -> String {
    let text = match serde_json::from_slice(body) {
        Ok(Value::Object(fields)) => fields
            .get("fault_message")
            .and_then(Value::as_str)
            .map(str::to_owned),
        Ok(Value::Array(errors)) => errors
            .iter()
            .map(Value::as_str)
            .collect::<Option<Vec<_>>>()
            .map(|errors| errors.join(": ")),
        Ok(Value::String(text)) => Some(text),
        _ => None,
    };
    let text = text.unwrap_or_else(|| String::from_utf8_lossy(body).into_owned());
    let short: String = printable(text.trim()).chars().take(REASON_CHARS).collect();
    if short.is_empty() {
        "it gives no reason".to_owned()
    } else {
        short
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Server;
    use super::*;
    use serde_json::json;

    #[test]
    fn requests_go_out_as_they_are_and_answers_come_back() {
        let server = Server::start(&[
            "HTTP/1.1 204 No Content\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 7\r\n\r\n{\"a\":1}",
        ]);
        let api = server.api("Firecracker");
        api.send("PATCH", "/vm", &json!({"state": "Paused"}))
            .unwrap();
        assert_eq!(api.get("/").unwrap(), json!({"a": 1}));
        assert_eq!(
            server.requests(),
            [
                ("PATCH /vm".to_owned(), "{\"state\":\"Paused\"}".to_owned()),
                ("GET /".to_owned(), String::new())
            ]
        );
    }

    #[test]
    fn a_refusal_names_the_request_and_the_vmms_reason() {
        // As Firecracker 1.12.1 answers.
        let server = Server::start(&["HTTP/1.1 400 \r\n\
            Server: Firecracker API\r\n\
            Connection: keep-alive\r\n\
            Content-Type: application/json\r\n\
            Content-Length: 70\r\n\r\n\
            {\"fault_message\":\"Invalid request method and/or path: PATCH hotplug.\"}"]);
        let error = server
            .api("Firecracker")
            .send("PATCH", "/hotplug/memory", &json!({}))
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "Firecracker refused PATCH /hotplug/memory: Invalid request method and/or path: PATCH \
             hotplug. (HTTP status 400)"
        );
    }

    #[test]
    fn reasons_of_both_vmms_and_of_others() {
        for (body, wanted) in [
            (
                r#"["The VM could not be resized", "No space"]"#,
                "The VM could not be resized: No space",
            ),
            ("VmResize(NotBooted)\n", "VmResize(NotBooted)"),
            ("\u{1b}[31m", "\u{fffd}[31m"),
            ("{\"other\": 1}", "{\"other\": 1}"),
            ("[1]", "[1]"),
            ("", "it gives no reason"),
        ] {
            assert_eq!(reason(body.as_bytes()), wanted);
        }
        assert!(reason(&vec![b'x'; 1 << 20]).len() <= REASON_CHARS);
    }

    #[test]
    fn an_end_without_an_answer_gives_no_advice_for_another_vmm() {
        let server = Server::start(&["HTTP/1.1 banana"]);
        let error = server
            .api("Firecracker")
            .get("/vm")
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("Firecracker does not answer GET /vm: "),
            "{error}"
        );
        assert!(!error.contains("lmb"), "{error}");
    }
}
