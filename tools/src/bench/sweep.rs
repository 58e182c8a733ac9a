//! What a sweep is, and the configurations that come of it.
//!
//! A sweep is a list of values for each of several options; its configurations
//! are all combinations, each once. Sizes are made legal here, in the same way
//! for every VMM, so that what stands side by side is the same machine: boot
//! memory is whole LMBs, and boot memory that is chosen for the user is the
//! same for all LMB sizes of the sweep.

use std::collections::HashSet;

use lmb_memory::Hotplug;

use super::limits::{self, LimitError};
use super::machine::Machine;
use super::order;
use super::sample::Config;
use super::vmms::{Vmm, VmmChoice};
use super::work::{Job, Task};

const MIB: u64 = 1 << 20;
/// What a guest's kernel and its init need.
const GUEST_OWN_BYTES: u64 = 640 * MIB;
/// Smallest and largest memory block of Linux on x86.
const LEAST_BLOCK_BYTES: u64 = 128 * MIB;
const MOST_BLOCK_BYTES: u64 = 2048 * MIB;

/// How a guest gets its memory in a boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Given {
    /// All of it is RAM from the start
    Boot,
    /// The guest plugs it while it boots
    Plugged,
}

/// What goes on in the guest while memory is removed and added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Load {
    /// Nothing
    None,
    /// Data lies in the added memory and must be moved out
    Touched,
    /// The same, and a process writes to all of it without end
    Dirtying,
    /// Some of its pages cannot be moved (they wait in pipes)
    Pinned,
}

impl Load {
    /// Its name in samples, and to the program that makes it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Touched => "touched",
            Self::Dirtying => "dirtying",
            Self::Pinned => "pinned",
        }
    }
}

/// Why a sweep cannot be run.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SweepError {
    /// Nothing is left to run.
    #[error("these options leave nothing to run: {0}")]
    Empty(String),
    /// An LMB size no VMM takes.
    #[error("{0} bytes are no LMB size: use a power of two from 2M to 4G")]
    LmbSize(u64),
    /// A guest block that Linux does not have.
    #[error("{0} bytes are no guest memory block: use follow, or a power of two from 128M to 2G")]
    GuestBlock(u64),
    /// An amount that is not whole LMBs.
    #[error("{amount} bytes are not whole LMBs of {lmb} bytes; give a multiple of the largest LMB")]
    Amount {
        /// The amount.
        amount: u64,
        /// The LMB.
        lmb: u64,
    },
    /// Too little memory to plug any.
    #[error(
        "{memory} bytes of memory leave nothing to plug beside the {boot} bytes that are there \
         from the start; give more --memory"
    )]
    NothingToPlug {
        /// All of the guest's memory.
        memory: u64,
        /// What it starts with.
        boot: u64,
    },
    /// Past 64 bits.
    #[error("these sizes are more than 64 bits hold")]
    TooLarge,
    /// What a VMM cannot.
    #[error(transparent)]
    Limit(#[from] LimitError),
}

/// A kernel of the sweep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Its version, as `uname -r` prints it.
    pub version: String,
}

/// What all configurations of a sweep are made from.
#[derive(Clone, Debug)]
pub struct Axes {
    /// Guest kernels.
    pub kernels: Vec<Kernel>,
    /// VMMs.
    pub vmms: Vec<Vmm>,
    /// By what means memory comes and goes.
    pub hotplugs: Vec<Hotplug>,
    /// LMB sizes in bytes.
    pub lmb_sizes: Vec<u64>,
    /// Guest blocks in bytes, 0 for following the LMB.
    pub guest_blocks: Vec<u64>,
    /// Slot sizes in bytes, 0 for the VMM's choice.
    pub slot_sizes: Vec<u64>,
    /// vCPUs.
    pub cpus: Vec<u32>,
    /// `elf` or `bzimage`, for lmb-vmm.
    pub kernel_entries: Vec<String>,
    /// Host pages.
    pub hugepages: Vec<String>,
    /// The guest's command line.
    pub cmdline: String,
}

/// What is measured.
#[derive(Clone, Debug)]
pub enum Measure {
    /// Boots.
    Boot {
        /// All of the guest's memory, each.
        memory: Vec<u64>,
        /// How it gets it.
        given: Vec<Given>,
        /// Memory from the start where it is plugged; `None` for as much as
        /// the guest needs.
        boot_memory: Option<u64>,
        /// LMBs that could be added later, each.
        empty_lmbs: Vec<u64>,
    },
    /// Adds and removes.
    Dlpar {
        /// Amounts.
        amounts: Vec<u64>,
        /// Boot memory; empty for as much as the guest needs.
        memory: Vec<u64>,
        /// Loads.
        loads: Vec<Load>,
        /// What the load holds; `None` for a quarter of the amount.
        load_size: Option<u64>,
        /// Deadline of each step, milliseconds.
        timeout_ms: u64,
        /// How many of add, remove, add, remove are done without a load.
        steps: usize,
    },
}

