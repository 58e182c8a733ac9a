//! Cost models as tables.

use super::article::{Answer, answer};
use super::fit::{Slope, Term};
use super::predict::{Prediction, ROWS_MIN, RULE, Refusal, Why};
use super::rows::Fitted;
use super::{QUANTITIES, Quantity};
use crate::report::environment::Environments;
use crate::report::figure::{article_size, change, count, percent};
use crate::report::group::Group;
use crate::report::table::Table;
use crate::units::format_size;

/// Tables of all models: costs, residuals, the article's cases. Models of too
/// few rows are named below the first and left out of the others.
#[must_use]
pub fn tables(models: &[Fitted], environments: &Environments) -> Vec<Table> {
    let enough = |fitted: &&Fitted| fitted.groups.len() >= ROWS_MIN;
    let shown: Vec<&Fitted> = models.iter().filter(enough).collect();
    if shown.is_empty() {
        return Vec::new();
    }
    let few: Vec<&Fitted> = models.iter().filter(|fitted| !enough(fitted)).collect();
    vec![
        costs(&shown, &few, environments),
        residuals(&shown, environments),
        article(&shown, environments),
    ]
}

/// What a model is called in tables: operation, VMM, kernel and what else
/// parts models.
fn head(fitted: &Fitted, environments: &Environments) -> Vec<String> {
    let first = fitted.groups.first();
    let config = first.map(|group| &group.config);
    let text = |f: fn(&crate::bench::sample::Config) -> String| config.map(f).unwrap_or_default();
    vec![
        fitted.subject.name().to_owned(),
        text(|c| c.vmm.clone()),
        text(|c| c.kernel.clone()),
        text(|c| c.cpus.to_string()),
        text(|c| c.load.clone()),
        fitted.mode().map_or("-", |mode| mode.word()).to_owned(),
        first.map_or_else(String::new, |group| environments.letter(group)),
    ]
}

const HEAD: [&str; 7] = [
    "operation",
    "VMM",
    "kernel",
    ">vCPUs",
    "load",
    "driver mode",
    "conf.",
];

/// Columns that stand even if they are equal in all rows.
const KEPT: [&str; 3] = ["operation", "driver mode", "conf."];

fn costs(models: &[&Fitted], few: &[&Fitted], environments: &Environments) -> Table {
    let mut columns = HEAD.to_vec();
    columns.extend([
        "part",
        ">constant",
        ">per guest block",
        ">per request",
        ">block + its request",
        ">per block and GiB there",
        ">per slot",
        ">per GiB",
        ">rows",
        ">left out",
        ">R²",
        ">worst residual",
        "fit",
    ]);
    let mut table = Table::new("Cost model", &columns);
    for fitted in models {
        table.rows.push(cost_row(fitted, environments));
    }
    table.fold(&KEPT);
    table.notes.push(
        "Each cost is a least-squares slope over rows in which its quantity varies and the others \
         are fixed, with its standard error; * corrected for costs that were found before. Medians \
         of repeats are fitted. per block and GiB there: what a block costs more for each GiB that \
         its zone has, fitted before and taken off; it takes blocks varied at two amounts. left out: rows that differ in a quantity whose cost is not known."
            .to_owned(),
    );
    table.notes.push(
        "Rows with operations that did not reach their target, and figures of the virtual host's \
         wall clock, take part in no model."
            .to_owned(),
    );
    unknowns(models, environments, &mut table);
    if !few.is_empty() {
        let names: Vec<String> = few.iter().map(|f| short_name(f, environments)).collect();
        table.notes.push(format!(
            "No model, since there are fewer than {ROWS_MIN} rows: {}.",
            names.join("; ")
        ));
    }
    beside(models, environments, &mut table);
    table
}

fn cost_row(fitted: &Fitted, environments: &Environments) -> Vec<String> {
    let model = &fitted.model;
    let mut row = head(fitted, environments);
    let slope = |slope: Option<&Slope>| slope_cell(fitted, slope);
    row.push(if fitted.executed { "executed" } else { "all" }.to_owned());
    row.push(fitted.unit.show(model.constant_ns));
    let term = |quantity: Quantity| match absent(fitted, quantity) {
        true => "-".to_owned(),
        false => slope(model.terms[quantity.index()].slope()),
    };
    row.push(term(Quantity::Blocks));
    row.push(term(Quantity::Requests));
    row.push(match &model.block_with_request {
        Some(pair) => slope(Some(pair)),
        None => "-".to_owned(),
    });
    row.push(
        match (&fitted.zone, fitted.walked.iter().any(|w| *w > 0.0)) {
            (Some(zone), _) => slope(Some(zone)),
            (None, true) => "unknown".to_owned(),
            (None, false) => "-".to_owned(),
        },
    );
    row.push(term(Quantity::Slots));
    row.push(term(Quantity::Gib));
    row.push(model.residuals.len().to_string());
    row.push(model.left_out.len().to_string());
    row.push(format!("{:.5}", model.r_squared));
    row.push(percent(model.worst_residual));
    row.push(
        if model.judge().is_ok() {
            "good"
        } else {
            "refused"
        }
        .to_owned(),
    );
    row
}

