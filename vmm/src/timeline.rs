//! The clock of the VMM and the stamps of a boot.
//!
//! Every stamp is nanoseconds of CLOCK_MONOTONIC, taken where its event
//! happens. [`BootStamps`] has one owner, the hotplug coordinator; it is begun
//! once for the process and begun again at each reset of the guest. A stamp is
//! set once in a boot: the first event of its kind counts.

use std::fmt::Debug;

use rustix::time::{ClockId, clock_gettime};

use crate::protocol::BootTimeline;

/// Nanoseconds of CLOCK_MONOTONIC now.
#[must_use]
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(now.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}

/// Where the event loop's owners take the time from, so that tests own it.
pub trait Clock: Send + Sync + Debug {
    /// Nanoseconds now, never going back.
    fn now_ns(&self) -> u64;
}

/// The host's CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug, Default)]
pub struct MonotonicClock;

impl Clock for MonotonicClock {
    fn now_ns(&self) -> u64 {
        monotonic_ns()
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
}

/// The stamps of the latest boot.
#[derive(Clone, Debug)]
pub struct BootStamps {
    timeline: BootTimeline,
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
        Self { timeline }
    }

    /// A further boot of the same process, which began when the guest asked
    /// for it (`start_ns`). All other stamps are cleared.
    pub fn begin_again(&mut self, start_ns: u64) {
        self.timeline = BootTimeline {
            process_start_ns: start_ns,
            boots: self.timeline.boots.saturating_add(1),
            ..BootTimeline::default()
        };
    }

    /// Stamps `event` at `at_ns` on the monotonic clock, unless this boot has
    /// that stamp already.
    pub fn stamp(&mut self, event: BootEvent, at_ns: u64) {
        let since = at_ns.saturating_sub(self.timeline.process_start_ns);
        let field = match event {
            BootEvent::KernelRead => &mut self.timeline.kernel_read_ns,
            BootEvent::MemoryCreated => &mut self.timeline.memory_created_ns,
            BootEvent::KernelLoaded => &mut self.timeline.kernel_loaded_ns,
            BootEvent::FirstEntry => &mut self.timeline.first_entry_ns,
            BootEvent::KernelEntry => &mut self.timeline.kernel_entry_ns,
            BootEvent::Init => &mut self.timeline.init_ns,
            BootEvent::DriverLoaded => &mut self.timeline.driver_loaded_ns,
        };
        field.get_or_insert(since);
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

    #[test]
    fn stamps_count_from_the_start_and_the_first_of_a_kind_stays() {
        let mut boot = BootStamps::begin(1_000);
        boot.stamp(BootEvent::Init, 1_500);
        boot.stamp(BootEvent::Init, 9_000);
        assert_eq!(boot.timeline().init_ns, Some(500));
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
            boot.stamp(event, 2_000);
        }
        boot.begin_again(7_000);
        let expected = BootTimeline {
            process_start_ns: 7_000,
            boots: 2,
            ..BootTimeline::default()
        };
        assert_eq!(boot.timeline(), &expected);
    }
}
