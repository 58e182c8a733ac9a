//! Asking a hung QEMU for its state by its monitor socket.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long the monitor may take for all questions.
const LIMIT: Duration = Duration::from_secs(10);

const PROMPT: &[u8] = b"(qemu) ";

/// The monitor's answers to the questions that tell where the processors are.
/// What goes wrong while asking becomes part of the text.
pub(super) fn state(socket: &Path) -> String {
    let mut text = String::new();
    if let Err(error) = ask(socket, &mut text) {
        text.push_str(&format!("\n(the monitor said no more: {error})\n"));
    }
    text
}

fn ask(socket: &Path, text: &mut String) -> std::io::Result<()> {
    let deadline = Instant::now() + LIMIT;
    let mut stream = UnixStream::connect(socket)?;
    answer(&mut stream, deadline)?;
    for question in ["info status", "info cpus", "info registers -a", "info pic"] {
        stream.set_write_timeout(Some(remaining(deadline)?))?;
        stream.write_all(question.as_bytes())?;
        stream.write_all(b"\n")?;
        let reply = answer(&mut stream, deadline)?;
        text.push_str(&format!("== {question}\n{}\n", plain(&reply, question)));
    }
    Ok(())
}

/// Reads up to the next prompt.
fn answer(stream: &mut UnixStream, deadline: Instant) -> std::io::Result<Vec<u8>> {
    let mut reply = Vec::new();
    let mut buffer = [0; 4096];
    while !reply.ends_with(PROMPT) {
        stream.set_read_timeout(Some(remaining(deadline)?))?;
        let count = stream.read(&mut buffer)?;
        if count == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        reply.extend_from_slice(&buffer[..count]);
    }
    reply.truncate(reply.len() - PROMPT.len());
    Ok(reply)
}

fn remaining(deadline: Instant) -> std::io::Result<Duration> {
    deadline
        .checked_duration_since(Instant::now())
        .filter(|left| !left.is_zero())
        .ok_or_else(|| std::io::ErrorKind::TimedOut.into())
}

/// The reply without the echo of the question, which readline draws with
/// escape sequences, letter by letter, on its first line.
fn plain(reply: &[u8], question: &str) -> String {
    let text = String::from_utf8_lossy(reply).replace('\r', "");
    match text.split_once('\n') {
        Some((echo, rest)) if echo.contains(&question[..1]) => rest.to_owned(),
        _ => text,
    }
}
