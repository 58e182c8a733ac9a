//! From a request to what is to be done: pure, so that every refusal of the
//! API's surface can be tested without a socket or a VM.

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::http::{Method, Reply};
use crate::coordinator::OperationId;
use crate::protocol::{API_PREFIX, MemoryRequest};

/// What a legal request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// The VM as a whole.
    Vm,
    /// Power the VM off.
    PowerOff,
    /// Reset the VM.
    Reset,
    /// The VM's memory.
    Memory,
    /// How each LMB stands.
    Lmbs,
    /// Start an operation on it.
    StartOperation(MemoryRequest),
    /// The operations remembered.
    Operations,
    /// One of them.
    Operation(OperationId),
    /// Cancel one.
    Cancel(OperationId),
    /// Metrics.
    Metrics,
}

/// What a route leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Endpoint {
    Vm,
    PowerOff,
    Reset,
    Memory,
    Lmbs,
    ChangeMemory,
    StartOperation,
    Operations,
    Operation,
    Cancel,
    Metrics,
}

/// Every route: method, path template, endpoint. A `{id}` stands for an
/// operation's number. HEAD is understood wherever GET is.
const ROUTES: &[(Method, &str, Endpoint)] = &[
    (Method::Get, "/api/v1/vm", Endpoint::Vm),
    (Method::Post, "/api/v1/vm/power-off", Endpoint::PowerOff),
    (Method::Post, "/api/v1/vm/reset", Endpoint::Reset),
    (Method::Get, "/api/v1/memory", Endpoint::Memory),
    (Method::Get, "/api/v1/memory/lmbs", Endpoint::Lmbs),
    (Method::Patch, "/api/v1/memory", Endpoint::ChangeMemory),
    (
        Method::Post,
        "/api/v1/memory/operations",
        Endpoint::StartOperation,
    ),
    (Method::Get, "/api/v1/operations", Endpoint::Operations),
    (Method::Get, "/api/v1/operations/{id}", Endpoint::Operation),
    (Method::Delete, "/api/v1/operations/{id}", Endpoint::Cancel),
    (Method::Get, "/metrics", Endpoint::Metrics),
];

/// Finds out what a request asks for.
///
/// # Errors
///
/// The refusal to send.
pub(super) fn route(method: &Method, target: &str, body: &[u8]) -> Result<Action, Reply> {
    let path = path_of(target)?;
    let mut allowed = Vec::new();
    let mut found = None;
    for (known, template, endpoint) in ROUTES {
        let Some(id) = matches(template, path) else {
            continue;
        };
        allowed.push(known.name());
        if known == Method::read_as(method) {
            found = Some((*endpoint, id));
        }
        if *known == Method::Get {
            allowed.push("HEAD");
        }
    }
    match found {
        Some((endpoint, id)) => action(endpoint, id, body),
        None if allowed.is_empty() => {
            let text = format!(
                "there is nothing at {path:?}; the API is described in docs/api.yaml \
                 and starts at {API_PREFIX}/vm"
            );
            Err(Reply::error(404, "not_found", text))
        }
        None => {
            let allow = allowed.join(", ");
            let text = format!(
                "{} is not possible at {path}; it takes {allow}",
                method.name()
            );
            let mut reply = Reply::error(405, "bad_method", text);
            reply.allow = Some(allow);
            Err(reply)
        }
    }
}

impl Method {
    /// The method whose route serves this one.
    fn read_as(&self) -> &Self {
        match self {
            Self::Head => &Self::Get,
            other => other,
        }
    }
}

/// The path of a request target, which may be a whole URL (RFC 9112, 3.2.2).
/// No call takes a query, so one is refused rather than ignored.
fn path_of(target: &str) -> Result<&str, Reply> {
    let path = match target.strip_prefix("http://") {
        Some(rest) => rest
            .find('/')
            .and_then(|slash| rest.get(slash..))
            .unwrap_or("/"),
        None => target,
    };
    if path.contains(['?', '#']) {
        let text = format!("{path:?} carries a query, and no call takes one; leave it out");
        return Err(Reply::error(400, "unexpected_query", text));
    }
    Ok(path)
}

