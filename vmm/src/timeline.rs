//! The clock of the VMM and the stamps of a boot.
//!
//! Every stamp is nanoseconds of CLOCK_MONOTONIC, taken where its event
//! happens. [`BootStamps`] has one owner, the hotplug coordinator; it is begun
//! once for the process and begun again at each reset of the guest. A stamp is
//! set once in a boot: the first event of its kind counts.

use std::fmt::Debug;

use lmb_devices::Stamp;
use rustix::time::{ClockId, Timespec, clock_gettime};

use crate::protocol::BootTimeline;

/// Nanoseconds of CLOCK_MONOTONIC now.
#[must_use]
pub fn monotonic_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::Monotonic))
}

/// The moment, by CLOCK_MONOTONIC and by the process's CPU time.
#[must_use]
pub fn stamp() -> Stamp {
    let cpu = clock_gettime(ClockId::ProcessCPUTime);
    Stamp {
        monotonic_ns: monotonic_ns(),
        cpu_ns: nanoseconds(cpu),
    }
}

fn nanoseconds(time: Timespec) -> u64 {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}

/// Where the event loop's owners take the time from, so that tests own it.
pub trait Clock: Send + Sync + Debug {
    /// Nanoseconds now, never going back.
    fn now_ns(&self) -> u64;

    /// The same, with the CPU time used so far.
    fn stamp(&self) -> Stamp;
}

/// The host's CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug, Default)]
pub struct MonotonicClock;

impl Clock for MonotonicClock {
    fn now_ns(&self) -> u64 {
        monotonic_ns()
    }

    fn stamp(&self) -> Stamp {
        stamp()
    }
}

/// An event of a boot that is stamped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BootEvent {
    /// The kernel file is read and unpacked.
    KernelRead,
    /// Guest memory is mapped.
    MemoryCreated,
    /// Kernel, initrd and tables are in guest memory.
    KernelLoaded,
    /// The boot vCPU enters the guest for the first time.
    FirstEntry,
    /// The kernel's own mark at its entry.
    KernelEntry,
    /// The guest's init runs.
    Init,
    /// The guest has loaded its hotplug driver.
    DriverLoaded,
    /// The guest has plugged what was requested at its start.
    Plugged,
    /// All of that is usable.
    Usable,
}

/// The stamps of the latest boot.
#[derive(Clone, Debug)]
pub struct BootStamps {
    timeline: BootTimeline,
    start_cpu_ns: u64,
}

impl BootStamps {
    /// The first boot, which began when the process started (`start_ns`).
    #[must_use]
    pub fn begin(start_ns: u64) -> Self {
        let timeline = BootTimeline {
            process_start_ns: start_ns,
            boots: 1,
            ..BootTimeline::default()
        };
        Self {
            timeline,
            start_cpu_ns: 0,
        }
    }

    /// A further boot of the same process, which began when the guest asked
    /// for it. All other stamps are cleared.
    pub fn begin_again(&mut self, start: Stamp) {
        self.start_cpu_ns = start.cpu_ns;
        self.timeline = BootTimeline {
            process_start_ns: start.monotonic_ns,
            boots: self.timeline.boots.saturating_add(1),
            ..BootTimeline::default()
        };
    }

    /// Stamps `event`, unless this boot has that stamp already.
    pub fn stamp(&mut self, event: BootEvent, at: Stamp) {
        let boot = &mut self.timeline;
        let since_ns = at.monotonic_ns.saturating_sub(boot.process_start_ns);
        let cpu_ns = at.cpu_ns.saturating_sub(self.start_cpu_ns);
        let (field, cpu_field) = match event {
            BootEvent::KernelRead => (&mut boot.kernel_read_ns, None),
            BootEvent::MemoryCreated => (&mut boot.memory_created_ns, None),
            BootEvent::KernelLoaded => (&mut boot.kernel_loaded_ns, None),
            BootEvent::FirstEntry => (&mut boot.first_entry_ns, Some(&mut boot.first_entry_cpu_ns)),
            BootEvent::KernelEntry => (&mut boot.kernel_entry_ns, None),
            BootEvent::Init => (&mut boot.init_ns, Some(&mut boot.init_cpu_ns)),
            BootEvent::DriverLoaded => (&mut boot.driver_loaded_ns, None),
            BootEvent::Plugged => (&mut boot.plugged_ns, Some(&mut boot.plugged_cpu_ns)),
            BootEvent::Usable => (&mut boot.usable_ns, Some(&mut boot.usable_cpu_ns)),
        };
        field.get_or_insert(since_ns);
        if let Some(cpu_field) = cpu_field {
            cpu_field.get_or_insert(cpu_ns);
        }
    }

    /// The stamps as a reply shows them.
    #[must_use]
    pub fn timeline(&self) -> &BootTimeline {
        &self.timeline
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_never_goes_back_and_is_the_one_std_uses() {
        let before = std::time::Instant::now();
        let first = monotonic_ns();
        let second = MonotonicClock.now_ns();
        let elapsed = before.elapsed();
        assert!(first > 0 && second >= first);
        assert!(u128::from(second - first) <= elapsed.as_nanos());
    }

    fn at(ns: u64) -> Stamp {
        Stamp {
            monotonic_ns: ns,
            cpu_ns: ns / 2,
        }
    }

    #[test]
    fn stamps_count_from_the_start_and_the_first_of_a_kind_stays() {
        let mut boot = BootStamps::begin(1_000);
        boot.stamp(BootEvent::Init, at(1_500));
        boot.stamp(BootEvent::Init, at(9_000));
        assert_eq!(boot.timeline().init_ns, Some(500));
        assert_eq!(boot.timeline().init_cpu_ns, Some(750));
        assert_eq!(boot.timeline().boots, 1);
    }

    #[test]
    fn a_further_boot_clears_every_stamp() {
        let mut boot = BootStamps::begin(1_000);
        for event in [
            BootEvent::MemoryCreated,
            BootEvent::KernelLoaded,
            BootEvent::FirstEntry,
            BootEvent::KernelEntry,
            BootEvent::Init,
            BootEvent::DriverLoaded,
        ] {
            boot.stamp(event, at(2_000));
        }
        boot.begin_again(at(7_000));
        let expected = BootTimeline {
            process_start_ns: 7_000,
            boots: 2,
            ..BootTimeline::default()
        };
        assert_eq!(boot.timeline(), &expected);
    }
}
