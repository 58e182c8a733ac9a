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
        // A vCPU may hold the port for as long as the sink keeps it waiting;
        // nobody waits for that with nothing to give.
        if input.is_empty() {
            return 0;
        }
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

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    use super::*;
    use crate::testing::Counter;

    const FIFO_BYTES: usize = 64;
    const DATA: u64 = 0;
    const INTERRUPT_ENABLE: u64 = 1;
    const MODEM_CONTROL: u64 = 4;
    const LINE_STATUS: u64 = 5;
    const SCRATCH: u64 = 7;

    /// A sink that can be looked into, and that refuses bytes on demand.
    #[derive(Clone, Default)]
    struct Shared {
        bytes: Arc<Mutex<Vec<u8>>>,
        full: Arc<AtomicBool>,
    }

    impl Write for Shared {
        fn write(&mut self, data: &[u8]) -> io::Result<usize> {
            if self.full.load(Ordering::Relaxed) {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            lock(&self.bytes).extend_from_slice(data);
            Ok(data.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    struct Rig {
        serial: Serial,
        sink: Shared,
        line: Arc<Counter>,
        wake: Arc<Counter>,
    }

    fn rig() -> Rig {
        let (line, wake) = (Arc::new(Counter::default()), Arc::new(Counter::default()));
        let sink = Shared::default();
        Rig {
            serial: Serial::new(line.clone(), Box::new(sink.clone()), wake.clone()),
            sink,
            line,
            wake,
        }
    }

    fn read(serial: &Serial, register: u64) -> u8 {
        let mut byte = [0xaa];
        serial.read(register, &mut byte);
        byte[0]
    }

    #[test]
    fn output_reaches_the_sink_and_interrupts_if_wanted() {
        let rig = rig();
        for byte in b"quiet" {
            rig.serial.write(DATA, &[*byte]);
        }
        assert_eq!(*lock(&rig.sink.bytes), b"quiet");
        assert_eq!(rig.line.take(), 0, "not enabled");
        rig.serial.write(INTERRUPT_ENABLE, &[0b10]);
        assert_eq!(rig.line.take(), 1, "the transmitter is empty");
        assert_eq!(rig.serial.lost_bytes(), 0);
    }

    #[test]
    fn a_failing_sink_loses_bytes_and_nothing_else() {
        let rig = rig();
        rig.sink.full.store(true, Ordering::Relaxed);
        rig.serial.write(DATA, b"a");
        rig.serial.write(DATA, b"b");
        assert_eq!(rig.serial.lost_bytes(), 2);
        rig.sink.full.store(false, Ordering::Relaxed);
        rig.serial.write(DATA, b"c");
        assert_eq!(*lock(&rig.sink.bytes), b"c");
        assert_eq!(rig.serial.lost_bytes(), 2);
    }

    #[test]
    fn input_is_taken_as_far_as_it_fits_and_asked_for_again() {
        let rig = rig();
        rig.serial.write(INTERRUPT_ENABLE, &[0b01]);
        rig.line.take();
        let input: Vec<u8> = (0..100).collect();
        let taken = rig.serial.enqueue(&input);
        assert_eq!(taken, FIFO_BYTES);
        assert_eq!(rig.line.take(), 1);
        assert_eq!(rig.serial.enqueue(&input[taken..]), 0);
        assert_eq!(rig.wake.take(), 0);

        let first: Vec<u8> = (0..taken).map(|_| read(&rig.serial, DATA)).collect();
        assert_eq!(first, input[..taken]);
        assert_eq!(rig.wake.take(), 1, "there is room again");
        assert_eq!(rig.serial.enqueue(&input[taken..]), 100 - taken);
        let rest: Vec<u8> = (taken..100).map(|_| read(&rig.serial, DATA)).collect();
        assert_eq!(rest, input[taken..]);
        assert_eq!(rig.wake.take(), 0, "nobody waits");
        assert_eq!(read(&rig.serial, LINE_STATUS) & 1, 0);
    }

    /// A sink that holds its writer until it is let go.
    struct Stuck(Sender<()>, Receiver<()>);

    impl Write for Stuck {
        fn write(&mut self, data: &[u8]) -> io::Result<usize> {
            self.0.send(()).unwrap();
            self.1.recv().unwrap();
            Ok(data.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn no_input_does_not_wait_for_a_vcpu_at_a_slow_sink() {
        let (entered, inside) = channel();
        let (let_go, hold) = channel();
        let (line, wake) = (Arc::new(Counter::default()), Arc::new(Counter::default()));
        let serial = &Serial::new(line, Box::new(Stuck(entered, hold)), wake);
        let (taken, result) = channel();
        let result = std::thread::scope(|scope| {
            scope.spawn(|| serial.write(DATA, b"x"));
            inside.recv().unwrap();
            scope.spawn(move || taken.send(serial.enqueue(&[])));
            let result = result.recv_timeout(Duration::from_secs(10));
            let_go.send(()).unwrap();
            result
        });
        assert_eq!(result, Ok(0), "the owner is stuck behind the sink");
    }

    #[test]
    fn wrong_accesses_do_nothing() {
        let rig = rig();
        rig.serial.write(SCRATCH, &[0x5a]);
        rig.serial.write(SCRATCH, &[1, 2]);
        rig.serial.write(8 + SCRATCH, &[3]);
        rig.serial.write(256 + SCRATCH, &[4]);
        rig.serial.write(SCRATCH, &[]);
        assert_eq!(read(&rig.serial, SCRATCH), 0x5a);
        assert_eq!(read(&rig.serial, 256 + SCRATCH), 0);
        let mut two = [0xaa; 2];
        rig.serial.read(SCRATCH, &mut two);
        assert_eq!(two, [0, 0]);
    }

    /// Linux probes for a 16550 by loopback.
    #[test]
    fn loopback_keeps_bytes_from_the_sink_and_takes_no_input() {
        let rig = rig();
        rig.serial.write(MODEM_CONTROL, &[0x10]);
        rig.serial.write(DATA, b"x");
        assert_eq!(rig.serial.enqueue(b"input"), 0);
        assert_eq!(read(&rig.serial, DATA), b'x');
        assert!(lock(&rig.sink.bytes).is_empty());
        assert_eq!(rig.wake.take(), 1);
    }
}