/// A configuration with what is measured in it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Case {
    /// The configuration.
    pub config: Config,
    /// Number of its kernel.
    pub guest: usize,
    /// What is measured.
    pub task: Task,
}

/// A sweep's configurations, and what of its combinations is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cases {
    /// The configurations.
    pub cases: Vec<Case>,
    /// What was left out, and why: a line each.
    pub left_out: Vec<String>,
}

/// All configurations of a sweep, each once, in the order of its lists: LMB
/// sizes vary fastest.
///
/// # Errors
/// [`SweepError`].
pub fn cases(axes: &Axes, measure: &Measure) -> Result<Cases, SweepError> {
    axes.check()?;
    limits::check(axes)?;
    let mut all = Cases::default();
    for (guest, kernel) in axes.kernels.iter().enumerate() {
        for machine in axes.machines() {
            for shape in measure.shapes(axes)? {
                for &lmb in &axes.lmb_sizes {
                    let case = machine.case(&shape, lmb, guest, kernel, &axes.cmdline)?;
                    match machine.cannot(&case.config) {
                        None => all.cases.push(case),
                        Some(reason) if all.left_out.contains(&reason) => {}
                        Some(reason) => all.left_out.push(reason),
                    }
                }
            }
        }
    }
    let mut seen = HashSet::new();
    all.cases.retain(|case| seen.insert(case.clone()));
    if all.cases.is_empty() {
        return Err(SweepError::Empty(all.left_out.join("; ")));
    }
    Ok(all)
}

/// The jobs of a sweep: warm-up rounds, then rounds in their changing order.
#[must_use]
pub fn jobs(cases: &[Case], warm_up: u32, rounds: u32) -> Vec<Job> {
    let both = [(true, warm_up), (false, rounds)];
    both.iter()
        .flat_map(|&(warm_up, count)| (0..count).map(move |round| (warm_up, round)))
        .flat_map(|(warm_up, round)| {
            let order = order::of_round(cases.len(), round);
            order.into_iter().enumerate().filter_map(move |(at, case)| {
                let case = cases.get(case)?;
                Some(Job {
                    config: case.config.clone(),
                    guest: case.guest,
                    task: case.task,
                    round,
                    warm_up,
                    position: u32::try_from(at).unwrap_or(u32::MAX),
                })
            })
        })
        .collect()
}

/// A guest's memory.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) boot: u64,
    pub(super) window: u64,
    /// LMBs of the window beside.
    pub(super) empty_lmbs: u64,
    pub(super) plugged_at_boot: u64,
    pub(super) load: Load,
    pub(super) task: Task,
}

impl Axes {
    fn check(&self) -> Result<(), SweepError> {
        for &lmb in &self.lmb_sizes {
            if !lmb.is_power_of_two() || !(2 * MIB..=4096 * MIB).contains(&lmb) {
                return Err(SweepError::LmbSize(lmb));
            }
        }
        for &block in self.guest_blocks.iter().filter(|block| **block != 0) {
            if !block.is_power_of_two() || !(LEAST_BLOCK_BYTES..=MOST_BLOCK_BYTES).contains(&block)
            {
                return Err(SweepError::GuestBlock(block));
            }
        }
        Ok(())
    }

    fn largest_lmb(&self) -> u64 {
        self.lmb_sizes.iter().copied().max().unwrap_or(MIB)
    }

    fn machines(&self) -> Vec<Machine<'_>> {
        let mut all = Vec::new();
        let kinds = |vmm| self.hotplugs.iter().map(move |hotplug| (vmm, *hotplug));
        for (vmm, hotplug) in self.vmms.iter().flat_map(kinds) {
            for &cpus in &self.cpus {
                for &guest_block in &self.guest_blocks {
                    for &slot_size in &self.slot_sizes {
                        for entry in &self.kernel_entries {
                            for hugepages in &self.hugepages {
                                all.push(Machine {
                                    vmm,
                                    hotplug,
                                    cpus,
                                    guest_block,
                                    slot_size,
                                    entry,
                                    hugepages,
                                });
                            }
                        }
                    }
                }
            }
        }
        all
    }
}

