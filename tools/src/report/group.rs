//! Repeats put together: samples of equal configuration, host and operation
//! are one [`Group`], a row of every table. Warm-ups are left out.
//!
//! Revisions of the tool are listed in a group and do not part groups; a note
//! says where they differ.

use std::collections::BTreeMap;

use serde::Serialize;

use super::figure::Unit;
use super::stats::{Summary, real};
use crate::bench::sample::{
    BootPhases, Config, DlparPhases, Guest, Host, Measured, Sample, Span, Step,
};
use crate::plan::rules;
use lmb_memory::Hotplug;

/// What a group's samples measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum Kind {
    /// Boots.
    Boot,
    /// Adds or removes.
    Dlpar {
        /// Which of a round.
        step: Step,
        /// How much.
        amount_bytes: u64,
    },
}

/// Something that happened, or a part between two such.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Moment {
    /// Boot: first entry into the guest; what was before is the VMM's part.
    FirstEntry,
    /// Boot: from the first entry to the guest's init.
    KernelPart,
    /// Boot: the guest's init runs.
    Init,
    /// Boot: from init until all memory is usable.
    MemoryPart,
    /// Add, remove: announced to the guest.
    Announced,
    /// Add, remove: the guest's first request.
    FirstRequest,
    /// Add, remove: the answer that reached the target.
    DeviceDone,
    /// All memory is usable (or gone).
    Usable,
    /// Boot: init or usable, whichever is later. Add, remove: device done or
    /// usable, whichever is later.
    Complete,
}

impl Moment {
    /// What tables call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::FirstEntry => "VMM part",
            Self::KernelPart => "kernel part",
            Self::Init => "init",
            Self::MemoryPart => "memory part",
            Self::Announced => "announced",
            Self::FirstRequest => "first request",
            Self::DeviceDone => "device done",
            Self::Usable => "guest usable",
            Self::Complete => "complete",
        }
    }
}

/// A moment over the repeats, in nanoseconds of the host's clock.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Timing {
    /// Since the start.
    pub total: Summary,
    /// Of it, what the VMM and its guest executed, if every repeat tells and
    /// the host has one CPU.
    pub executed: Option<Summary>,
    /// The rest: time waited.
    pub waited: Option<Summary>,
}

/// How adds or removes ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Outcome {
    /// Those that reached the target.
    pub complete: usize,
    /// All of them.
    pub of: usize,
    /// Bytes left undone in those that did not, the most of them.
    pub left_bytes_max: u64,
    /// Guest requests.
    pub requests: Option<Summary>,
    /// Answers NACK.
    pub nack: Option<Summary>,
    /// Answers BUSY.
    pub busy: Option<Summary>,
    /// KVM slots of the window afterwards.
    pub slots: Option<Summary>,
    /// Repeats whose "guest usable" was found by looking.
    pub usable_late: usize,
    /// Repeats whose "device done" was found by asking afterwards.
    pub device_late: usize,
    /// The shortest deadline.
    pub timeout_ms: u64,
}

/// Repeats of one configuration.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Group {
    /// What was run.
    pub config: Config,
    /// Where.
    pub host: Host,
    /// What its figures are.
    pub unit: Unit,
    /// What was measured.
    #[serde(flatten)]
    pub kind: Kind,
    /// The guest's words, of the first repeat that has them.
    pub guest: Guest,
    /// Revisions of the tool.
    pub revisions: Vec<String>,
    /// Sweeps.
    pub sweeps: Vec<String>,
    /// Samples, warm-ups left out.
    pub repeats: usize,
    /// Moments that at least one repeat has.
    pub times: BTreeMap<Moment, Timing>,
    /// Boot: the VMM's memory beyond the guest's.
    pub vmm_memory_bytes: Option<Summary>,
    /// Boot: exits to user space.
    pub exits: Option<Summary>,
    /// Adds and removes: how they ended.
    pub outcome: Option<Outcome>,
}

/// Groups samples in the order in which configurations first appear.
#[must_use]
pub fn group<'a>(samples: impl IntoIterator<Item = &'a Sample>) -> Vec<Group> {
    let mut parts: Vec<Vec<&Sample>> = Vec::new();
    for sample in samples.into_iter().filter(|sample| !sample.warm_up) {
        let same = |part: &&mut Vec<&Sample>| {
            part.first().is_some_and(|first| {
                first.config == sample.config
                    && first.host == sample.host
                    && kind(first) == kind(sample)
            })
        };
        match parts.iter_mut().find(same) {
            Some(part) => part.push(sample),
            None => parts.push(vec![sample]),
        }
    }
    parts.iter().filter_map(|part| summarise(part)).collect()
}

fn kind(sample: &Sample) -> Kind {
    match sample.measured {
        Measured::Boot { .. } => Kind::Boot,
        Measured::Dlpar {
            step, amount_bytes, ..
        } => Kind::Dlpar { step, amount_bytes },
    }
}

