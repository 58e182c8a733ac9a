//! Generators of samples for tests. Their figures follow a cost that the test
//! knows, so that what a report makes of them can be checked; nothing here is
//! a measurement.

use crate::bench::sample::{
    BootPhases, Clock, Config, DlparPhases, Guest, Host, Measured, SCHEMA, Sample, Span, Step,
};
use crate::plan::rules;

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GIB: u64 = 1 << 30;

/// What an operation costs, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Costs {
    pub(crate) constant: u64,
    pub(crate) block: u64,
    pub(crate) request: u64,
    pub(crate) slot: u64,
    pub(crate) gib: u64,
}

impl Costs {
    pub(crate) const BOOT: Self = Self {
        constant: 1_200_000_000,
        block: 600_000,
        request: 250_000,
        slot: 40_000,
        gib: 3_000_000,
    };
    pub(crate) const ADD: Self = Self {
        constant: 4_000_000,
        block: 2_000_000,
        request: 300_000,
        slot: 50_000,
        gib: 9_000_000,
    };
    pub(crate) const REMOVE: Self = Self {
        constant: 6_000_000,
        block: 9_000_000,
        request: 1_500_000,
        slot: 90_000,
        gib: 480_000_000,
    };

    fn of(&self, blocks: u64, requests: u64, slots: u64, gib: u64) -> u64 {
        self.constant
            + self.block * blocks
            + self.request * requests
            + self.slot * slots
            + self.gib * gib
    }
}

pub(crate) fn host() -> Host {
    Host {
        kind: "virtual KVM host (QEMU 7.2 TCG)".to_owned(),
        native: false,
        clock: Clock::Instructions,
        kernel: "6.1.0-18-cloud-amd64".to_owned(),
        cpus: 1,
        memory_bytes: 3 * GIB,
    }
}

pub(crate) fn native_host() -> Host {
    Host {
        kind: "native KVM".to_owned(),
        native: true,
        clock: Clock::Wall,
        kernel: "6.12.0".to_owned(),
        cpus: 16,
        memory_bytes: 256 * GIB,
    }
}

fn config(lmb: u64, block: u64, slot: u64) -> Config {
    Config {
        vmm: "lmb-vmm".to_owned(),
        vmm_version: "0.1.0".to_owned(),
        hotplug: "virtio-mem".to_owned(),
        kernel: "6.1.0-18-cloud-amd64".to_owned(),
        kernel_entry: "elf".to_owned(),
        cmdline: "console=ttyS0 quiet memhp_default_state=online_movable".to_owned(),
        cpus: 1,
        memory_bytes: GIB,
        max_memory_bytes: GIB,
        plugged_at_boot_bytes: 0,
        lmb_size_bytes: lmb,
        guest_block_option_bytes: block,
        slot_size_bytes: slot,
        hugepages: "thp".to_owned(),
        load: "none".to_owned(),
    }
}

/// A few parts in 100,000 to and fro, as the instruction clock has them.
fn jitter(ns: u64, round: u32) -> u64 {
    ns + ns / 100_000 * u64::from(round * 7 % 5)
}

fn span(ns: u64, executed_percent: u64) -> Option<Span> {
    Some(Span {
        end_ns: ns,
        end_cpu_ns: Some(ns / 100 * executed_percent),
    })
}

fn sample(host: Host, config: Config, guest: Guest, measured: Measured, round: u32) -> Sample {
    Sample {
        schema: SCHEMA,
        sweep: "2026-11-30T10:00:00Z".to_owned(),
        revision: "713d416".to_owned(),
        round,
        warm_up: false,
        position: 0,
        host,
        config,
        guest,
        measured,
    }
}

fn block_of(lmb: u64, option: u64) -> u64 {
    if option == 0 {
        rules::following_block(lmb)
    } else {
        option
    }
}

fn slots_of(amount: u64, lmb: u64, slot: u64) -> u64 {
    let size = if slot == 0 { lmb.max(GIB) } else { slot };
    amount.div_ceil(size)
}

/// A boot.
#[derive(Clone, Debug)]
pub(crate) struct Boot {
    pub(crate) lmb: u64,
    pub(crate) memory: u64,
    pub(crate) plugged: u64,
    pub(crate) empty: u64,
    pub(crate) block: u64,
    pub(crate) slot: u64,
    pub(crate) costs: Costs,
    pub(crate) host: Host,
    pub(crate) edit: fn(&mut Config),
}

impl Default for Boot {
    fn default() -> Self {
        Self {
            lmb: 256 * MIB,
            memory: 64 * GIB,
            plugged: 0,
            empty: 0,
            block: 0,
            slot: 0,
            costs: Costs::BOOT,
            host: host(),
            edit: |_| (),
        }
    }
}

