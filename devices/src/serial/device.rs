//! The port: vm-superio's register model behind a mutex.

use std::convert::Infallible;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use vm_superio::Trigger;
use vm_superio::serial::{Error, Serial as Uart, SerialEvents};

use super::PORT_COUNT;
use crate::bus::{BusDevice, InterruptLine, OwnerWake, lock};

type Sink = Box<dyn Write + Send>;

struct Line(Arc<dyn InterruptLine>);

impl Trigger for Line {
    type E = Infallible;

    fn trigger(&self) -> Result<(), Infallible> {
        self.0.trigger();
        Ok(())
    }
}

/// What the register model reports, kept where its methods (`&self`) can reach
/// it.
struct Events {
    lost_bytes: AtomicU64,
    /// Input is waiting outside, for want of room.
    starved: AtomicBool,
    input_wake: Arc<dyn OwnerWake>,
}

impl SerialEvents for Events {
    fn buffer_read(&self) {}

    fn out_byte(&self) {}

    fn tx_lost_byte(&self) {
        self.lost_bytes.fetch_add(1, Ordering::Relaxed);
    }

    fn in_buffer_empty(&self) {
        if self.starved.swap(false, Ordering::Relaxed) {
            self.input_wake.wake();
        }
    }
}

/// A serial port.
pub struct Serial {
    uart: Mutex<Uart<Line, Events, Sink>>,
}

impl Serial {
    /// A port whose output goes to `out`, byte by byte and flushed, on vCPU
    /// threads: `out` should not block. `input_wake` is woken when input that
    /// did not fit may be offered again.
    #[must_use]
    pub fn new(
        line: Arc<dyn InterruptLine>,
        out: Box<dyn Write + Send>,
        input_wake: Arc<dyn OwnerWake>,
    ) -> Self {
        let events = Events {
            lost_bytes: AtomicU64::new(0),
            starved: AtomicBool::new(false),
            input_wake,
        };
        Self {
            uart: Mutex::new(Uart::with_events(Line(line), events, out)),
        }
    }

    /// Gives the guest input to read. Returns how many bytes were taken, from
    /// the start of `input`; if not all, offer the rest again once woken.
    #[must_use]
    pub fn enqueue(&self, input: &[u8]) -> usize {
        let mut uart = lock(&self.uart);
        let taken = match uart.enqueue_raw_bytes(input) {
            Ok(taken) => taken,
            Err(Error::FullFifo | Error::IOError(_)) => 0,
            Err(Error::Trigger(never)) => match never {},
        };
        if taken < input.len() {
            uart.events().starved.store(true, Ordering::Relaxed);
        }
        taken
    }

    /// Output bytes that the sink did not take.
    #[must_use]
    pub fn lost_bytes(&self) -> u64 {
        lock(&self.uart).events().lost_bytes.load(Ordering::Relaxed)
    }
}

impl BusDevice for Serial {
    fn read(&self, offset: u64, data: &mut [u8]) {
        data.fill(0);
        if let ([byte], Some(register)) = (data, register(offset)) {
            *byte = lock(&self.uart).read(register);
        }
    }

    fn write(&self, offset: u64, data: &[u8]) {
        let ([byte], Some(register)) = (data, register(offset)) else {
            return;
        };
        match lock(&self.uart).write(register, *byte) {
            // Counted by `tx_lost_byte`.
            Ok(()) | Err(Error::IOError(_) | Error::FullFifo) => {}
            Err(Error::Trigger(never)) => match never {},
        }
    }
}

fn register(offset: u64) -> Option<u8> {
    u8::try_from(offset)
        .ok()
        .filter(|n| u16::from(*n) < PORT_COUNT)
}