fn summarise(samples: &[&Sample]) -> Option<Group> {
    let first = samples.first()?;
    let mut spans: BTreeMap<Moment, Vec<Span>> = BTreeMap::new();
    let (mut memory, mut exits) = (Vec::new(), Vec::new());
    for sample in samples {
        match &sample.measured {
            Measured::Boot {
                phases,
                vmm_memory_bytes,
                exits: n,
            } => {
                boot_moments(phases, &mut spans);
                memory.extend(vmm_memory_bytes.map(real));
                exits.extend(n.map(real));
            }
            Measured::Dlpar { phases, .. } => dlpar_moments(phases, &mut spans),
        }
    }
    let times = spans
        .iter()
        .filter_map(|(moment, spans)| Some((*moment, timing(spans, first.host.cpus == 1)?)))
        .collect();
    Some(Group {
        config: first.config.clone(),
        host: first.host.clone(),
        unit: Unit::of(&first.host),
        kind: kind(first),
        guest: merged_guest(samples),
        revisions: distinct(samples.iter().map(|s| s.revision.as_str())),
        sweeps: distinct(samples.iter().map(|s| s.sweep.as_str())),
        repeats: samples.len(),
        times,
        vmm_memory_bytes: Summary::of(memory),
        exits: Summary::of(exits),
        outcome: outcome(samples),
    })
}

fn boot_moments(phases: &BootPhases, spans: &mut BTreeMap<Moment, Vec<Span>>) {
    let mut push = |moment, span: Option<Span>| spans.entry(moment).or_default().extend(span);
    let (entry, init, usable) = (phases.first_entry, phases.init, phases.usable);
    push(Moment::FirstEntry, entry);
    push(Moment::KernelPart, between(entry, init));
    push(Moment::Init, init);
    push(Moment::MemoryPart, between(init, usable));
    push(Moment::Usable, usable);
    push(Moment::Complete, later(init, usable));
}

fn dlpar_moments(phases: &DlparPhases, spans: &mut BTreeMap<Moment, Vec<Span>>) {
    let mut push = |moment, span: Option<Span>| spans.entry(moment).or_default().extend(span);
    push(Moment::Announced, phases.announced);
    push(Moment::FirstRequest, phases.first_request);
    push(Moment::DeviceDone, phases.device_done);
    push(Moment::Usable, phases.usable);
    // A usable memory that the device never finished is no complete operation.
    let usable = phases.usable.filter(|_| !phases.usable_late);
    let complete = phases.device_done.and_then(|done| match usable {
        Some(usable) if phases.device_late => Some(usable),
        usable => later(Some(done), usable),
    });
    push(Moment::Complete, complete);
}

fn between(start: Option<Span>, end: Option<Span>) -> Option<Span> {
    let (start, end) = (start?, end?);
    Some(Span {
        end_ns: end.end_ns.saturating_sub(start.end_ns),
        end_cpu_ns: end
            .end_cpu_ns
            .zip(start.end_cpu_ns)
            .map(|(end, start)| end.saturating_sub(start)),
    })
}

fn later(a: Option<Span>, b: Option<Span>) -> Option<Span> {
    match (a, b) {
        (Some(a), Some(b)) => Some(if b.end_ns > a.end_ns { b } else { a }),
        (a, b) => a.or(b),
    }
}

/// On several CPUs the process' CPU time is no part of the time that passed, so
/// only a host of one splits.
fn timing(spans: &[Span], splits: bool) -> Option<Timing> {
    let total = Summary::of(spans.iter().map(|span| real(span.end_ns)))?;
    let cpu: Option<Vec<(u64, u64)>> = spans
        .iter()
        .map(|span| Some((span.end_ns, span.end_cpu_ns?)))
        .collect();
    let part = |f: fn(&(u64, u64)) -> u64| {
        let all = cpu.as_ref().filter(|_| splits)?;
        Summary::of(all.iter().map(f).map(real))
    };
    Some(Timing {
        total,
        executed: part(|(_, cpu)| *cpu),
        waited: part(|(end, cpu)| end.saturating_sub(*cpu)),
    })
}

fn merged_guest(samples: &[&Sample]) -> Guest {
    let all = || samples.iter().map(|sample| &sample.guest);
    Guest {
        block_size_bytes: all().find_map(|guest| guest.block_size_bytes),
        memory_blocks: all().find_map(|guest| guest.memory_blocks),
        driver_mode: all().find_map(|guest| guest.driver_mode.clone()),
        lines: all()
            .map(|guest| &guest.lines)
            .find(|lines| !lines.is_empty())
            .cloned()
            .unwrap_or_default(),
        memmap_on_memory: all().find_map(|guest| guest.memmap_on_memory.clone()),
        usable_per_block_bytes: all().find_map(|guest| guest.usable_per_block_bytes),
    }
}

