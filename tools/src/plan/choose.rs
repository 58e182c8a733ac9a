//! The LMB size for a wanted granularity, and why.
//!
//! A size meets the granularity if memory can change in steps of it: it divides
//! the granularity. Without results the largest such size is chosen, since
//! fewer LMBs are less to manage. With the cost models of results the cheapest
//! is: of boot, add and remove, the figure in which a size does worst against
//! the best size counts. Sizes within [`EQUAL`] of the cheapest are equal, and
//! of equal ones the smallest is chosen, since it leaves more freedom and a
//! removal under load finds an empty one sooner. It also says what the next
//! larger size would gain, which is the price of the granularity.

use serde::Serialize;

use super::vm::{VmPlan, VmRow};
use crate::bench::sample::Step;
use crate::report::environment::Environments;
use crate::report::figure::change;
use crate::report::model::predict::{Prediction, Refusal};
use crate::report::model::rows::{Fitted, Subject};
use crate::units::format_size;

/// Costs that differ by less are equal.
pub const EQUAL: f64 = 0.05;

/// What a model says of one LMB size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Predicted {
    /// LMB size.
    pub lmb_size_bytes: u64,
    /// Index of the model.
    pub model: usize,
    /// Memory that boots, or is added or removed.
    pub bytes: u64,
    /// The prediction, or why there is none.
    #[serde(serialize_with = "prediction_or_refusal")]
    pub prediction: Result<Prediction, Refusal>,
}

fn prediction_or_refusal<S: serde::Serializer>(
    prediction: &Result<Prediction, Refusal>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match prediction {
        Ok(prediction) => prediction.serialize(serializer),
        Err(refusal) => refusal.to_string().serialize(serializer),
    }
}

/// The size chosen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Choice {
    /// LMB size.
    pub lmb_size_bytes: u64,
    /// Why, a sentence each.
    pub why: Vec<String>,
}

/// Predictions of all models that fit the plan's rows: boots, first adds and
/// first removals of an idle lmb-vmm in the driver's mode of the row.
#[must_use]
pub fn predict(plans: &[VmPlan], models: &[Fitted], amount_bytes: u64) -> Vec<Predicted> {
    let mut all = Vec::new();
    for (index, fitted) in models.iter().enumerate() {
        if !about_plans(fitted) {
            continue;
        }
        for row in plans.iter().filter_map(VmPlan::row) {
            if fitted.mode().is_some_and(|mode| mode != row.driver_mode) {
                continue;
            }
            all.push(Predicted {
                lmb_size_bytes: row.lmb_size_bytes,
                model: index,
                bytes: bytes(fitted, row, amount_bytes),
                prediction: predicted(fitted, row, amount_bytes),
            });
        }
    }
    all
}

fn about_plans(fitted: &Fitted) -> bool {
    let config = fitted.groups.first().map(|group| &group.config);
    config.is_some_and(|c| c.vmm == "lmb-vmm" && c.load == "none")
        && matches!(
            fitted.subject,
            Subject::Boot | Subject::Dlpar(Step::FirstAdd | Step::FirstRemove)
        )
}

fn bytes(fitted: &Fitted, row: &VmRow, amount_bytes: u64) -> u64 {
    match fitted.subject {
        Subject::Boot | Subject::BootPlugged => row.boot_bytes,
        Subject::Dlpar(_) => amount_bytes,
    }
}

fn predicted(fitted: &Fitted, row: &VmRow, amount_bytes: u64) -> Result<Prediction, Refusal> {
    let mut amounts = fitted.target(
        bytes(fitted, row, amount_bytes),
        row.lmb_size_bytes,
        row.guest_block_bytes,
    );
    match fitted.subject {
        Subject::Boot | Subject::BootPlugged => {
            amounts[0] = crate::report::stats::real(row.guest_blocks_at_boot);
        }
        Subject::Dlpar(_) => {
            let slots = super::rules::blocks(amount_bytes, row.slot_size_bytes);
            amounts[2] = crate::report::stats::real(slots);
        }
    }
    fitted.predict(&amounts)
}

/// What a choice rests on.
#[derive(Clone, Copy, Debug)]
pub struct Evidence<'a> {
    /// Predictions; none without results.
    pub predictions: &'a [Predicted],
    /// The models they are of.
    pub models: &'a [Fitted],
    /// Letters for them.
    pub environments: &'a Environments,
}