impl Boot {
    pub(crate) fn sample(&self, round: u32) -> Sample {
        let block = block_of(self.lmb, self.block);
        let blocks = (self.memory + self.plugged) / block;
        let requests = rules::requests(self.plugged, self.lmb, block);
        let slots = slots_of(self.plugged, self.lmb, self.slot);
        let total = self
            .costs
            .of(blocks, requests, slots, (self.memory + self.plugged) / GIB);
        let total = jitter(total, round);
        let mut config = Config {
            memory_bytes: self.memory,
            max_memory_bytes: self.memory + self.plugged + self.empty * self.lmb,
            plugged_at_boot_bytes: self.plugged,
            ..config(self.lmb, self.block, self.slot)
        };
        (self.edit)(&mut config);
        let guest = Guest {
            block_size_bytes: Some(block),
            memory_blocks: Some(blocks),
            driver_mode: (self.plugged > 0)
                .then(|| rules::DriverMode::of(self.lmb, block).word().to_owned()),
            lines: vec!["x86/mm: Memory block size".to_owned()],
            ..Guest::default()
        };
        let measured = Measured::Boot {
            phases: BootPhases {
                first_entry: span(total / 20, 100),
                init: span(total / 10 * 9, 100),
                usable: span(total, 100),
            },
            vmm_memory_bytes: Some(5 * MIB + u64::from(round) * 4096),
            exits: Some(1234),
        };
        sample(self.host.clone(), config, guest, measured, round)
    }

    pub(crate) fn samples(&self, repeats: u32) -> Vec<Sample> {
        (0..repeats).map(|round| self.sample(round)).collect()
    }
}

/// An add or remove.
#[derive(Clone, Debug)]
pub(crate) struct Dlpar {
    pub(crate) lmb: u64,
    pub(crate) amount: u64,
    pub(crate) block: u64,
    pub(crate) slot: u64,
    pub(crate) add: Costs,
    pub(crate) remove: Costs,
    pub(crate) host: Host,
    pub(crate) edit: fn(&mut Config),
}

impl Default for Dlpar {
    fn default() -> Self {
        Self {
            lmb: 256 * MIB,
            amount: 32 * GIB,
            block: 0,
            slot: 0,
            add: Costs::ADD,
            remove: Costs::REMOVE,
            host: host(),
            edit: |_| (),
        }
    }
}

impl Dlpar {
    pub(crate) fn sample(&self, step: Step, round: u32) -> Sample {
        let block = block_of(self.lmb, self.block);
        let blocks = self.amount / block;
        let requests = rules::requests(self.amount, self.lmb, block);
        let slots = slots_of(self.amount, self.lmb, self.slot);
        let costs = match step {
            Step::FirstAdd | Step::SecondAdd => &self.add,
            Step::FirstRemove | Step::SecondRemove => &self.remove,
        };
        let total = jitter(costs.of(blocks, requests, slots, self.amount / GIB), round);
        let mut config = Config {
            memory_bytes: 2 * GIB,
            max_memory_bytes: 2 * GIB + self.amount,
            ..config(self.lmb, self.block, self.slot)
        };
        (self.edit)(&mut config);
        let hotplug = config.hotplug.parse().unwrap();
        let mode = rules::DriverMode::with(hotplug, self.lmb, block);
        let guest = Guest {
            block_size_bytes: Some(block),
            memory_blocks: Some(16),
            driver_mode: Some(mode.word().to_owned()),
            lines: Vec::new(),
            ..Guest::default()
        };
        let measured = Measured::Dlpar {
            step,
            amount_bytes: self.amount,
            done_bytes: self.amount,
            complete: true,
            timeout_ms: 60_000,
            phases: DlparPhases {
                announced: span(20_000, 100),
                first_request: span(300_000, 90),
                device_done: span(total / 10 * 9, 100),
                usable: span(total, 100),
                device_late: false,
                usable_late: false,
            },
            requests: Some(requests),
            nack: Some(0),
            busy: Some(0),
            slots: Some(slots),
        };
        sample(self.host.clone(), config, guest, measured, round)
    }

    /// The four steps of each round.
    pub(crate) fn samples(&self, repeats: u32) -> Vec<Sample> {
        let steps = [
            Step::FirstAdd,
            Step::FirstRemove,
            Step::SecondAdd,
            Step::SecondRemove,
        ];
        (0..repeats)
            .flat_map(|round| steps.map(|step| self.sample(step, round)))
            .collect()
    }
}

/// Adds and removes that vary each quantity by itself, in big-block mode.
pub(crate) fn design() -> Vec<Sample> {
    design_of(Dlpar::default)
}

/// The same of other costs or configurations.
pub(crate) fn design_of(base: impl Fn() -> Dlpar) -> Vec<Sample> {
    let mut all = Vec::new();
    let mut push = |lmb, block, slot, amount| {
        let dlpar = Dlpar {
            lmb,
            block,
            slot,
            amount,
            ..base()
        };
        all.extend(dlpar.samples(3));
    };
    // Requests alone: blocks of 128 MiB, slots of 4 GiB.
    for lmb in [128 * MIB, 512 * MIB, GIB, 4 * GIB] {
        push(lmb, 128 * MIB, 4 * GIB, 32 * GIB);
    }
    // Blocks alone, at LMBs of 4 GiB; the block of 128 MiB is above.
    for block in [256 * MIB, 512 * MIB, GIB, 2 * GIB] {
        push(4 * GIB, block, 4 * GIB, 32 * GIB);
    }
    // The same at another amount, which tells what blocks cost by memory.
    for block in [256 * MIB, GIB, 2 * GIB] {
        push(4 * GIB, block, 4 * GIB, 16 * GIB);
    }
    // Slots alone.
    for slot in [128 * MIB, GIB] {
        push(128 * MIB, 128 * MIB, slot, 32 * GIB);
    }
    // GiB with everything else growing along.
    for (amount, size) in [(16 * GIB, GIB), (64 * GIB, 4 * GIB)] {
        push(size, size.min(2 * GIB), 4 * GIB, amount);
    }
    all
}
