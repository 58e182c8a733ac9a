//! Which groups belong to one model, and how much of each quantity they have.
//!
//! A model's groups agree in everything but sizes: VMM, kernel, command line,
//! vCPUs, load, host, operation, kind of hotplug, and the driver's mode, since
//! the driver does different work in either. Boots with all memory as RAM and boots that plug
//! memory are apart, too.

use serde::Serialize;

use super::Amounts;
use super::fit::{Model, Point, Residual, Slope, Term, fit};
use super::predict::{Prediction, Refusal, UNCERTAINTY_MAX};
use super::zone;
use crate::bench::sample::{Config, Host, Step};
use crate::plan::rules;
use crate::report::figure::Unit;
use crate::report::group::{Group, Kind, Moment};
use crate::report::stats::real;

const GIB: u64 = 1 << 30;

/// What a model is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Subject {
    /// Boots with all memory as RAM.
    Boot,
    /// Boots in which the guest plugs memory.
    BootPlugged,
    /// An add or remove.
    Dlpar(Step),
}

impl Subject {
    fn of(group: &Group) -> Self {
        match group.kind {
            Kind::Boot if group.config.plugged_at_boot_bytes > 0 => Self::BootPlugged,
            Kind::Boot => Self::Boot,
            Kind::Dlpar { step, .. } => Self::Dlpar(step),
        }
    }

    /// What tables call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Boot => "boot",
            Self::BootPlugged => "boot, memory plugged",
            Self::Dlpar(step) => crate::report::tables::step_name(Kind::Dlpar {
                step,
                amount_bytes: 0,
            }),
        }
    }
}

/// A model with the groups it was fitted to.
#[derive(Clone, Debug, PartialEq)]
pub struct Fitted {
    /// What it is about.
    pub subject: Subject,
    /// Unit of its nanoseconds.
    pub unit: Unit,
    /// Whether its figures are the executed part alone.
    pub executed: bool,
    /// Groups, in the order of the model's rows.
    pub groups: Vec<Group>,
    /// Their points.
    pub points: Vec<Point>,
    /// The model, of what is left when the zone's part is taken off.
    pub model: Model,
    /// Blocks times GiB of the zone, of each point.
    pub walked: Vec<f64>,
    /// What one of them costs, where the rows tell.
    pub zone: Option<Slope>,
}

/// Fits a model for everything a report has. Figures of the virtual host's wall
/// clock take part in none, and neither do groups with incomplete operations or
/// boots with LMBs left empty, which cost of their own.
#[must_use]
pub fn models(groups: &[Group]) -> Vec<Fitted> {
    let mut parts: Vec<Vec<&Group>> = Vec::new();
    for group in groups.iter().filter(|group| usable(group)) {
        let same = |part: &&mut Vec<&Group>| part.first().is_some_and(|g| key(g) == key(group));
        match parts.iter_mut().find(same) {
            Some(part) => part.push(group),
            None => parts.push(vec![group]),
        }
    }
    let mut all: Vec<Fitted> = parts.iter().filter_map(|part| fitted(part)).collect();
    all.sort_by_key(|fitted| fitted.subject);
    all
}

fn usable(group: &Group) -> bool {
    let complete = group.outcome.as_ref().is_none_or(|o| o.complete == o.of);
    complete
        && group.empty_lmbs() == 0
        && group.unit != Unit::EmulatedSeconds
        && group.times.contains_key(&Moment::Complete)
}

fn key(group: &Group) -> (Config, Host, Subject, Option<rules::DriverMode>) {
    let config = Config {
        memory_bytes: 0,
        max_memory_bytes: 0,
        plugged_at_boot_bytes: 0,
        lmb_size_bytes: 0,
        guest_block_option_bytes: 0,
        slot_size_bytes: 0,
        ..group.config.clone()
    };
    // A virtual host is sized for its sweep, and rows of several sweeps make a
    // model together.
    let host = Host {
        memory_bytes: 0,
        ..group.host.clone()
    };
    let subject = Subject::of(group);
    let mode = (subject != Subject::Boot).then(|| group.ruled_mode());
    (config, host, subject, mode)
}