/// Whether the rows have none of it: a boot with all memory as RAM has no
/// requests, and slots are not known of every VMM.
fn absent(fitted: &Fitted, quantity: Quantity) -> bool {
    let index = quantity.index();
    fitted
        .points
        .iter()
        .all(|point| point.amounts[index] == 0.0)
}

fn slope_cell(fitted: &Fitted, slope: Option<&Slope>) -> String {
    slope.map_or_else(
        || "unknown".to_owned(),
        |slope| {
            let star = if slope.corrected_for.is_empty() {
                ""
            } else {
                "*"
            };
            format!(
                "{}{star} ± {}",
                fitted.unit.show(slope.per_unit_ns),
                percent(slope.error_ns / slope.per_unit_ns.abs().max(1e-9))
            )
        },
    )
}

/// Reasons, each once, with the models it concerns.
#[derive(Default)]
struct Reasons(Vec<(String, Vec<String>)>);

impl Reasons {
    fn tell(&mut self, reason: String, whose: &str) {
        let whose = whose.to_owned();
        match self.0.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, names)) if names.contains(&whose) => (),
            Some((_, names)) => names.push(whose),
            None => self.0.push((reason, vec![whose])),
        }
    }

    fn notes(self) -> impl Iterator<Item = String> {
        self.0
            .into_iter()
            .map(|(reason, whose)| format!("{reason} [{}].", whose.join("; ")))
    }
}

/// Why costs are unknown and models refused.
fn unknowns(models: &[&Fitted], environments: &Environments, table: &mut Table) {
    let mut reasons = Reasons::default();
    for fitted in models {
        let whose = short_name(fitted, environments);
        for (quantity, term) in QUANTITIES.into_iter().zip(&fitted.model.terms) {
            if let (Term::Unknown(why), false) = (term, absent(fitted, quantity)) {
                reasons.tell(format!("Unknown: {}", Why(quantity, why)), &whose);
            }
        }
        if let Err(refusal) = fitted.model.judge() {
            reasons.tell(format!("Refused: {refusal}"), &whose);
        }
    }
    table.notes.extend(reasons.notes());
}

fn short_name(fitted: &Fitted, environments: &Environments) -> String {
    let head = head(fitted, environments);
    let mode = fitted
        .mode()
        .map_or(String::new(), |mode| format!(", {}", mode.word()));
    let load = match head.get(4).map(String::as_str) {
        Some("none") | None => String::new(),
        Some(load) => format!(", load {load}"),
    };
    let letter = head.last().cloned().unwrap_or_default();
    format!("{}{mode}{load}, conf. {letter}", fitted.subject.name())
}

fn residuals(models: &[&Fitted], environments: &Environments) -> Table {
    let mut columns = HEAD.to_vec();
    columns.extend([
        ">LMB",
        ">guest block",
        ">blocks",
        ">requests",
        ">slots",
        ">GiB",
        ">measured",
        ">model",
        ">residual",
    ]);
    let mut table = Table::new("Cost model against its rows", &columns);
    for fitted in models {
        for (index, (group, point)) in fitted.groups.iter().zip(&fitted.points).enumerate() {
            let mut row = head(fitted, environments);
            row.push(format_size(group.config.lmb_size_bytes));
            row.push(format_size(group.guest_block_bytes()));
            row.extend(point.amounts.map(count));
            row.push(fitted.unit.show(point.ns));
            let residual = fitted.model.residuals.iter().find(|r| r.row == index);
            row.push(residual.map_or_else(
                || "left out".to_owned(),
                |r| fitted.unit.show(fitted.fitted_ns(r)),
            ));
            row.push(residual.map_or_else(|| "-".to_owned(), |r| change(r.relative)));
            table.rows.push(row);
        }
    }
    table.fold(&[&KEPT[..], &["LMB", "guest block"]].concat());
    table.hoist_units();
    beside(models, environments, &mut table);
    table
}

