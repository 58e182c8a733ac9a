//! The report for programs: rows, cost models and the article's cases. Times
//! are in nanoseconds of the row's `unit`: where that is `instructions`, one is
//! one instruction.

use serde::Serialize;

use super::figure::Unit;
use super::group::Group;
use super::model::article::{Article, answer};
use super::model::fit::{Model, Slope};
use super::model::predict::Prediction;
use super::model::rows::{Fitted, Subject};
use super::read::Source;

/// A report.
#[derive(Debug, Serialize)]
pub struct ReportJson<'a> {
    /// Lines of the files that were left out.
    passed_over: Vec<String>,
    /// Rows.
    rows: &'a [Group],
    /// Cost models.
    models: Vec<ModelJson<'a>>,
}

/// A cost model.
#[derive(Debug, Serialize)]
pub struct ModelJson<'a> {
    subject: Subject,
    vmm: &'a str,
    kernel: &'a str,
    cpus: u32,
    load: &'a str,
    hotplug: &'a str,
    driver_mode: Option<&'static str>,
    unit: Unit,
    executed: bool,
    /// Rows in the order of the model's row numbers.
    points: Vec<PointJson>,
    model: &'a Model,
    per_block_and_gib: Option<&'a Slope>,
    refused: Option<String>,
    extrapolated: ExtrapolatedJson,
}

#[derive(Debug, Serialize)]
struct PointJson {
    lmb_size_bytes: u64,
    guest_block_bytes: u64,
    blocks: f64,
    requests: f64,
    slots: f64,
    gib: f64,
    ns: f64,
}

#[derive(Debug, Serialize)]
struct ExtrapolatedJson {
    article: Article,
    lmb_256_mib: PredictionJson,
    lmb_4_gib: PredictionJson,
    ratio: Option<f64>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum PredictionJson {
    Predicted(Prediction),
    Refused(String),
}

impl<'a> ModelJson<'a> {
    /// A model for programs.
    #[must_use]
    pub fn of(fitted: &'a Fitted) -> Self {
        let config = fitted.groups.first().map(|group| &group.config);
        let answer = answer(fitted);
        let [small, large] = answer.predictions.clone().map(|p| match p {
            Ok(prediction) => PredictionJson::Predicted(prediction),
            Err(refusal) => PredictionJson::Refused(refusal.to_string()),
        });
        Self {
            subject: fitted.subject,
            vmm: config.map_or("", |c| &c.vmm),
            kernel: config.map_or("", |c| &c.kernel),
            cpus: config.map_or(0, |c| c.cpus),
            load: config.map_or("", |c| &c.load),
            hotplug: config.map_or("", |c| &c.hotplug),
            driver_mode: fitted.mode().map(|mode| mode.word()),
            unit: fitted.unit,
            executed: fitted.executed,
            points: points(fitted),
            model: &fitted.model,
            per_block_and_gib: fitted.zone.as_ref(),
            refused: fitted
                .model
                .judge()
                .err()
                .map(|refusal| refusal.to_string()),
            extrapolated: ExtrapolatedJson {
                article: answer.article,
                lmb_256_mib: small,
                lmb_4_gib: large,
                ratio: answer.ratio(),
            },
        }
    }
}

fn points(fitted: &Fitted) -> Vec<PointJson> {
    let both = fitted.groups.iter().zip(&fitted.points);
    both.map(|(group, point)| {
        let [blocks, requests, slots, gib] = point.amounts;
        PointJson {
            lmb_size_bytes: group.config.lmb_size_bytes,
            guest_block_bytes: group.guest_block_bytes(),
            blocks,
            requests,
            slots,
            gib,
            ns: point.ns,
        }
    })
    .collect()
}

impl<'a> ReportJson<'a> {
    /// A report for programs.
    #[must_use]
    pub fn of(sources: &[Source], rows: &'a [Group], models: &'a [Fitted]) -> Self {
        let passed_over = sources
            .iter()
            .flat_map(|s| s.passed_over.sentences(&s.name));
        Self {
            passed_over: passed_over.collect(),
            rows,
            models: models.iter().map(ModelJson::of).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::group::group;
    use crate::report::model::rows::models;
    use crate::report::testing::design;

    #[test]
    fn programs_get_rows_units_and_models() {
        let groups = group(&design());
        let models = models(&groups);
        let value = serde_json::to_value(ReportJson::of(&[], &groups, &models)).unwrap();
        assert_eq!(value["rows"].as_array().unwrap().len(), groups.len());
        assert_eq!(value["rows"][0]["unit"], "instructions");
        assert_eq!(value["rows"][0]["what"], "dlpar");
        let median = &value["rows"][0]["times"]["device_done"]["total"]["median"];
        assert!(median.as_f64().unwrap() > 0.0);
        assert_eq!(value["models"][0]["subject"]["dlpar"], "first_add");
        let known = &value["models"][0]["model"]["terms"][0]["known"]["per_unit_ns"];
        assert!(known.as_f64().unwrap() > 0.0, "{known}");
        assert!(value["models"][0]["extrapolated"]["lmb_4_gib"]["predicted"]["ns"].is_number());
    }
}