fn fitted(part: &[&Group]) -> Option<Fitted> {
    let first = part.first()?;
    let timing = |group: &Group| group.times.get(&Moment::Complete).cloned();
    let executed = first.unit == Unit::Instructions
        && part
            .iter()
            .all(|group| timing(group).is_some_and(|t| t.executed.is_some()));
    let knows_slots = part.iter().all(|group| slots(group).is_some());
    let points: Vec<Point> = part
        .iter()
        .filter_map(|group| {
            let timing = timing(group)?;
            let summary = timing.executed.filter(|_| executed).unwrap_or(timing.total);
            let mut amounts = amounts(group);
            if !knows_slots {
                amounts[2] = 0.0;
            }
            Some(Point {
                amounts,
                ns: summary.median,
            })
        })
        .collect();
    let walked: Vec<f64> = part.iter().map(|group| walked(group)).collect();
    let rough = fit(&points)?;
    let zone = zone::cost(
        &points,
        &walked,
        (alone(&rough.terms[1]), alone(&rough.terms[2])),
    );
    let rest: Vec<Point> = points
        .iter()
        .zip(&walked)
        .map(|(point, walked)| Point {
            ns: point.ns - zone.as_ref().map_or(0.0, |cost| cost.per_unit_ns * walked),
            ..*point
        })
        .collect();
    Some(Fitted {
        subject: Subject::of(first),
        unit: first.unit,
        executed,
        groups: part.iter().map(|group| (*group).clone()).collect(),
        model: fit(&rest)?,
        points,
        walked,
        zone,
    })
}

/// A cost that was found with blocks and GiB fixed.
fn alone(term: &Term) -> Option<&Slope> {
    let early = |slope: &&Slope| {
        let late = [super::Quantity::Blocks, super::Quantity::Gib];
        !slope.corrected_for.iter().any(|q| late.contains(q))
    };
    term.slope().filter(early)
}

/// Blocks times GiB of the zone, of the memory that is plugged or unplugged.
fn walked(group: &Group) -> f64 {
    let plugged = match group.kind {
        Kind::Boot => group.config.plugged_at_boot_bytes,
        Kind::Dlpar { amount_bytes, .. } => amount_bytes,
    };
    if plugged == 0 {
        return 0.0;
    }
    let blocks = rules::blocks(plugged, group.guest_block_bytes());
    zone::walked(real(blocks), real(plugged) / real(GIB))
}

/// Quantities of a group: the guest's and the VMM's own counts where they are
/// known, else by rule.
fn amounts(group: &Group) -> Amounts {
    let block = group.guest_block_bytes();
    let (blocks, plugged) = match group.kind {
        // What is plugged, as requests are of that alone.
        Kind::Boot if group.config.plugged_at_boot_bytes > 0 => {
            let plugged = group.config.plugged_at_boot_bytes;
            (rules::blocks(plugged, block), plugged)
        }
        Kind::Boot => (
            group
                .guest
                .memory_blocks
                .unwrap_or_else(|| rules::blocks(group.bytes(), block)),
            group.config.plugged_at_boot_bytes,
        ),
        Kind::Dlpar { amount_bytes, .. } => (rules::blocks(amount_bytes, block), amount_bytes),
    };
    let counted = group.outcome.as_ref().and_then(|o| o.requests.as_ref());
    let requests = counted.map_or_else(
        || real(rules::requests(plugged, group.config.lmb_size_bytes, block)),
        |requests| requests.median,
    );
    [
        real(blocks),
        requests,
        slots(group).map_or(0.0, real),
        real(group.bytes()) / real(GIB),
    ]
}