fn article(models: &[&Fitted], environments: &Environments) -> Table {
    let mut columns = HEAD.to_vec();
    columns.extend([
        ">memory",
        ">256 MB",
        ">4096 MB",
        ">ratio",
        ">article's ratio",
        ">beyond measured",
    ]);
    let mut table = Table::new("EXTRAPOLATED to the article's sizes", &columns);
    let mut reasons = Reasons::default();
    for fitted in models {
        let answer = answer(fitted);
        let mut row = head(fitted, environments);
        row.push(article_size(answer.article.bytes));
        row.extend(
            answer
                .predictions
                .iter()
                .map(|p| prediction_cell(fitted, p)),
        );
        row.push(
            answer
                .ratio()
                .map_or_else(|| "-".to_owned(), |r| format!("{r:.1}")),
        );
        row.push(format!("{:.1}", answer.article.ratio()));
        row.push(beyond_cell(&answer));
        table.rows.push(row);
        let whose = short_name(fitted, environments);
        for refusal in answer.predictions.iter().filter_map(|p| p.as_ref().err()) {
            reasons.tell(format!("Refused: {refusal}"), &whose);
        }
    }
    table.fold(&[&KEPT[..], &["memory"]].concat());
    table.notes.push(
        "No measurement: what the cost models say of sizes far beyond their rows, in the unit \
         measured, with the standard error. ratio: 256 MB by 4096 MB. The article's is of RHEL 9.3 \
         on PowerVM (boot 222 s by 76 s, add 194 s by 16 s, remove 4473 s by 58 s)."
            .to_owned(),
    );
    table.notes.push(RULE.to_owned());
    table.notes.extend(reasons.notes());
    beside(models, environments, &mut table);
    table
}

/// A prediction with its error, `refused` without one.
#[must_use]
pub fn prediction_cell(fitted: &Fitted, prediction: &Result<Prediction, Refusal>) -> String {
    match prediction {
        Ok(p) => format!(
            "{}{} ± {}",
            if p.extrapolated() { "~" } else { "" },
            fitted.unit.show(p.ns),
            percent(p.error_ns / p.ns)
        ),
        Err(_) => "refused".to_owned(),
    }
}

fn beyond_cell(answer: &Answer) -> String {
    let beyond = answer.predictions.iter().flatten().map(|p| p.beyond);
    match beyond.reduce(f64::max) {
        Some(times) => format!("{times:.0} times"),
        None => "-".to_owned(),
    }
}

fn beside(models: &[&Fitted], environments: &Environments, table: &mut Table) {
    let groups: Vec<&Group> = models.iter().flat_map(|fitted| &fitted.groups).collect();
    environments.beside(table, &groups);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::group::group;
    use crate::report::model::rows::models;
    use crate::report::testing::{Boot, GIB, MIB, design};

    fn drawn(samples: &[crate::bench::sample::Sample]) -> Vec<Table> {
        let groups = group(samples);
        tables(&models(&groups), &Environments::of(&groups))
    }

    #[test]
    fn every_table_is_whole_and_extrapolations_say_so() {
        let tables = drawn(&design());
        assert_eq!(tables.len(), 3);
        for table in &tables {
            assert!(
                table
                    .rows
                    .iter()
                    .all(|row| row.len() == table.columns.len())
            );
            assert!(table.notes.iter().any(|note| note.starts_with("conf. a: ")));
        }
        assert!(tables[2].title.starts_with("EXTRAPOLATED"));
        let text = tables[2].terminal();
        assert!(text.contains("M instr ±") && text.contains(RULE), "{text}");
        assert!(!text.contains("Refused:"), "{text}");
    }

    #[test]
    fn few_rows_make_no_model_and_are_named() {
        assert_eq!(drawn(&Boot::default().samples(3)), []);
        let mut samples = design();
        samples.extend(Boot::default().samples(3));
        let notes = drawn(&samples)[0].notes.join("\n");
        assert!(
            notes.contains("fewer than 4 rows: boot, conf. a."),
            "{notes}"
        );
    }

    #[test]
    fn a_refusal_names_the_quantity_and_the_sweep_that_would_tell() {
        let samples: Vec<_> = [128 * MIB, 256 * MIB, 512 * MIB, GIB]
            .iter()
            .flat_map(|lmb| {
                Boot {
                    lmb: *lmb,
                    ..Boot::default()
                }
                .samples(2)
            })
            .collect();
        let tables = drawn(&samples);
        let notes = tables[0].notes.join("\n");
        assert!(
            notes.contains("Unknown: GiB did not vary (64 in every row)"),
            "{notes}"
        );
        assert!(!notes.contains("requests did not vary"), "{notes}");
        let article = tables[2].terminal();
        assert!(
            article.contains("Refused: the cost of a GiB is not known"),
            "{article}"
        );
    }
}