/// Whether `path` fits `template`, and what stands for `{id}` in it.
fn matches<'a>(template: &str, path: &'a str) -> Option<&'a str> {
    match template.split_once("{id}") {
        None => (template == path).then_some(""),
        Some((before, after)) => path
            .strip_prefix(before)
            .and_then(|rest| rest.strip_suffix(after))
            .filter(|id| !id.is_empty() && !id.contains('/')),
    }
}

fn action(endpoint: Endpoint, id: &str, body: &[u8]) -> Result<Action, Reply> {
    match endpoint {
        Endpoint::StartOperation => return start_operation(body),
        Endpoint::ChangeMemory => return Err(change_memory(body)),
        Endpoint::PowerOff | Endpoint::Reset => no_fields(body)?,
        _ => no_body(body)?,
    }
    Ok(match endpoint {
        Endpoint::Vm => Action::Vm,
        Endpoint::PowerOff => Action::PowerOff,
        Endpoint::Reset => Action::Reset,
        Endpoint::Lmbs => Action::Lmbs,
        Endpoint::Memory | Endpoint::ChangeMemory | Endpoint::StartOperation => Action::Memory,
        Endpoint::Operations => Action::Operations,
        Endpoint::Operation => Action::Operation(operation_id(id)?),
        Endpoint::Cancel => Action::Cancel(operation_id(id)?),
        Endpoint::Metrics => Action::Metrics,
    })
}

/// An operation's number. One that no operation can have is unknown as much
/// as one that none has.
fn operation_id(id: &str) -> Result<OperationId, Reply> {
    let digits = id.bytes().all(|byte| byte.is_ascii_digit());
    match id.parse::<OperationId>() {
        Ok(number) if digits => Ok(number),
        _ => {
            let text = format!("{id:?} is not the number of an operation");
            Err(Reply::error(404, "not_found", text))
        }
    }
}

fn no_body(body: &[u8]) -> Result<(), Reply> {
    if body.is_empty() {
        return Ok(());
    }
    let text = format!("this call takes no body, but {} bytes came", body.len());
    Err(Reply::error(400, "unexpected_body", text))
}

/// Nothing, or an object without fields.
fn no_fields(body: &[u8]) -> Result<(), Reply> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Nothing {}
    if body.is_empty() {
        return Ok(());
    }
    match read_object::<Nothing>(body) {
        Ok(Nothing {}) => Ok(()),
        Err(error) => {
            let text = format!("this call takes no body, or {{}}: {error}");
            Err(Reply::error(400, "bad_body", text))
        }
    }
}

/// Reads a JSON object. Serde would also take an array for a struct, which
/// the API's description does not.
fn read_object<T: DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    if !body.trim_ascii_start().starts_with(b"{") {
        return Err("it must be a JSON object, {...}".to_owned());
    }
    serde_json::from_slice(body).map_err(|error| error.to_string())
}

fn start_operation(body: &[u8]) -> Result<Action, Reply> {
    match read_object::<MemoryRequest>(body) {
        Ok(request) => Ok(Action::StartOperation(request)),
        Err(error) => {
            let text = format!(
                "the body is not a memory request: {error}; \
                 an example is {{\"action\":\"add\",\"lmbs\":4,\"wait\":true}}"
            );
            Err(Reply::error(400, "bad_body", text))
        }
    }
}

/// Fields of the VM's memory that only its definition can change.
const FIXED_FIELDS: &[&str] = &[
    "lmb_size_bytes",
    "guest_block_size_bytes",
    "slot_size_bytes",
    "boot_bytes",
    "max_bytes",
];

