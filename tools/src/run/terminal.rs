//! The terminal in raw mode, and back again in every case.
//!
//! States: cooked (as found) ↔ raw. [`RawTerminal`] owns the change: dropping
//! it, suspending it, or a panic anywhere in the process restores what was
//! found. Signals do not end the process while it lives: see `signals`.

use std::io;
use std::sync::OnceLock;

use rustix::termios::{OptionalActions, OutputModes, Termios, tcgetattr, tcsetattr};

/// What was found, for the panic hook: under `panic = "abort"` nothing is
/// dropped.
static FOUND: OnceLock<Termios> = OnceLock::new();

/// Standard input in raw mode while this lives.
#[derive(Debug)]
pub(super) struct RawTerminal {
    found: Termios,
    raw: Termios,
}

impl RawTerminal {
    /// Puts standard input into raw mode. Output keeps its newline
    /// translation, so that messages of lmb and the VMM do not stair-step.
    pub(super) fn enter() -> io::Result<Self> {
        let found = tcgetattr(io::stdin())?;
        let mut raw = found.clone();
        raw.make_raw();
        raw.output_modes |= found.output_modes & (OutputModes::OPOST | OutputModes::ONLCR);
        if FOUND.set(found.clone()).is_ok() {
            let next = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                if let Some(found) = FOUND.get() {
                    // The panic is reported whether or not this works.
                    let _ = tcsetattr(io::stdin(), OptionalActions::Now, found);
                }
                next(info);
            }));
        }
        let terminal = Self { found, raw };
        terminal.resume()?;
        Ok(terminal)
    }

    /// Raw again, after [`Self::suspend`] or after a shell changed it.
    pub(super) fn resume(&self) -> io::Result<()> {
        Ok(tcsetattr(io::stdin(), OptionalActions::Now, &self.raw)?)
    }

    /// As it was found.
    pub(super) fn suspend(&self) -> io::Result<()> {
        Ok(tcsetattr(io::stdin(), OptionalActions::Now, &self.found)?)
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // A terminal that is gone needs no restoring.
        let _ = self.suspend();
    }
}
