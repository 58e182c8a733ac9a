//! From a model to a figure for other quantities, or why not.
//!
//! The rule, which every table of predictions prints ([`RULE`]): the model must
//! fit, know the cost of everything that differs from its rows, have no cost
//! that is surely negative, and be certain enough of the figure.

use std::fmt;

use serde::Serialize;

use super::fit::{Model, Slope, Term, Unknown};
use super::{Amounts, QUANTITIES, Quantity};

/// Rows a model must cover at least.
pub const ROWS_MIN: usize = 4;
/// The largest relative residual of a model that fits.
pub const RESIDUAL_MAX: f64 = 0.05;
/// The smallest R² of a model that fits.
pub const R_SQUARED_MIN: f64 = 0.99;
/// The largest standard error of a prediction.
pub const UNCERTAINTY_MAX: f64 = 0.25;

/// The rule in words.
pub const RULE: &str = "A prediction is refused unless the model covers at least 4 rows, no \
residual is over 5 %, R² is at least 0.99 (or the rows vary by less than 5 % in all), the cost of \
every quantity that differs from the rows is known, none is below zero by more than twice its \
error, and the prediction's standard error is at most 25 %.";

/// A predicted figure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// Nanoseconds of the model's clock.
    pub ns: f64,
    /// Its standard error.
    pub error_ns: f64,
    /// How many times the largest measured amount the farthest quantity is; 1
    /// or less within what was measured.
    pub beyond: f64,
}

impl Prediction {
    /// Whether it lies outside of what was measured.
    #[must_use]
    pub fn extrapolated(&self) -> bool {
        self.beyond > 1.0
    }
}

/// Why there is no prediction.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// Too few rows.
    TooFewRows(usize),
    /// The model does not describe its own rows.
    BadFit {
        /// Largest relative residual.
        worst_residual: f64,
        /// R².
        r_squared: f64,
    },
    /// The target differs in something whose cost is not known.
    UnknownCost {
        /// What.
        quantity: Quantity,
        /// Why it is not known.
        why: Unknown,
    },
    /// The model knows blocks with a request each only.
    NotARequestEach,
    /// Rows do not tell whether blocks cost more the more memory there is, and
    /// the target has far more of both.
    ZoneUnknown,
    /// More of it makes it faster, which no cost does.
    Negative(Quantity),
    /// Standard error by prediction.
    Uncertain(f64),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use crate::report::figure::percent;
        match self {
            Self::TooFewRows(rows) => {
                write!(f, "the model covers {rows} of the {ROWS_MIN} rows it needs")
            }
            Self::BadFit {
                worst_residual,
                r_squared,
            } => write!(
                f,
                "the model does not fit: largest residual {}, R² {r_squared:.4}",
                percent(*worst_residual)
            ),
            Self::UnknownCost { quantity, why } => {
                write!(
                    f,
                    "the cost of a {} is not known: {}",
                    quantity.name(),
                    Why(*quantity, why)
                )
            }
            Self::NotARequestEach => f.write_str(
                "guest blocks and requests were varied together only, and here they differ",
            ),
            Self::ZoneUnknown => f.write_str(
                "whether a guest block costs more the more memory there is did not show; sweep \
                 blocks at two amounts",
            ),
            Self::Negative(quantity) => write!(
                f,
                "more {} make it faster in these rows, which is no cost to go on with",
                quantity.plural()
            ),
            Self::Uncertain(share) => {
                write!(f, "its standard error would be {}", percent(*share))
            }
        }
    }
}

/// Why a cost is unknown, and which sweep would tell.
pub struct Why<'a>(
    /// Of what.
    pub Quantity,
    /// Why.
    pub &'a Unknown,
);

impl fmt::Display for Why<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1 {
            Unknown::Fixed(value) => write!(
                f,
                "{} did not vary ({} in every row)",
                self.0.plural(),
                crate::report::figure::count(*value)
            )?,
            Unknown::VariesWith(others) => {
                let names: Vec<&str> = others.iter().map(|q| q.plural()).collect();
                write!(
                    f,
                    "{} did not vary with {} fixed",
                    self.0.plural(),
                    names.join(" and ")
                )?;
            }
            Unknown::TooFewRows => write!(
                f,
                "{} varied alone in too few rows (three values or two pairs are needed)",
                self.0.plural()
            )?,
        }
        write!(f, "; {}", hint(self.0))
    }
}

