//! A load on a guest's memory, for measuring removals under it. It fills
//! BYTES of memory, says `load-ready`, and stays until it is killed:
//!
//! - `touched BYTES`: anonymous memory with a pattern in every page;
//! - `dirtying BYTES`: the same, and a write to every page, over and over;
//! - `pinned BYTES`: a memory file with a pattern in every page, and one page
//!   in every 4 MiB of it spliced into a pipe that nobody reads. A page in a
//!   pipe has a user beside its file, so the kernel cannot move it, as it
//!   cannot move pages under direct I/O or in a network queue. (Locking memory
//!   would not do: locked pages are moved like all others.)
//!
//! User memory comes from ZONE_MOVABLE first, where added memory lies.

use std::fs::File;
use std::hint::black_box;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::MemfdFlags;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};

const PAGE_BYTES: usize = 4096;
/// One page in this many bytes is pinned.
const PIN_EVERY_BYTES: u64 = 4 << 20;
/// Pages in a pipe of the largest size that needs no privilege (1 MiB).
const PIPE_PAGES: usize = 256;
const USAGE: &str = "usage: lmb-guest-load touched|dirtying|pinned BYTES";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lmb-guest-load: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [kind, bytes] = words.as_slice() else {
        bail!(USAGE);
    };
    let bytes: usize = bytes
        .parse()
        .with_context(|| format!("`{bytes}` is no number of bytes; {USAGE}"))?;
    match kind.as_str() {
        "touched" => {
            let memory = filled(bytes);
            ready()?;
            stay(&memory)
        }
        "dirtying" => {
            let mut memory = filled(bytes);
            ready()?;
            dirty(&mut memory)
        }
        "pinned" => {
            let pins = pinned(u64::try_from(bytes)?)?;
            ready()?;
            stay(&pins)
        }
        other => bail!("`{other}` is no load; {USAGE}"),
    }
}

fn ready() -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "load-ready")
        .and_then(|()| stdout.flush())
        .context("nobody to tell that the load is there")
}

/// Keeps `held` until this process is killed.
fn stay<T>(held: &T) -> Result<()> {
    loop {
        thread::park();
        black_box(held);
    }
}

/// Memory with something other than zero in every page.
fn filled(bytes: usize) -> Vec<u8> {
    let mut memory = vec![0_u8; bytes];
    write_each_page(&mut memory, 1);
    memory
}

fn write_each_page(memory: &mut [u8], value: u8) {
    for page in memory.chunks_mut(PAGE_BYTES) {
        page[0] = value;
    }
    black_box(memory);
}

fn dirty(memory: &mut [u8]) -> Result<()> {
    let mut value: u8 = 2;
    loop {
        write_each_page(memory, value);
        value = value.wrapping_add(1);
    }
}

/// A memory file, and pipes with some of its pages in them.
#[derive(Debug)]
struct Pins {
    _file: File,
    pipes: Vec<(OwnedFd, OwnedFd)>,
    pages: u64,
}

fn pinned(bytes: u64) -> Result<Pins> {
    let descriptor = rustix::fs::memfd_create("lmb-guest-load", MemfdFlags::CLOEXEC)
        .context("cannot make a memory file")?;
    let mut file = File::from(descriptor);
    let page = [1_u8; PAGE_BYTES];
    let pages = bytes.div_ceil(u64::try_from(PAGE_BYTES)?);
    for _ in 0..pages {
        file.write_all(&page).context("cannot fill a memory file")?;
    }
    let mut pins = Pins {
        _file: file.try_clone().context("cannot share a memory file")?,
        pipes: Vec::new(),
        pages: 0,
    };
    let mut at = 0;
    while at < bytes {
        let full = pins.pages.is_multiple_of(u64::try_from(PIPE_PAGES)?);
        if full {
            pins.pipes.push(new_pipe()?);
        }
        let (_, input) = pins.pipes.last().context("there is no pipe")?;
        let mut offset = at;
        let flags = SpliceFlags::NONBLOCK;
        let moved = splice(&file, Some(&mut offset), input, None, PAGE_BYTES, flags)
            .context("cannot put a page into a pipe")?;
        ensure!(moved == PAGE_BYTES, "a pipe took {moved} bytes of a page");
        pins.pages = pins.pages.saturating_add(1);
        at = at.saturating_add(PIN_EVERY_BYTES);
    }
    Ok(pins)
}

fn new_pipe() -> Result<(OwnedFd, OwnedFd)> {
    let ends = pipe_with(PipeFlags::CLOEXEC).context("cannot make a pipe")?;
    fcntl_setpipe_size(&ends.1, PIPE_PAGES.saturating_mul(PAGE_BYTES))
        .context("cannot make a pipe larger")?;
    Ok(ends)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::Read;

    #[test]
    fn every_page_is_touched() {
        let memory = filled(3 * PAGE_BYTES + 1);
        assert!(memory.chunks(PAGE_BYTES).all(|page| page[0] == 1));
    }

    #[test]
    fn a_page_in_four_mib_waits_in_a_pipe() {
        let bytes = 300 * PIN_EVERY_BYTES / 4;
        let pins = pinned(bytes).unwrap();
        assert_eq!(pins.pages, 75);
        let Pins { mut pipes, .. } = pins;
        let (output, input) = pipes.pop().unwrap();
        drop(input);
        let mut waiting = Vec::new();
        File::from(output).read_to_end(&mut waiting).unwrap();
        assert_eq!(waiting.len(), 75 * PAGE_BYTES);
        assert!(waiting.iter().all(|byte| *byte == 1));
    }
}
