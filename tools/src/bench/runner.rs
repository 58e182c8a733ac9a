//! Runs jobs one after another, where the guests run: on a native KVM host or
//! inside the virtual one.
//!
//! One job is one VM from start to end. What is asked of a guest beside its
//! measurement is asked when nothing is being measured: after a boot, and once
//! for each configuration; before adds and removes, in each.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::driver::{self, Change, Changed, Vm};
use super::facts::Memory;
use super::sample::{Config, Guest, Host, Measured, SCHEMA, Sample, Step};
use super::work::{Job, Message, Task, Work};
use super::{facts, figures};
use crate::host::detect;

/// The program that makes loads in the guest.
pub(super) const LOAD_PROGRAM: &str = "lmb-guest-load";
/// What it prints when its load is there.
const LOAD_SIGN: &str = "load-ready";
/// How long a load may take to fill its memory.
const LOAD_LIMIT: Duration = Duration::from_secs(600);
/// Rest before each thing that is measured. In the virtual host a sleep ends at
/// a tick, so that each starts at the same distance from the next one, and what
/// waits for ticks waits equally long each time.
const REST: Duration = Duration::from_millis(50);
/// How long a guest may take to load its memory driver.
const DRIVER_LIMIT: Duration = Duration::from_secs(120);

/// Runs all jobs; what comes of them goes to `report`.
///
/// # Errors
/// When `report` fails, or when no temporary directory can be made. A job that
/// fails is a message.
pub(super) fn run(work: &Work, report: &mut dyn FnMut(Message) -> Result<()>) -> Result<()> {
    prepare_host(work)?;
    let mut runner = Runner {
        work,
        host: this_host(work),
        facts: work.facts.iter().cloned().collect(),
    };
    let mut known = HashSet::new();
    for (number, job) in work.jobs.iter().enumerate() {
        report(Message::Begins { job: number })?;
        if needs_throw_away(work, job, &mut known) {
            // What fails here fails again, and is told then.
            let limit = runner.boot_limit();
            drop(with_vm(work, job, |vm| vm.await_boot(limit)));
        }
        report(match runner.job(job) {
            Ok(samples) => Message::Samples {
                job: number,
                samples,
            },
            Err(error) => Message::Failed {
                job: number,
                error: format!("{error:#}"),
            },
        })?;
    }
    Ok(())
}

/// Whether a guest is booted once for nothing before this job: the first one of
/// each kernel and VMM in this host pays for what the host does once only, as
/// loading them. A warm-up does that by itself; a sweep without, or one that
/// goes on in a new virtual host, needs it.
fn needs_throw_away(work: &Work, job: &Job, known: &mut HashSet<(usize, String)>) -> bool {
    let new = known.insert((job.guest, job.config.vmm.clone()));
    new && !work.native && !job.warm_up
}