/// Slots of the window that the operation fills or empties, where they are
/// known.
fn slots(group: &Group) -> Option<u64> {
    let config = &group.config;
    let (plugged, window) = match group.kind {
        Kind::Boot => (config.plugged_at_boot_bytes, config.plugged_at_boot_bytes),
        Kind::Dlpar { amount_bytes, .. } => {
            let window = config.max_memory_bytes.saturating_sub(config.memory_bytes);
            (amount_bytes, window)
        }
    };
    let slot = match config.slot_size_bytes {
        0 if config.vmm == "lmb-vmm" => rules::default_slot(config.lmb_size_bytes, window),
        0 if plugged == 0 => return Some(0),
        0 => return None,
        size => size,
    };
    Some(rules::blocks(plugged, slot))
}

impl Fitted {
    /// The quantities of an operation that this model could be asked for:
    /// `bytes` in all, in LMBs of `lmb_size_bytes`, with a guest block that
    /// follows the LMB where it did so in the rows.
    #[must_use]
    pub fn target(&self, bytes: u64, lmb_size_bytes: u64, guest_block_bytes: u64) -> Amounts {
        let plugged = match self.subject {
            Subject::Boot => 0,
            Subject::BootPlugged | Subject::Dlpar(_) => bytes,
        };
        let slot = rules::default_slot(lmb_size_bytes, plugged);
        let knows_slots = self.groups.iter().all(|group| slots(group).is_some());
        [
            real(rules::blocks(bytes, guest_block_bytes)),
            real(rules::requests(plugged, lmb_size_bytes, guest_block_bytes)),
            if knows_slots {
                real(rules::blocks(plugged, slot))
            } else {
                0.0
            },
            real(bytes) / real(GIB),
        ]
    }

    /// What the model says of these quantities, the zone's part included.
    ///
    /// # Errors
    /// Why it does not say anything.
    pub fn predict(&self, amounts: &Amounts) -> Result<Prediction, Refusal> {
        let rest = self.model.predict(amounts)?;
        let most = self.walked.iter().copied().fold(0.0, f64::max);
        let walked = match self.subject {
            Subject::Boot => return Ok(rest),
            Subject::BootPlugged | Subject::Dlpar(_) => zone::walked(amounts[0], amounts[3]),
        };
        let Some(cost) = &self.zone else {
            return if walked > 2.0 * most {
                Err(Refusal::ZoneUnknown)
            } else {
                Ok(rest)
            };
        };
        let ns = rest.ns + cost.per_unit_ns * walked;
        let error_ns = rest.error_ns.hypot(walked * cost.error_ns);
        let share = error_ns / ns.abs().max(1.0);
        if ns <= 0.0 || share > UNCERTAINTY_MAX {
            return Err(Refusal::Uncertain(share));
        }
        Ok(Prediction {
            ns,
            error_ns,
            beyond: rest.beyond.max(walked / most.max(1.0)),
        })
    }

    /// What the model says of one of its own rows.
    #[must_use]
    pub fn fitted_ns(&self, residual: &Residual) -> f64 {
        let walked = self.walked.get(residual.row).copied().unwrap_or(0.0);
        let zone = self.zone.as_ref().map_or(0.0, |cost| cost.per_unit_ns);
        residual.fitted_ns + zone * walked
    }

    /// The guest block that goes with an LMB size in this model: the same rule
    /// as in its rows, or their one size.
    #[must_use]
    pub fn block_for(&self, lmb_size_bytes: u64) -> u64 {
        let mut blocks = self.groups.iter().map(Group::guest_block_bytes);
        let first = blocks.next().unwrap_or(0);
        let follows = self
            .groups
            .iter()
            .all(|g| g.guest_block_bytes() == rules::following_block(g.config.lmb_size_bytes));
        if !follows && self.groups.len() > 1 && blocks.all(|block| block == first) {
            first
        } else {
            rules::following_block(lmb_size_bytes)
        }
    }

