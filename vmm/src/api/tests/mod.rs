//! The server over a real socket.

mod connections;
mod harness;
mod operations;