/// Chooses among the plan's rows.
///
/// # Errors
/// A sentence when no size meets the granularity.
pub fn choose(
    plans: &[VmPlan],
    granularity_bytes: u64,
    evidence: &Evidence<'_>,
) -> Result<Choice, String> {
    let mut sizes: Vec<u64> = plans
        .iter()
        .filter_map(VmPlan::row)
        .map(|row| row.lmb_size_bytes)
        .collect();
    sizes.sort_unstable();
    sizes.dedup();
    let meets = |size: &u64| granularity_bytes.is_multiple_of((*size).max(1));
    let meeting: Vec<u64> = sizes.iter().copied().filter(meets).collect();
    let granularity = format_size(granularity_bytes);
    let Some(largest) = meeting.last().copied() else {
        return Err(format!(
            "no LMB size of the plan divides a granularity of {granularity}; add a smaller one to \
             --lmb-size"
        ));
    };
    let Some((chosen, cheaper_larger)) = cheapest(&meeting, evidence.predictions) else {
        return Ok(Choice {
            lmb_size_bytes: largest,
            why: vec![
                format!(
                    "{} is the largest LMB size of the plan with which memory changes in steps of \
                     {granularity}: the fewest LMBs to manage.",
                    format_size(largest)
                ),
                without_predictions(evidence.predictions),
            ],
        });
    };
    let mut why = vec![reason(chosen, &granularity, &meeting, cheaper_larger)];
    let others = meeting.iter().rev().filter(|size| **size != chosen);
    why.extend(others.filter_map(|size| evidence.against(*size, chosen)));
    let next = sizes.iter().find(|size| **size > chosen && !meets(size));
    if let Some(text) = next.and_then(|size| evidence.against(*size, chosen)) {
        why.push(format!("The price of the granularity: {text}"));
    }
    Ok(Choice {
        lmb_size_bytes: chosen,
        why,
    })
}

/// The smallest of the sizes that are as good as the cheapest, and whether
/// there are larger ones it was weighed against.
fn cheapest(sizes: &[u64], predictions: &[Predicted]) -> Option<(u64, bool)> {
    let costs: Vec<(u64, f64)> = sizes
        .iter()
        .filter_map(|size| Some((*size, worst_ratio(*size, sizes, predictions)?)))
        .collect();
    let least = costs.iter().map(|(_, cost)| *cost).fold(f64::MAX, f64::min);
    let equal = costs
        .iter()
        .filter(|(_, cost)| *cost <= least * (1.0 + EQUAL));
    let chosen = equal.map(|(size, _)| *size).min()?;
    Some((chosen, costs.iter().any(|(size, _)| *size > chosen)))
}

fn without_predictions(predictions: &[Predicted]) -> String {
    let refused = predictions.iter().find_map(|p| p.prediction.as_ref().err());
    match refused {
        Some(refusal) => format!("The results do not say what that is worth: {refusal}."),
        None => "Results of `lmb bench` (--from) would say what that is worth.".to_owned(),
    }
}

fn reason(chosen: u64, granularity: &str, meeting: &[u64], larger: bool) -> String {
    let chosen_size = format_size(chosen);
    if meeting.len() == 1 {
        return format!(
            "{chosen_size} is the only LMB size of the plan with which memory changes in steps of \
             {granularity}."
        );
    }
    let rank = if larger {
        "is as cheap as any larger one to within 5 %, and leaves more freedom"
    } else {
        "is the cheapest"
    };
    format!(
        "Of the sizes with which memory changes in steps of {granularity}, {chosen_size} {rank}."
    )
}

/// The worst of a size's predictions, each by the best size's of the same
/// model; none unless every model that predicts for any of the sizes does for
/// this one.
fn worst_ratio(size: u64, sizes: &[u64], predictions: &[Predicted]) -> Option<f64> {
    let relevant = || {
        predictions
            .iter()
            .filter(|p| sizes.contains(&p.lmb_size_bytes))
    };
    let ns = |p: &Predicted| p.prediction.as_ref().ok().map(|p| p.ns);
    let mut worst: Option<f64> = None;
    for mine in relevant().filter(|p| p.lmb_size_bytes == size) {
        let of_model = || relevant().filter(|p| p.model == mine.model);
        let Some(best) = of_model().filter_map(ns).reduce(f64::min) else {
            continue;
        };
        let ratio = ns(mine)? / best;
        worst = Some(worst.map_or(ratio, |w| w.max(ratio)));
    }
    worst
}