/// No field can be changed while the VM runs; which refusal is right depends
/// on what the client tried.
fn change_memory(body: &[u8]) -> Reply {
    let fields = match read_object::<serde_json::Map<String, serde_json::Value>>(body) {
        Ok(fields) => fields,
        Err(error) => {
            let text = format!("the body is not a memory definition: {error}");
            return Reply::error(400, "bad_body", text);
        }
    };
    if let Some(unknown) = fields
        .keys()
        .find(|name| !FIXED_FIELDS.contains(&name.as_str()))
    {
        let text = format!(
            "{unknown:?} cannot be set here; the size of a running VM's memory is changed \
             by POST {API_PREFIX}/memory/operations"
        );
        return Reply::error(400, "bad_body", text);
    }
    match fields.keys().next() {
        None => Reply::error(400, "bad_body", "the body names nothing to change"),
        Some(name) => {
            let text = format!(
                "{name} cannot be changed while the VM runs: the guest's memory layout is built \
                 from it. The VM needs a restart: power it off and start it with the new value"
            );
            Reply::error(409, "needs_restart", text)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{ErrorReply, MemoryAction};
    use proptest::prelude::*;

    fn refused(method: &Method, target: &str, body: &str) -> (u16, String, Reply) {
        let reply = route(method, target, body.as_bytes()).unwrap_err();
        let error: ErrorReply = serde_json::from_slice(&reply.body).unwrap();
        assert!(!error.error.is_empty());
        (reply.status, error.code, reply)
    }

    #[test]
    fn every_call_is_understood() {
        use Method::{Delete, Get, Head, Post};
        let start = MemoryRequest {
            action: MemoryAction::Add,
            size_bytes: None,
            lmbs: Some(4),
            timeout_ms: 60_000,
            wait: true,
            wait_usable: false,
            ..MemoryRequest::new(MemoryAction::Add)
        };
        let body = r#"{"action":"add","lmbs":4,"wait":true}"#;
        let cases = [
            (Get, "/api/v1/vm", "", Action::Vm),
            (Head, "/api/v1/vm", "", Action::Vm),
            (Get, "http://localhost/api/v1/vm", "", Action::Vm),
            (Get, "/api/v1/memory", "", Action::Memory),
            (
                Post,
                "/api/v1/memory/operations",
                body,
                Action::StartOperation(start),
            ),
            (Get, "/api/v1/operations", "", Action::Operations),
            (Get, "/api/v1/operations/7", "", Action::Operation(7)),
            (Delete, "/api/v1/operations/7", "", Action::Cancel(7)),
            (Post, "/api/v1/vm/power-off", "", Action::PowerOff),
            (Post, "/api/v1/vm/reset", "{}", Action::Reset),
            (Get, "/metrics", "", Action::Metrics),
        ];
        for (method, target, body, action) in cases {
            assert_eq!(
                route(&method, target, body.as_bytes()),
                Ok(action),
                "{target}"
            );
        }
    }

    #[test]
    fn unknown_paths_and_methods_are_told_apart() {
        for target in [
            "/",
            "*",
            "",
            "/api/v1/vm/",
            "/api/v2/vm",
            "/api/v1/operations/",
            "//metrics",
            "/api/v1/operations/1/x",
            "http://localhost",
            "/api/v1/operations/-1",
            "/api/v1/operations/+1",
            "/api/v1/operations/99999999999999999999999",
        ] {
            let (status, code, _) = refused(&Method::Get, target, "");
            assert_eq!((status, code.as_str()), (404, "not_found"), "{target}");
        }
        let (status, code, reply) = refused(&Method::Delete, "/api/v1/memory", "");
        assert_eq!((status, code.as_str()), (405, "bad_method"));
        assert_eq!(reply.allow.as_deref(), Some("GET, HEAD, PATCH"));
        let brew = Method::Other("BREW".into());
        let (_, _, reply) = refused(&brew, "/api/v1/vm/reset", "");
        assert_eq!(reply.allow.as_deref(), Some("POST"));
        let (status, code, _) = refused(&Method::Get, "/metrics?x=1", "");
        assert_eq!((status, code.as_str()), (400, "unexpected_query"));
    }

    #[test]
    fn bodies_are_read_strictly() {
        let start = "/api/v1/memory/operations";
        for body in [
            "",
            "[]",
            r#"["add",null,1]"#,
            "{}",
            "nonsense",
            r#"{"action":"grow","lmbs":1}"#,
            r#"{"action":"add","lmbs":1,"colour":2}"#,
            r#"{"action":"add","lmbs":-1}"#,
            r#"{"action":"add","lmbs":1.5}"#,
            r#"{"action":"add","lmbs":1,"lmbs":2}"#,
            r#"{"action":"add","lmbs":1} {}"#,
            r#"{"action":"add","size_bytes":"1G"}"#,
            r#"{"action":"add","lmbs":18446744073709551616}"#,
        ] {
            let (status, code, _) = refused(&Method::Post, start, body);
            assert_eq!((status, code.as_str()), (400, "bad_body"), "{body}");
        }
        let deep = "[".repeat(60_000);
        assert_eq!(refused(&Method::Post, start, &deep).0, 400);
        assert_eq!(refused(&Method::Get, "/metrics", "{}").1, "unexpected_body");
        assert_eq!(
            refused(&Method::Post, "/api/v1/vm/reset", r#"{"hard":true}"#).1,
            "bad_body"
        );
    }

    #[test]
    fn what_the_layout_is_built_from_needs_a_restart() {
        let patch = |body| {
            let (status, code, _) = refused(&Method::Patch, "/api/v1/memory", body);
            (status, code)
        };
        assert_eq!(
            patch(r#"{"lmb_size_bytes":1073741824}"#),
            (409, "needs_restart".into())
        );
        assert_eq!(
            patch(r#"{"lmb_size_bytes":"nonsense"}"#),
            (409, "needs_restart".into())
        );
        assert_eq!(patch(r#"{"target_bytes":1}"#), (400, "bad_body".into()));
        assert_eq!(patch("{}"), (400, "bad_body".into()));
        assert_eq!(patch("lmb_size_bytes"), (400, "bad_body".into()));
    }

    /// `METHOD path` of each operation in the description, by its layout:
    /// paths two spaces in, methods four.
    fn described(yaml: &str) -> Vec<String> {
        let mut calls = Vec::new();
        let mut path = "";
        for line in yaml.lines() {
            let indent = line.len() - line.trim_start().len();
            let Some(key) = line.trim().strip_suffix(':') else {
                continue;
            };
            if indent == 2 {
                path = key;
            } else if indent == 4 && path.starts_with('/') {
                let method = key.to_ascii_uppercase();
                if ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"].contains(&method.as_str()) {
                    calls.push(format!("{method} {path}"));
                }
            }
        }
        calls.sort();
        calls
    }

    #[test]
    fn the_description_names_exactly_these_routes() {
        let yaml = include_str!("../../../docs/api.yaml");
        let mut routes: Vec<String> = ROUTES
            .iter()
            .map(|(method, path, _)| format!("{} {path}", method.name()))
            .collect();
        routes.sort();
        assert_eq!(described(yaml), routes);
    }

    proptest! {
        #[test]
        fn any_target_and_body_are_understood_or_refused(target in ".{0,40}", body in proptest::collection::vec(any::<u8>(), 0..80)) {
            for method in [Method::Get, Method::Post, Method::Patch, Method::Delete] {
                if let Err(reply) = route(&method, &target, &body) {
                    prop_assert!((400..500).contains(&reply.status));
                }
            }
        }

        #[test]
        fn no_request_body_passes_unless_it_is_one(body in "\\{\"action\":\"(add|set|remove|x)\",\"lmbs\":[0-9]{1,25}(,\"wait\":(true|1))?\\}") {
            let outcome = route(&Method::Post, "/api/v1/memory/operations", body.as_bytes());
            let read: Result<MemoryRequest, _> = serde_json::from_str(&body);
            prop_assert_eq!(outcome.is_ok(), read.is_ok());
        }
    }
}