fn hint(quantity: Quantity) -> &'static str {
    match quantity {
        Quantity::Blocks => "sweep --guest-block-size at the largest LMB size",
        Quantity::Requests => "sweep --lmb-size with --guest-block-size 128M and one --slot-size",
        Quantity::Slots => "sweep --slot-size",
        Quantity::Gib => "sweep the amount, with block, LMB and slot sizes growing along",
    }
}

impl Model {
    /// The rule's part that concerns the model alone.
    ///
    /// # Errors
    /// Why the model is not fit for predictions.
    pub fn judge(&self) -> Result<(), Refusal> {
        let rows = self.residuals.len();
        if rows < ROWS_MIN {
            return Err(Refusal::TooFewRows(rows));
        }
        let explains = self.r_squared >= R_SQUARED_MIN || self.variation < RESIDUAL_MAX;
        if self.worst_residual > RESIDUAL_MAX || !explains {
            return Err(Refusal::BadFit {
                worst_residual: self.worst_residual,
                r_squared: self.r_squared,
            });
        }
        Ok(())
    }

    /// Predicts the cost of other quantities by [`RULE`].
    ///
    /// # Errors
    /// The first part of the rule that does not hold.
    pub fn predict(&self, amounts: &Amounts) -> Result<Prediction, Refusal> {
        self.judge()?;
        let mut ns = self.constant_ns;
        let mut variance = self.deviation_ns.powi(2);
        let mut add = |quantity: Quantity, slope: &Slope| -> Result<(), Refusal> {
            let amount = amounts[quantity.index()];
            let per_unit = if slope.per_unit_ns + 2.0 * slope.error_ns < 0.0 {
                return Err(Refusal::Negative(quantity));
            } else {
                slope.per_unit_ns
            };
            ns += per_unit * amount;
            variance += ((amount - self.means[quantity.index()]) * slope.error_ns).powi(2);
            Ok(())
        };
        for (quantity, term) in QUANTITIES.into_iter().zip(&self.terms) {
            let index = quantity.index();
            match (term, &self.block_with_request) {
                (Term::Known(slope), _) => add(quantity, slope)?,
                (Term::Unknown(_), Some(slope)) if quantity == Quantity::Blocks => {
                    if amounts[0] != amounts[1] {
                        return Err(Refusal::NotARequestEach);
                    }
                    add(quantity, slope)?;
                }
                (Term::Unknown(_), Some(_)) if quantity == Quantity::Requests => (),
                (Term::Unknown(_), _) if amounts[index] == self.from[index] => (),
                (Term::Unknown(why), _) => {
                    let why = why.clone();
                    return Err(Refusal::UnknownCost { quantity, why });
                }
            }
        }
        let error_ns = variance.sqrt();
        let share = error_ns / ns.abs().max(1.0);
        if ns <= 0.0 || share > UNCERTAINTY_MAX {
            return Err(Refusal::Uncertain(share));
        }
        Ok(Prediction {
            ns,
            error_ns,
            beyond: self.beyond(amounts),
        })
    }