fn outcome(samples: &[&Sample]) -> Option<Outcome> {
    let mut outcome = Outcome {
        timeout_ms: u64::MAX,
        ..Outcome::default()
    };
    let [mut all_requests, mut all_nack, mut all_busy, mut all_slots] = [const { Vec::new() }; 4];
    for sample in samples {
        let Measured::Dlpar {
            amount_bytes,
            done_bytes,
            complete,
            timeout_ms,
            ref phases,
            requests,
            nack,
            busy,
            slots,
            ..
        } = sample.measured
        else {
            return None;
        };
        outcome.of = outcome.of.saturating_add(1);
        outcome.complete = outcome.complete.saturating_add(usize::from(complete));
        outcome.usable_late = outcome
            .usable_late
            .saturating_add(usize::from(phases.usable_late));
        outcome.device_late = outcome
            .device_late
            .saturating_add(usize::from(phases.device_late));
        let left = amount_bytes.saturating_sub(done_bytes);
        outcome.left_bytes_max = outcome.left_bytes_max.max(left);
        outcome.timeout_ms = outcome.timeout_ms.min(timeout_ms);
        all_requests.extend(requests.map(real));
        all_nack.extend(nack.map(real));
        all_busy.extend(busy.map(real));
        all_slots.extend(slots.map(real));
    }
    outcome.requests = Summary::of(all_requests);
    outcome.nack = Summary::of(all_nack);
    outcome.busy = Summary::of(all_busy);
    outcome.slots = Summary::of(all_slots);
    Some(outcome)
}

/// Each text once, in order.
pub(crate) fn distinct<'a>(texts: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for text in texts {
        if !all.iter().any(|known| known == text) {
            all.push(text.to_owned());
        }
    }
    all
}

