//! lmb-vmm, which stamps everything itself and tells over its control socket.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use lmb_vmm::protocol::{
    BootTimeline, LmbChange, LmbOutcome, MemoryAction, MemoryRequest, Operation, OperationState,
    VmInfo,
};

use super::process::{Process, Running};
use super::{Booted, Change, Changed, Driver, Vm, span};
use crate::bench::sample::{BootPhases, Config, DlparPhases, Span};
use crate::bench::work::GuestFiles;
use crate::client::Client;

/// How often the VMM is asked whether the guest has come further. Each
/// question takes a one-CPU host some tenths of a millisecond from the guest.
const PERIOD: Duration = Duration::from_millis(500);

/// See the module's head.
#[derive(Debug)]
pub(super) struct Lmb {
    pub(super) program: PathBuf,
}

impl Driver for Lmb {
    fn start(&self, config: &Config, files: &GuestFiles, place: &Path) -> Result<Box<dyn Vm>> {
        let socket = place.join("api.sock");
        let mut command = Command::new(&self.program);
        command.args(arguments(config));
        command.arg("--kernel").arg(&files.kernel);
        command.arg("--initrd").arg(&files.initrd);
        command.arg("--api-socket").arg(&socket);
        let running = Process::start(&mut command, place)?;
        Ok(Box::new(LmbVm {
            running,
            client: Client::new(socket),
            plugs_at_boot: config.plugged_at_boot_bytes > 0,
        }))
    }
}

/// lmb-vmm's flags for a configuration, files and socket apart.
fn arguments(config: &Config) -> Vec<String> {
    let mut all = vec![
        format!("--memory={}", config.memory_bytes),
        format!("--lmb-size={}", config.lmb_size_bytes),
        format!("--cpus={}", config.cpus),
        format!("--cmdline={}", config.cmdline),
        format!("--hotplug={}", config.hotplug),
        format!("--hugepages={}", config.hugepages),
        format!("--kernel-entry={}", config.kernel_entry),
        "--serial=stdio".to_owned(),
    ];
    let mut option = |name: &str, value: u64, given: bool| {
        if given {
            all.push(format!("--{name}={value}"));
        }
    };
    let window = config.max_memory_bytes > config.memory_bytes;
    option("max-memory", config.max_memory_bytes, window);
    option(
        "requested-memory",
        config
            .memory_bytes
            .saturating_add(config.plugged_at_boot_bytes),
        config.plugged_at_boot_bytes > 0,
    );
    option(
        "guest-block-size",
        config.guest_block_option_bytes,
        config.guest_block_option_bytes > 0,
    );
    option(
        "slot-size",
        config.slot_size_bytes,
        config.slot_size_bytes > 0,
    );
    all
}

#[derive(Debug)]
struct LmbVm {
    running: Running,
    client: Client,
    plugs_at_boot: bool,
}

impl LmbVm {
    /// Asks until `found` finds what it wants.
    fn until<T>(
        &mut self,
        what: &str,
        limit: Duration,
        mut found: impl FnMut(&Client) -> Result<Option<T>>,
    ) -> Result<T> {
        let start = Instant::now();
        loop {
            if let Some(value) = found(&self.client)? {
                return Ok(value);
            }
            self.running.process.check_alive()?;
            if start.elapsed() >= limit {
                bail!("the guest did not come as far as {what} in {limit:?}");
            }
            thread::sleep(PERIOD);
        }
    }
}

impl Vm for LmbVm {
    fn await_boot(&mut self, limit: Duration) -> Result<Booted> {
        // Sleeps until the guest prints its prompt: init has run then.
        self.running.console.await_prompt(limit)?;
        let plugs = self.plugs_at_boot;
        let info = self.until("having all of its memory", limit, |client| {
            let info = client.vm()?;
            let there = info.boot.init_ns.is_some() && (!plugs || info.boot.usable_ns.is_some());
            Ok(there.then_some(info))
        })?;
        Ok(booted(&info, self.running.process.started_ns, plugs))
    }

    fn await_driver(&mut self, limit: Duration) -> Result<()> {
        self.until("loading its memory driver", limit, |client| {
            let memory = client.memory()?;
            let windows = &memory.windows;
            if windows.is_empty() {
                bail!("the VM has no window for more memory");
            }
            Ok(windows.iter().all(|w| w.driver_active).then_some(()))
        })
    }

    fn change(&mut self, change: Change) -> Result<Changed> {
        let action = if change.add {
            MemoryAction::Add
        } else {
            MemoryAction::Remove
        };
        let request = MemoryRequest {
            size_bytes: Some(change.amount_bytes),
            timeout_ms: u64::try_from(change.timeout.as_millis())
                .context("the deadline is too long")?,
            wait: true,
            wait_usable: true,
            ..MemoryRequest::new(action)
        };
        let operation = self.client.start_operation(&request)?;
        let memory = self.client.memory()?;
        let slots = memory
            .windows
            .iter()
            .fold(0_u64, |sum, window| sum.saturating_add(window.slots));
        Ok(Changed {
            slots: Some(slots),
            ..changed(&operation)
        })
    }

    fn running(&self) -> &Running {
        &self.running
    }

    fn running_mut(&mut self) -> &mut Running {
        &mut self.running
    }
}

