//! What the log says of a guest that misbehaves on purpose.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, OnceLock};

use lmb_devices::mmio::registers::{STATUS, STATUS_FAILED};
use lmb_memory::{FaultKind, WindowOp};
use tracing::{Dispatch, Level};

use super::rig::Rig;
use crate::protocol::MemoryAction;

/// Where a test's log goes.
#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl Write for Sink {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(data);
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn subscriber(sink: &Sink) -> Dispatch {
    let sink = sink.clone();
    Dispatch::new(
        tracing_subscriber::fmt()
            .with_max_level(Level::INFO)
            .with_ansi(false)
            .with_writer(move || sink.clone())
            .finish(),
    )
}

/// What is logged at info and above while `act` runs.
fn logged(act: impl FnOnce()) -> Vec<String> {
    // With two subscribers in the process, tracing asks each of them whether a
    // message is wanted, and not only that of the thread that came first.
    static OTHER: OnceLock<Dispatch> = OnceLock::new();
    OTHER.get_or_init(|| subscriber(&Sink::default()));
    let sink = Sink::default();
    tracing::dispatcher::with_default(&subscriber(&sink), act);
    let text = String::from_utf8(sink.0.lock().unwrap().clone()).unwrap();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn a_driver_that_gives_up_again_and_again_is_told_of_once() {
    let lines = logged(|| {
        let mut rig = Rig::without_driver();
        for _ in 0..20 {
            rig.probe();
            rig.guest().driver.mmio.add_status(STATUS_FAILED);
            rig.coordinator.on_device_wake();
            rig.guest().driver.mmio.write(STATUS, 0);
        }
    });
    let of = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
    assert_eq!(of("gave up"), 1, "{lines:?}");
    assert_eq!(of("driver is active"), 1, "{lines:?}");
    assert_eq!(lines.len(), 2, "{lines:?}");
}

#[test]
fn changes_that_fail_are_told_of_once_and_when_the_reason_is_another() {
    let mut rig = Rig::new();
    rig.start(MemoryAction::Add, 1, 600_000).unwrap();
    let mut failure = |kind, pause_ms| {
        rig.faults.fail(WindowOp::Open, 1, kind);
        logged(|| {
            rig.pass_ms(pause_ms);
            rig.run();
        })
    };
    let first = failure(FaultKind::OutOfMemory, 0);
    assert_eq!(first.len(), 1, "{first:?}");
    assert!(first[0].contains("WARN") && first[0].contains("was undone"));
    for pause_ms in [1_001, 2_001, 4_001, 8_001] {
        let again = failure(FaultKind::OutOfMemory, pause_ms);
        assert_eq!(again.len(), 0, "{again:?}");
    }
    let another = failure(FaultKind::MappingLimit, 16_001);
    assert_eq!(another.len(), 1, "{another:?}");
    assert!(another[0].contains("max_map_count"), "{another:?}");
    let soon = failure(FaultKind::OutOfMemory, 32_001);
    assert_eq!(soon.len(), 1, "the pause is over: {soon:?}");
}