impl Group {
    /// The memory this group is about: all of a boot's, or the amount.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match self.kind {
            Kind::Boot => self
                .config
                .memory_bytes
                .saturating_add(self.config.plugged_at_boot_bytes),
            Kind::Dlpar { amount_bytes, .. } => amount_bytes,
        }
    }

    /// The same in LMBs.
    #[must_use]
    pub fn lmbs(&self) -> u64 {
        rules::blocks(self.bytes(), self.config.lmb_size_bytes)
    }

    /// The guest's memory block: its own word, or else what was asked for.
    #[must_use]
    pub fn guest_block_bytes(&self) -> u64 {
        let asked = match self.config.guest_block_option_bytes {
            0 => rules::following_block(self.config.lmb_size_bytes),
            fixed => fixed,
        };
        self.guest
            .block_size_bytes
            .filter(|block| *block > 0)
            .unwrap_or(asked)
    }

    /// By what means memory comes and goes.
    #[must_use]
    pub fn hotplug(&self) -> Hotplug {
        self.config.hotplug.parse().unwrap_or_default()
    }

    /// LMBs that a boot leaves empty; 0 for adds and removes.
    #[must_use]
    pub fn empty_lmbs(&self) -> u64 {
        match self.kind {
            Kind::Boot => self.config.empty_lmbs(),
            Kind::Dlpar { .. } => 0,
        }
    }

    /// The driver's mode in its own words, or by its rule with a `?` where the
    /// guest did not say; `-` where no memory is plugged.
    #[must_use]
    pub fn driver_mode(&self) -> String {
        let plugs = match self.kind {
            Kind::Boot => self.config.plugged_at_boot_bytes > 0,
            Kind::Dlpar { .. } => true,
        };
        match &self.guest.driver_mode {
            Some(mode) => mode.clone(),
            None if self.hotplug() == Hotplug::Acpi => self.ruled_mode().word().to_owned(),
            None if plugs && self.config.hotplug == "virtio-mem" => {
                format!("{}?", self.ruled_mode().word())
            }
            None => "-".to_owned(),
        }
    }

    /// The driver's mode by its rule.
    #[must_use]
    pub fn ruled_mode(&self) -> rules::DriverMode {
        rules::DriverMode::with(
            self.hotplug(),
            self.config.lmb_size_bytes,
            self.guest_block_bytes(),
        )
    }

    /// Rows that differ in LMB size alone are neighbours in this order.
    #[must_use]
    pub fn order(&self) -> impl Ord + use<> {
        let config = &self.config;
        (
            self.kind,
            (
                config.vmm.clone(),
                config.kernel.clone(),
                config.load.clone(),
                config.hotplug.clone(),
            ),
            (
                config.cpus,
                config.memory_bytes,
                config.plugged_at_boot_bytes,
                self.empty_lmbs(),
            ),
            (config.guest_block_option_bytes, config.slot_size_bytes),
            config.lmb_size_bytes,
        )
    }

    /// Median of a moment.
    #[must_use]
    pub fn median(&self, moment: Moment) -> Option<f64> {
        self.times.get(&moment).map(|timing| timing.total.median)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::testing::{Boot, Dlpar, GIB, MIB};

    #[test]
    fn repeats_are_one_group_and_warm_ups_none() {
        let boot = Boot::default();
        let mut samples: Vec<Sample> = (0..4).map(|round| boot.sample(round)).collect();
        samples[0].warm_up = true;
        samples[3].revision = "abc-dirty".to_owned();
        let groups = group(&samples);
        assert_eq!(groups.len(), 1);
        assert_eq!(groups[0].repeats, 3);
        assert_eq!(
            groups[0].revisions,
            [samples[1].revision.clone(), "abc-dirty".to_owned()]
        );
    }

    #[test]
    fn any_field_of_the_configuration_parts_groups() {
        let boot = Boot::default();
        let mut samples = vec![boot.sample(0); 4];
        samples[1].config.cmdline.push_str(" nokaslr");
        samples[2].host.kernel.push('x');
        samples[3].config.cpus = 4;
        assert_eq!(group(&samples).len(), 4);
        let dlpar = Dlpar::default();
        let steps = [
            dlpar.sample(Step::FirstAdd, 0),
            dlpar.sample(Step::FirstRemove, 0),
        ];
        assert_eq!(group(&steps).len(), 2);
    }

    #[test]
    fn parts_of_a_boot_add_up() {
        let boot = Boot {
            plugged: GIB,
            ..Boot::default()
        };
        let samples = [boot.sample(0)];
        let groups = group(&samples);
        let at = |moment| groups[0].median(moment).unwrap();
        assert_eq!(
            at(Moment::FirstEntry) + at(Moment::KernelPart),
            at(Moment::Init)
        );
        assert_eq!(
            at(Moment::Init) + at(Moment::MemoryPart),
            at(Moment::Usable)
        );
        assert_eq!(at(Moment::Complete), at(Moment::Usable));
        let timing = &groups[0].times[&Moment::Init];
        let (executed, waited) = (timing.executed.clone(), timing.waited.clone());
        assert_eq!(
            executed.unwrap().median + waited.unwrap().median,
            timing.total.median
        );
    }

    #[test]
    fn one_repeat_without_cpu_time_hides_the_split() {
        let boot = Boot::default();
        let mut samples = [boot.sample(0), boot.sample(1)];
        if let Measured::Boot { phases, .. } = &mut samples[1].measured {
            phases.init.as_mut().unwrap().end_cpu_ns = None;
        }
        let groups = group(&samples);
        assert_eq!(groups[0].times[&Moment::Init].executed, None);
        let several = Boot {
            host: crate::report::testing::native_host(),
            ..Boot::default()
        };
        let native = group(&several.samples(2));
        assert_eq!(native[0].times[&Moment::Init].executed, None);
        assert!(groups[0].times[&Moment::FirstEntry].executed.is_some());
    }

    #[test]
    fn an_incomplete_removal_counts_what_was_left_and_has_no_time() {
        let dlpar = Dlpar {
            amount: 4 * GIB,
            lmb: 256 * MIB,
            ..Dlpar::default()
        };
        let mut samples = [
            dlpar.sample(Step::FirstRemove, 0),
            dlpar.sample(Step::FirstRemove, 1),
        ];
        if let Measured::Dlpar {
            phases,
            complete,
            done_bytes,
            ..
        } = &mut samples[1].measured
        {
            *complete = false;
            *done_bytes = 3 * GIB;
            phases.device_done = None;
            phases.usable = None;
        }
        let groups = group(&samples);
        let outcome = groups[0].outcome.as_ref().unwrap();
        assert_eq!(
            (outcome.complete, outcome.of, outcome.left_bytes_max),
            (1, 2, GIB)
        );
        assert_eq!(groups[0].times[&Moment::DeviceDone].total.n, 1);
    }

    #[test]
    fn the_guest_is_believed_before_the_option() {
        let dlpar = Dlpar {
            lmb: 256 * MIB,
            ..Dlpar::default()
        };
        let mut sample = dlpar.sample(Step::FirstAdd, 0);
        sample.guest.driver_mode = None;
        let follow = group(&[sample.clone()]);
        assert_eq!(follow[0].driver_mode(), "big-block?");
        sample.guest.block_size_bytes = Some(2 * GIB);
        let larger = group(&[sample.clone()]);
        assert_eq!(larger[0].guest_block_bytes(), 2 * GIB);
        assert_eq!(larger[0].driver_mode(), "sub-block?");
        sample.guest.driver_mode = Some("big-block".to_owned());
        assert_eq!(group(&[sample])[0].driver_mode(), "big-block");
    }
}