/// The boot's stamps, moved from the process's own start to the moment before
/// it was made, which is what can be had of every VMM.
fn booted(info: &VmInfo, started_ns: u64, plugs: bool) -> Booted {
    let boot: &BootTimeline = &info.boot;
    let before = boot.process_start_ns.saturating_sub(started_ns);
    let stamp = |end: Option<u64>, cpu: Option<u64>| -> Option<Span> {
        end.map(|end| span(end.saturating_add(before), cpu))
    };
    Booted {
        phases: BootPhases {
            first_entry: stamp(boot.first_entry_ns, boot.first_entry_cpu_ns),
            init: stamp(boot.init_ns, boot.init_cpu_ns),
            usable: if plugs {
                stamp(boot.usable_ns, boot.usable_cpu_ns)
            } else {
                stamp(boot.init_ns, boot.init_cpu_ns)
            },
        },
        exits: Some(info.vcpu_exits),
    }
}

fn changed(operation: &Operation) -> Changed {
    let timeline = &operation.timeline;
    let stamp = |end: Option<u64>, cpu: Option<u64>| end.map(|end| span(end, cpu));
    let (requests, nack) = requests(operation);
    let complete = operation.state == OperationState::Done;
    Changed {
        phases: DlparPhases {
            announced: stamp(timeline.announced_ns, None),
            first_request: stamp(timeline.first_request_ns, None),
            device_done: stamp(timeline.last_answer_ns, timeline.last_answer_cpu_ns),
            device_late: false,
            usable: stamp(timeline.usable_ns, timeline.usable_cpu_ns),
            usable_late: timeline.usable_late,
        },
        done_bytes: operation.plugged_bytes.abs_diff(operation.from_bytes),
        complete,
        requests: Some(requests),
        nack: Some(nack),
        busy: Some(operation.requests.busy),
        slots: None,
    }
}

/// Requests, and of them those that were turned down: the guest's, which the
/// VMM answered NACK; or with ACPI the VMM's, each about an LMB, which the
/// guest refused.
fn requests(operation: &Operation) -> (u64, u64) {
    let counts = &operation.requests;
    let of_guest = [counts.plug, counts.unplug, counts.unplug_all, counts.state];
    let sum = |all: &mut dyn Iterator<Item = u64>| all.fold(0, u64::saturating_add);
    let lmbs = |wanted: fn(&LmbChange) -> bool| {
        let changes = operation.changes.iter().filter(|change| wanted(change));
        sum(&mut changes.map(|change| change.count))
    };
    (
        sum(&mut of_guest.into_iter()).saturating_add(lmbs(|_| true)),
        counts
            .nack
            .saturating_add(lmbs(|change| change.outcome == LmbOutcome::Refused)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::testing::config;
    use lmb_vmm::protocol::{OperationTimeline, RequestCounts};

    const GIB: u64 = 1 << 30;

    #[test]
    fn a_plain_boot_has_no_window_flags() {
        let plain = arguments(&config());
        assert!(plain.contains(&format!("--memory={GIB}")));
        assert!(plain.contains(&"--kernel-entry=elf".to_owned()));
        for flag in ["--max-memory", "--requested", "--guest-block", "--slot"] {
            assert!(!plain.iter().any(|a| a.starts_with(flag)), "{flag}");
        }
    }

    #[test]
    fn what_a_configuration_names_becomes_a_flag() {
        let mut config = config();
        config.max_memory_bytes = 5 * GIB;
        config.plugged_at_boot_bytes = 2 * GIB;
        config.guest_block_option_bytes = 2 * GIB;
        config.slot_size_bytes = GIB;
        let all = arguments(&config);
        for flag in [
            format!("--max-memory={}", 5 * GIB),
            format!("--requested-memory={}", 3 * GIB),
            format!("--guest-block-size={}", 2 * GIB),
            format!("--slot-size={GIB}"),
        ] {
            assert!(all.contains(&flag), "{flag} in {all:?}");
        }
    }

    fn operation(state: OperationState, plugged_bytes: u64) -> Operation {
        Operation {
            id: 1,
            action: MemoryAction::Remove,
            state,
            from_bytes: 5 * GIB,
            target_bytes: GIB,
            plugged_bytes,
            lmb_size_bytes: GIB,
            timeout_ms: 1000,
            timeline: OperationTimeline {
                last_answer_ns: Some(70),
                last_answer_cpu_ns: Some(50),
                usable_ns: Some(90),
                ..OperationTimeline::default()
            },
            requests: RequestCounts {
                unplug: 3,
                state: 1,
                busy: 2,
                ..RequestCounts::default()
            },
            acpi: None,
            changes: Vec::new(),
            message: None,
        }
    }

    #[test]
    fn with_acpi_each_lmb_asked_about_is_a_request() {
        let mut operation = operation(OperationState::Done, GIB);
        operation.requests = RequestCounts::default();
        let change = |first, count, outcome| LmbChange {
            first,
            count,
            outcome,
            reason: None,
        };
        operation.changes = vec![
            change(4, 3, LmbOutcome::Removed),
            change(7, 2, LmbOutcome::Refused),
            change(9, 1, LmbOutcome::Removed),
        ];
        let changed = changed(&operation);
        assert_eq!((changed.requests, changed.nack), (Some(6), Some(2)));
        let mut config = config();
        config.hotplug = "acpi".to_owned();
        assert!(arguments(&config).contains(&"--hotplug=acpi".to_owned()));
    }

    #[test]
    fn a_removal_that_ran_out_of_time_says_how_far_it_came() {
        let changed = changed(&operation(OperationState::Incomplete, 2 * GIB));
        assert_eq!((changed.complete, changed.done_bytes), (false, 3 * GIB));
        assert_eq!((changed.requests, changed.busy), (Some(4), Some(2)));
        assert_eq!(changed.phases.device_done, Some(span(70, Some(50))));
    }
}
