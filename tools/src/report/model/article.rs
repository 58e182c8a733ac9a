//! The article's own cases, by a model: boot of 60 TB, adding and removing
//! 1 TB, in LMBs of 256 MB and of 4096 MB.

use serde::Serialize;

use super::predict::{Prediction, Refusal};
use super::rows::{Fitted, Subject};
use crate::bench::sample::Step;

const TIB: u64 = 1 << 40;
/// The article's two LMB sizes.
pub const LMB_SIZES: [u64; 2] = [256 << 20, 4 << 30];

/// What the article measured on RHEL 9.3, seconds at 256 MB and at 4096 MB.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Article {
    /// Memory of the case.
    pub bytes: u64,
    /// Seconds, by LMB size.
    pub seconds: [f64; 2],
}

/// The article's case for a subject; it has none for a second add or removal,
/// which is taken for the same.
#[must_use]
pub fn case(subject: Subject) -> Article {
    match subject {
        Subject::Boot | Subject::BootPlugged => Article {
            bytes: 60 * TIB,
            seconds: [222.0, 76.0],
        },
        Subject::Dlpar(Step::FirstAdd | Step::SecondAdd) => Article {
            bytes: TIB,
            seconds: [194.0, 16.0],
        },
        Subject::Dlpar(Step::FirstRemove | Step::SecondRemove) => Article {
            bytes: TIB,
            seconds: [4473.0, 58.0],
        },
    }
}

/// A model's word on the article's case.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The case.
    pub article: Article,
    /// Prediction or refusal, by LMB size.
    pub predictions: [Result<Prediction, Refusal>; 2],
}

impl Answer {
    /// How many times longer small LMBs take, in this model.
    #[must_use]
    pub fn ratio(&self) -> Option<f64> {
        match &self.predictions {
            [Ok(small), Ok(large)] => Some(small.ns / large.ns),
            _ => None,
        }
    }
}

impl Article {
    /// The same in the article.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        self.seconds[0] / self.seconds[1]
    }
}

/// Asks a model for the article's case, with the guest block following the LMB.
#[must_use]
pub fn answer(fitted: &Fitted) -> Answer {
    let article = case(fitted.subject);
    let predictions = LMB_SIZES.map(|lmb| {
        let block = fitted.block_for(lmb);
        fitted.predict(&fitted.target(article.bytes, lmb, block))
    });
    Answer {
        article,
        predictions,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::group::group;
    use crate::report::model::rows::models;
    use crate::report::testing::{Boot, Costs, GIB, MIB, design};

    #[test]
    fn ratios_of_the_article() {
        let ratio = |subject| case(subject).ratio();
        assert_eq!(format!("{:.1}", ratio(Subject::Boot)), "2.9");
        assert_eq!(
            format!("{:.1}", ratio(Subject::Dlpar(Step::FirstAdd))),
            "12.1"
        );
        assert_eq!(
            format!("{:.0}", ratio(Subject::Dlpar(Step::FirstRemove))),
            "77"
        );
    }

    #[test]
    fn a_tib_by_known_costs() {
        let models = models(&group(&design()));
        let fitted = models
            .iter()
            .find(|m| m.subject == Subject::Dlpar(Step::FirstAdd))
            .unwrap();
        let answer = answer(fitted);
        let costs = Costs::ADD;
        let expected = |blocks: u64, requests: u64, slots: u64| {
            costs.constant
                + costs.block * blocks
                + costs.request * requests
                + costs.slot * slots
                + costs.gib * 1024
        };
        let cases = [expected(4096, 4096, 1024), expected(512, 256, 256)];
        for (prediction, expected) in answer.predictions.iter().zip(cases) {
            let prediction = prediction.as_ref().unwrap();
            let expected = crate::report::stats::real(expected);
            assert!(
                (prediction.ns - expected).abs() < expected / 50.0,
                "{prediction:?} {expected}"
            );
            assert!(prediction.extrapolated());
        }
    }

    #[test]
    fn boots_of_one_size_say_nothing_of_60_tb() {
        let samples: Vec<_> = [128 * MIB, 256 * MIB, 512 * MIB, GIB, 2 * GIB]
            .iter()
            .flat_map(|lmb| {
                Boot {
                    lmb: *lmb,
                    ..Boot::default()
                }
                .samples(2)
            })
            .collect();
        let models = models(&group(&samples));
        let answer = answer(&models[0]);
        assert_eq!(answer.ratio(), None);
        let why = answer.predictions[0].as_ref().unwrap_err().to_string();
        assert!(why.contains("GiB did not vary (64 in every row)"), "{why}");
    }
}