impl Evidence<'_> {
    /// `512 MiB instead of 256 MiB: boot -2.00 %, first add …`.
    fn against(&self, size: u64, chosen: u64) -> Option<String> {
        let of = |size: u64, model: usize| {
            let mut all = self.predictions.iter();
            let found = all.find(|p| p.lmb_size_bytes == size && p.model == model)?;
            found.prediction.as_ref().ok().map(|p| p.ns)
        };
        let letters = self.letters();
        let several = letters.windows(2).any(|pair| pair[0].1 != pair[1].1);
        let changes: Vec<String> = letters
            .iter()
            .filter_map(|(index, letter)| {
                let share = of(size, *index)? / of(chosen, *index)? - 1.0;
                let name = self.models.get(*index)?.subject.name();
                let conf = if several {
                    format!(" (conf. {letter})")
                } else {
                    String::new()
                };
                Some(format!("{name}{conf} {}", change(share)))
            })
            .collect();
        (!changes.is_empty()).then(|| {
            format!(
                "{} instead of {}: {}.",
                format_size(size),
                format_size(chosen),
                changes.join(", ")
            )
        })
    }

    /// Models that predicted, with the letters of their environments.
    fn letters(&self) -> Vec<(usize, String)> {
        let mut used: Vec<usize> = self.predictions.iter().map(|p| p.model).collect();
        used.sort_unstable();
        used.dedup();
        let letter = |index: usize| {
            let group = self.models.get(index)?.groups.first()?;
            Some((index, self.environments.letter(group)))
        };
        used.into_iter().filter_map(letter).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::vm::{VmRequest, plan};
    use crate::report::group::group;
    use crate::report::model::rows::models;
    use crate::report::testing::{Costs, Dlpar, design, design_of};
    use lmb_memory::GuestBlock;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;
    const SIZES: [u64; 6] = [128 * MIB, 256 * MIB, 512 * MIB, GIB, 2 * GIB, 4 * GIB];

    fn without_results(plans: &[VmPlan], granularity: u64) -> Result<Choice, String> {
        let evidence = Evidence {
            predictions: &[],
            models: &[],
            environments: &Environments::default(),
        };
        choose(plans, granularity, &evidence)
    }

    fn with_results(granularity: u64, samples: &[crate::bench::sample::Sample]) -> Choice {
        let groups = group(samples);
        let models = models(&groups);
        let plans = plans();
        let predictions = predict(&plans, &models, 32 * GIB);
        assert!(
            predictions.iter().all(|p| p.prediction.is_ok()),
            "{predictions:?}"
        );
        let evidence = Evidence {
            predictions: &predictions,
            models: &models,
            environments: &Environments::of(&groups),
        };
        choose(&plans, granularity, &evidence).unwrap()
    }

    fn plans() -> Vec<VmPlan> {
        let request = VmRequest {
            memory_bytes: 64 * GIB,
            max_memory_bytes: Some(128 * GIB),
            guest_block: GuestBlock::Follow,
            slot_size_bytes: None,
            hotplug: lmb_memory::Hotplug::VirtioMem,
        };
        SIZES.map(|lmb| plan(&request, lmb)).into()
    }

    #[test]
    fn without_results_the_largest_that_divides() {
        let choice = without_results(&plans(), 768 * MIB).unwrap();
        assert_eq!(choice.lmb_size_bytes, 256 * MIB);
        let choice = without_results(&plans(), GIB).unwrap();
        assert_eq!(choice.lmb_size_bytes, GIB);
        assert!(choice.why[1].contains("--from"), "{choice:?}");
        let error = without_results(&plans(), 64 * MIB).unwrap_err();
        assert!(
            error.contains("64 MiB") && error.contains("--lmb-size"),
            "{error}"
        );
    }

    #[test]
    fn with_results_the_cheapest_and_the_price_of_going_smaller() {
        let choice = with_results(256 * MIB, &design());
        assert_eq!(choice.lmb_size_bytes, 256 * MIB);
        let why = choice.why.join("\n");
        assert!(why.contains("256 MiB is the cheapest"), "{why}");
        assert!(
            why.contains("128 MiB instead of 256 MiB: first add +"),
            "{why}"
        );
        let price = "The price of the granularity: 512 MiB instead of 256 MiB: first add -";
        assert!(why.contains(price), "{why}");
    }

    #[test]
    fn of_equally_cheap_sizes_the_smallest() {
        // Costs that hardly depend on the LMB.
        let flat = Costs {
            constant: 1_000_000,
            block: 100,
            request: 100,
            slot: 100,
            gib: 9_000_000,
        };
        let base = || Dlpar {
            add: flat,
            remove: flat,
            ..Dlpar::default()
        };
        let choice = with_results(4 * GIB, &design_of(base));
        assert_eq!(choice.lmb_size_bytes, 128 * MIB);
        assert!(
            choice.why[0].contains("as cheap as any larger one"),
            "{choice:?}"
        );
    }

    #[test]
    fn models_of_two_kernels_are_told_apart() {
        let mut samples = design();
        samples.extend(design_of(|| Dlpar {
            edit: |config| config.kernel = "6.12".to_owned(),
            ..Dlpar::default()
        }));
        let why = with_results(256 * MIB, &samples).why.join("\n");
        assert!(
            why.contains("first add (conf. a) +") && why.contains("first add (conf. b) +"),
            "{why}"
        );
    }
}