impl Measure {
    fn shapes(&self, axes: &Axes) -> Result<Vec<Shape>, SweepError> {
        match self {
            Self::Boot {
                memory,
                given,
                boot_memory,
                empty_lmbs,
            } => {
                let full = boot_shapes(axes, memory, given, *boot_memory)?;
                let with = |shape: &Shape| {
                    let shape = *shape;
                    empty_lmbs.iter().map(move |&empty_lmbs| Shape {
                        empty_lmbs,
                        ..shape
                    })
                };
                Ok(full.iter().flat_map(with).collect())
            }
            Self::Dlpar {
                amounts,
                memory,
                loads,
                load_size,
                timeout_ms,
                steps,
            } => {
                let step = (*timeout_ms, *steps);
                dlpar_shapes(axes, amounts, memory, loads, *load_size, step)
            }
        }
    }
}

fn boot_shapes(
    axes: &Axes,
    memory: &[u64],
    given: &[Given],
    boot_memory: Option<u64>,
) -> Result<Vec<Shape>, SweepError> {
    let mut shapes = Vec::new();
    for &given in given {
        for &memory in memory {
            let plain = Shape {
                boot: memory,
                window: 0,
                empty_lmbs: 0,
                plugged_at_boot: 0,
                load: Load::None,
                task: Task::Boot,
            };
            shapes.push(match given {
                Given::Boot => plain,
                Given::Plugged => {
                    let least = least_boot_bytes(memory, 0, axes.largest_lmb());
                    let boot = boot_memory.or(least).ok_or(SweepError::TooLarge)?;
                    let window = memory
                        .checked_sub(boot)
                        .filter(|window| *window > 0)
                        .ok_or(SweepError::NothingToPlug { memory, boot })?;
                    Shape {
                        boot,
                        window,
                        plugged_at_boot: window,
                        ..plain
                    }
                }
            });
        }
    }
    Ok(shapes)
}

fn dlpar_shapes(
    axes: &Axes,
    amounts: &[u64],
    memory: &[u64],
    loads: &[Load],
    load_size: Option<u64>,
    (timeout_ms, steps): (u64, usize),
) -> Result<Vec<Shape>, SweepError> {
    let mut shapes = Vec::new();
    let lmb = axes.largest_lmb();
    for &amount_bytes in amounts {
        if !amount_bytes.is_multiple_of(lmb) {
            return Err(SweepError::Amount {
                amount: amount_bytes,
                lmb,
            });
        }
        let held = load_size.unwrap_or(amount_bytes / 4);
        let loaded = loads.iter().any(|load| *load != Load::None);
        // The same boot memory with and without load, so that they compare.
        let least = least_boot_bytes(amount_bytes, if loaded { held } else { 0 }, lmb)
            .ok_or(SweepError::TooLarge)?;
        let chosen = [least];
        let memory = if memory.is_empty() { &chosen } else { memory };
        for &boot in memory {
            for &load in loads {
                shapes.push(Shape {
                    boot,
                    window: amount_bytes,
                    empty_lmbs: 0,
                    plugged_at_boot: 0,
                    load,
                    task: Task::Dlpar {
                        amount_bytes,
                        timeout_ms,
                        load_bytes: if load == Load::None { 0 } else { held },
                        steps,
                    },
                });
            }
        }
    }
    Ok(shapes)
}

/// Boot memory for a guest that plugs `plugged` bytes: itself, 64 bytes for
/// each page plugged, and room for a load that is moved out of what is
/// removed; whole LMBs.
fn least_boot_bytes(plugged: u64, load: u64, lmb: u64) -> Option<u64> {
    GUEST_OWN_BYTES
        .checked_add(plugged.div_ceil(64))?
        .checked_add(load.checked_add(load / 4)?)?
        .checked_next_multiple_of(lmb)
}

/// The guest memory block that a configuration leads to: what it asks for, or
/// the LMB within Linux's range. Guests of other VMMs have 128 MiB or up to
/// 2 GiB; the larger is given.
#[must_use]
pub fn guest_block_bytes(config: &Config) -> u64 {
    if config.vmm != VmmChoice::LmbVmm.name() {
        return MOST_BLOCK_BYTES;
    }
    match config.guest_block_option_bytes {
        0 => config
            .lmb_size_bytes
            .clamp(LEAST_BLOCK_BYTES, MOST_BLOCK_BYTES),
        fixed => fixed,
    }
}

#[cfg(test)]
#[path = "sweep_tests.rs"]
mod tests;