    fn beyond(&self, amounts: &Amounts) -> f64 {
        let mut beyond = 0.0f64;
        let measured = self.from.iter().zip(&self.to);
        for (amount, (from, to)) in amounts.iter().zip(measured) {
            let above = if *to > 0.0 { amount / to } else { 0.0 };
            let below = if *amount > 0.0 { from / amount } else { 0.0 };
            beyond = beyond.max(above).max(below);
        }
        beyond
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::model::fit::{Point, fit};
    use proptest::prelude::*;

    fn model(rows: &[(Amounts, f64)]) -> Model {
        let points: Vec<Point> = rows
            .iter()
            .map(|(amounts, ns)| Point {
                amounts: *amounts,
                ns: *ns,
            })
            .collect();
        fit(&points).unwrap()
    }

    fn blocks(cost: impl Fn(f64) -> f64) -> Model {
        let rows = [16.0, 32.0, 64.0, 128.0].map(|n| ([n, 0.0, 0.0, 64.0], cost(n)));
        model(&rows)
    }

    #[test]
    fn a_line_goes_on_and_says_how_far() {
        let model = blocks(|n| 1e9 + n * 6e5);
        let near = model.predict(&[100.0, 0.0, 0.0, 64.0]).unwrap();
        assert!((near.ns - 1.06e9).abs() < 1.0 && !near.extrapolated());
        let far = model.predict(&[1280.0, 0.0, 0.0, 64.0]).unwrap();
        assert!((far.ns - 1.768e9).abs() < 1.0 && far.extrapolated());
        assert_eq!(far.beyond, 10.0);
        assert!(
            model
                .predict(&[8.0, 0.0, 0.0, 64.0])
                .unwrap()
                .extrapolated()
        );
    }

    #[test]
    fn what_did_not_vary_cannot_be_predicted() {
        let refusal = blocks(|n| 1e9 + n * 6e5)
            .predict(&[16.0, 0.0, 0.0, 65.0])
            .unwrap_err();
        assert_eq!(
            refusal.to_string(),
            "the cost of a GiB is not known: GiB did not vary (64 in every row); sweep the amount, \
             with block, LMB and slot sizes growing along"
        );
    }

    #[test]
    fn a_bad_fit_is_refused() {
        let refusal = blocks(|n| 1e6 + n * n * 1e5)
            .predict(&[16.0, 0.0, 0.0, 64.0])
            .unwrap_err();
        assert!(matches!(refusal, Refusal::BadFit { .. }), "{refusal}");
        let few = model(&[16.0, 32.0, 64.0].map(|n| ([n, 0.0, 0.0, 64.0], n)));
        assert_eq!(
            few.predict(&[16.0, 0.0, 0.0, 64.0]),
            Err(Refusal::TooFewRows(3))
        );
    }

    #[test]
    fn noise_that_grows_with_distance_is_refused_in_time() {
        // A slope that is hardly above its noise fits its rows, and must not go far.
        let noise = [0.0, 1.9e7, -2.0e7, 1.1e7];
        let rows: Vec<(Amounts, f64)> = [16.0, 32.0, 64.0, 128.0]
            .iter()
            .zip(noise)
            .map(|(n, noise)| ([*n, 0.0, 0.0, 64.0], 1e9 + n * 1e4 + noise))
            .collect();
        let model = model(&rows);
        assert!(model.predict(&[100.0, 0.0, 0.0, 64.0]).is_ok());
        assert!(matches!(
            model.predict(&[245_760.0, 0.0, 0.0, 64.0]),
            Err(Refusal::Uncertain(_))
        ));
    }

    #[test]
    fn a_negative_cost_is_no_cost() {
        let refusal = blocks(|n| 2e9 - n * 1e6).predict(&[16.0, 0.0, 0.0, 64.0]);
        assert_eq!(refusal, Err(Refusal::Negative(Quantity::Blocks)));
    }

    #[test]
    fn a_pair_predicts_pairs_alone() {
        let rows = [32.0, 64.0, 128.0, 256.0].map(|n| ([n, n, 8.0, 32.0], 1e8 + n * 1e6));
        let model = model(&rows);
        let both = model.predict(&[512.0, 512.0, 8.0, 32.0]).unwrap();
        assert!((both.ns - 6.12e8).abs() < 1.0);
        assert_eq!(
            model.predict(&[512.0, 256.0, 8.0, 32.0]),
            Err(Refusal::NotARequestEach)
        );
    }

    proptest! {
        #[test]
        fn predictions_are_positive_and_certain(
            costs in prop::collection::vec(1.0f64..1e10, 4),
            target in prop::array::uniform4(0.0f64..1e6),
        ) {
            let rows: Vec<(Amounts, f64)> = [16.0, 32.0, 64.0, 128.0]
                .iter()
                .zip(costs)
                .map(|(n, cost)| ([*n, 0.0, 0.0, 64.0], cost))
                .collect();
            if let Ok(prediction) = model(&rows).predict(&target) {
                prop_assert!(prediction.ns > 0.0);
                prop_assert!(prediction.error_ns <= prediction.ns * UNCERTAINTY_MAX);
            }
        }
    }
}
