//! The control API: HTTP/1.1 with JSON on a Unix socket, served by the event
//! loop itself, without threads and without blocking.
//!
//! - `socket`: makes the socket file, mode 0600 from its first moment.
//! - `server`: the listener and the table of connections; what the event
//!   loop calls. It owns them all.
//! - `connection`: one connection's states (reading, held, draining).
//! - `http`: heads in, replies out.
//! - `routes`: from a request to an `routes::Action`; pure.
//! - `dispatch`: carries an action out on the coordinator and the VM.
//! - `metrics`: Prometheus' text form.
//!
//! docs/api.yaml describes the API for clients; a test keeps it and the
//! routes equal.

mod connection;
mod dispatch;
mod http;
mod metrics;
mod routes;
mod server;
mod socket;
#[cfg(test)]
mod tests;

pub use dispatch::{Context, VmControl};
pub use server::{ApiServer, InterestChange, MAX_CONNECTIONS};
pub use socket::SocketError;