/// In the virtual host, which is ours alone: addresses are not randomised, so
/// that equal work takes equal instructions, and a guest's memory is not held
/// against the host's.
fn prepare_host(work: &Work) -> Result<()> {
    if work.native {
        return Ok(());
    }
    for (name, value) in [
        ("kernel/randomize_va_space", "0"),
        ("vm/overcommit_memory", "1"),
    ] {
        let path = Path::new("/proc/sys").join(name);
        fs::write(&path, value).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

fn this_host(work: &Work) -> Host {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let cpus = cpuinfo
        .lines()
        .filter(|line| line.starts_with("processor"))
        .count();
    Host {
        kind: detect::host_kind(),
        native: work.native,
        clock: work.clock,
        kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        cpus: u32::try_from(cpus).unwrap_or(u32::MAX),
        memory_bytes: meminfo_bytes(&read("/proc/meminfo"), "MemTotal").unwrap_or(0),
    }
}

/// A field of /proc/meminfo.
pub(super) fn meminfo_bytes(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kib = line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?;
    kib.checked_mul(1024)
}

struct Runner<'a> {
    work: &'a Work,
    host: Host,
    facts: HashMap<Config, Guest>,
}

impl Runner<'_> {
    fn job(&mut self, job: &Job) -> Result<Vec<Sample>> {
        let measured = with_vm(self.work, job, |vm| match job.task {
            Task::Boot => self.boot(vm, job),
            Task::Dlpar {
                amount_bytes,
                timeout_ms,
                load_bytes,
                steps,
            } => {
                let wanted = Steps {
                    vm,
                    amount_bytes,
                    timeout_ms,
                    measured: Vec::new(),
                };
                self.dlpar(wanted, job, load_bytes, steps)
            }
        })?;
        Ok(measured
            .into_iter()
            .map(|measured| self.sample(job, measured))
            .collect())
    }

    fn sample(&self, job: &Job, measured: Measured) -> Sample {
        Sample {
            schema: SCHEMA,
            sweep: self.work.sweep.clone(),
            revision: self.work.revision.clone(),
            round: job.round,
            warm_up: job.warm_up,
            position: job.position,
            host: self.host.clone(),
            config: job.config.clone(),
            guest: self.facts.get(&job.config).cloned().unwrap_or_default(),
            measured,
        }
    }

    fn boot(&mut self, vm: &mut dyn Vm, job: &Job) -> Result<Vec<Measured>> {
        let booted = vm.await_boot(self.boot_limit())?;
        let vmm_memory_bytes = figures::vmm_memory_bytes(vm.pid());
        if !self.facts.contains_key(&job.config) {
            if job.config.max_memory_bytes > job.config.memory_bytes
                && job.config.plugged_at_boot_bytes == 0
            {
                vm.await_driver(DRIVER_LIMIT)?;
            }
            vm.open_shell()?;
            self.ask(vm, job)?;
        }
        Ok(vec![Measured::Boot {
            phases: booted.phases,
            vmm_memory_bytes,
            exits: booted.exits,
        }])
    }

    fn ask(&mut self, vm: &mut dyn Vm, job: &Job) -> Result<()> {
        let facts =
            facts::ask(vm, &job.config).context("the guest cannot be asked about itself")?;
        self.facts.insert(job.config.clone(), facts);
        Ok(())
    }

    fn boot_limit(&self) -> Duration {
        Duration::from_millis(self.work.boot_timeout_ms)
    }

    /// The guest is asked about itself in each job, before anything is
    /// measured, so that repeats are equal. Then, without a load: `count` of
    /// add, remove, and both again. With one: the first add
    /// brings the memory that the load fills, and is left out; the removal and
    /// the second add are measured while it goes on.
    fn dlpar(
        &mut self,
        mut steps: Steps<'_>,
        job: &Job,
        load_bytes: u64,
        count: usize,
    ) -> Result<Vec<Measured>> {
        steps.vm.await_boot(self.boot_limit())?;
        steps.vm.await_driver(DRIVER_LIMIT)?;
        steps.vm.open_shell()?;
        self.ask(steps.vm, job)?;
        let acpi = facts::is_acpi(&job.config);
        let before = if acpi { Memory::ask(steps.vm)? } else { None };
        let first = steps.run(Step::FirstAdd)?;
        if let Some(before) = before {
            let now = Memory::ask(steps.vm)?;
            if let Some(facts) = self.facts.get_mut(&job.config) {
                facts.usable_per_block_bytes = now.and_then(|now| now.per_block_bytes(before));
            }
        }
        if load_bytes > 0 {
            if !first {
                bail!("the first add, which the load needs, was not complete");
            }
            steps.measured.clear();
            let command = format!("{LOAD_PROGRAM} {} {load_bytes}", job.config.load);
            steps.vm.start(&command, LOAD_SIGN, LOAD_LIMIT)?;
            if steps.run(Step::FirstRemove)? {
                steps.run(Step::SecondAdd)?;
            }
            return Ok(steps.measured);
        }
        // What follows an incomplete step would be another measurement.
        let further = [Step::FirstRemove, Step::SecondAdd, Step::SecondRemove];
        for step in further.into_iter().take(count.saturating_sub(1)) {
            if !steps.measured.last().is_none_or(is_complete) || !steps.run(step)? {
                break;
            }
        }
        Ok(steps.measured)
    }
}