    /// The driver's mode that its rows are in, where it matters.
    #[must_use]
    pub fn mode(&self) -> Option<rules::DriverMode> {
        let first = self.groups.first()?;
        (self.subject != Subject::Boot).then(|| first.ruled_mode())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::sample::Clock;
    use crate::report::group::group;
    use crate::report::model::fit::Term;
    use crate::report::testing::{Boot, Costs, Dlpar, MIB, design};

    #[test]
    fn the_costs_of_generated_adds_and_removes_come_out() {
        let groups = group(&design());
        let models = models(&groups);
        for (step, costs) in [
            (Step::FirstAdd, Costs::ADD),
            (Step::FirstRemove, Costs::REMOVE),
        ] {
            let fitted = models
                .iter()
                .find(|m| {
                    m.subject == Subject::Dlpar(step)
                        && m.mode() == Some(rules::DriverMode::BigBlock)
                })
                .unwrap();
            assert!(fitted.executed);
            let expected = [costs.block, costs.request, costs.slot, costs.gib];
            for (term, expected) in fitted.model.terms.iter().zip(expected) {
                let slope = term.slope().unwrap();
                let off = (slope.per_unit_ns - real(expected)).abs();
                assert!(
                    off < 0.05 * real(expected) + 3.0 * slope.error_ns,
                    "{step:?} {slope:?} {expected}"
                );
            }
            assert_eq!(fitted.model.judge(), Ok(()));
        }
    }

    #[test]
    fn boots_of_one_memory_size_tell_the_cost_of_blocks_alone() {
        let sizes = [128 * MIB, 256 * MIB, 512 * MIB, GIB, 2 * GIB];
        let samples: Vec<_> = sizes
            .iter()
            .flat_map(|lmb| {
                Boot {
                    lmb: *lmb,
                    ..Boot::default()
                }
                .samples(3)
            })
            .collect();
        let models = models(&group(&samples));
        let model = &models[0].model;
        let slope = model.terms[0].slope().unwrap();
        assert!((slope.per_unit_ns - 600_000.0).abs() < 6_000.0, "{slope:?}");
        assert!(matches!(model.terms[3], Term::Unknown(_)));
    }

    #[test]
    fn the_emulated_wall_clock_takes_part_in_no_model() {
        let mut host = crate::report::testing::host();
        host.clock = Clock::Wall;
        let boot = Boot {
            host,
            ..Boot::default()
        };
        assert_eq!(models(&group(&boot.samples(4))), []);
    }

    #[test]
    fn a_host_sized_for_its_sweep_parts_no_model() {
        let mut samples = Boot::default().samples(1);
        let mut larger = Boot {
            lmb: GIB,
            ..Boot::default()
        };
        larger.host.memory_bytes *= 2;
        samples.extend(larger.samples(1));
        let models = models(&group(&samples));
        assert_eq!((models.len(), models[0].groups.len()), (1, 2));
    }

    #[test]
    fn boots_with_empty_lmbs_take_part_in_no_model() {
        let empty = Boot {
            empty: 4096,
            ..Boot::default()
        };
        assert_eq!(models(&group(&empty.samples(4))), []);
    }

    #[test]
    fn modes_and_kernels_are_apart() {
        let mut samples = Dlpar::default().samples(1);
        samples.extend(
            Dlpar {
                block: 2 * GIB,
                ..Dlpar::default()
            }
            .samples(1),
        );
        samples.extend(
            Dlpar {
                edit: |c| c.kernel = "6.12".to_owned(),
                ..Dlpar::default()
            }
            .samples(1),
        );
        samples.extend(
            Dlpar {
                edit: |c| c.hotplug = "acpi".to_owned(),
                ..Dlpar::default()
            }
            .samples(1),
        );
        let models = models(&group(&samples));
        assert_eq!(models.len(), 4 * 4);
        let acpi = |m: &&Fitted| m.mode() == Some(rules::DriverMode::Acpi);
        assert_eq!(models.iter().filter(acpi).count(), 4);
    }
}