/// Starts a job's VM, does something with it and ends it.
fn with_vm<T>(work: &Work, job: &Job, measure: impl FnOnce(&mut dyn Vm) -> Result<T>) -> Result<T> {
    let files = work
        .guests
        .get(job.guest)
        .context("the job names no guest of this work")?;
    let place = tempfile::Builder::new()
        .prefix("lmb-bench-")
        .tempdir()
        .context("cannot make a temporary directory")?;
    let driver = driver::by_name(&job.config.vmm, &work.programs)?;
    thread::sleep(REST);
    let mut vm = driver.start(&job.config, files, place.path())?;
    let measured = measure(vm.as_mut());
    let complaints = vm.complaints();
    let stopped = vm.stop();
    let measured = measured.with_context(|| {
        if complaints.is_empty() {
            "the VMM said nothing".to_owned()
        } else {
            format!("the VMM said:\n{complaints}")
        }
    })?;
    stopped?;
    Ok(measured)
}

fn is_complete(measured: &Measured) -> bool {
    matches!(measured, Measured::Dlpar { complete: true, .. })
}

struct Steps<'a> {
    vm: &'a mut dyn Vm,
    amount_bytes: u64,
    timeout_ms: u64,
    measured: Vec<Measured>,
}

impl Steps<'_> {
    /// Runs a step: whether it was complete.
    fn run(&mut self, step: Step) -> Result<bool> {
        thread::sleep(REST);
        let changed = self
            .vm
            .change(Change {
                add: matches!(step, Step::FirstAdd | Step::SecondAdd),
                amount_bytes: self.amount_bytes,
                timeout: Duration::from_millis(self.timeout_ms),
            })
            .with_context(|| format!("{step:?}"))?;
        let complete = changed.complete;
        self.measured.push(self.measurement(step, changed));
        Ok(complete)
    }

    fn measurement(&self, step: Step, changed: Changed) -> Measured {
        Measured::Dlpar {
            step,
            amount_bytes: self.amount_bytes,
            done_bytes: changed.done_bytes,
            complete: changed.complete,
            timeout_ms: self.timeout_ms,
            phases: changed.phases,
            requests: changed.requests,
            nack: changed.nack,
            busy: changed.busy,
            slots: changed.slots,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_virtual_host_never_starts_with_a_measured_guest() {
        let mut job = Job {
            config: crate::bench::testing::config(),
            guest: 0,
            task: Task::Boot,
            round: 0,
            warm_up: false,
            position: 0,
        };
        let mut work = Work {
            sweep: String::new(),
            revision: String::new(),
            native: false,
            clock: super::super::sample::Clock::Instructions,
            programs: super::super::work::Programs::default(),
            guests: Vec::new(),
            jobs: Vec::new(),
            facts: Vec::new(),
            boot_timeout_ms: 1,
        };
        let mut known = HashSet::new();
        assert!(needs_throw_away(&work, &job, &mut known));
        assert!(!needs_throw_away(&work, &job, &mut known));
        job.guest = 1;
        assert!(needs_throw_away(&work, &job, &mut known));
        job.config.vmm = "qemu-pc".to_owned();
        job.warm_up = true;
        assert!(!needs_throw_away(&work, &job, &mut known));
        job.warm_up = false;
        assert!(!needs_throw_away(&work, &job, &mut known));
        work.native = true;
        job.guest = 2;
        assert!(!needs_throw_away(&work, &job, &mut known));
    }

    #[test]
    fn fields_of_meminfo() {
        let text =
            "MemTotal:        3000 kB\nMemFree:  5 kB\nMemTotalX: 7 kB\nHugePages_Total: 3\n";
        assert_eq!(meminfo_bytes(text, "MemTotal"), Some(3_072_000));
        assert_eq!(meminfo_bytes(text, "HugePages_Total"), None);
        assert_eq!(meminfo_bytes("", "MemTotal"), None);
        assert_eq!(
            meminfo_bytes("MemTotal: 18446744073709551615 kB", "MemTotal"),
            None
        );
    }
}
