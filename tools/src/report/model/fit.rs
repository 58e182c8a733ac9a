//! Fitting costs, one quantity at a time.
//!
//! For a quantity, rows that agree in all others form a series; its cost is the
//! slope of least squares within the series, pooled over all of them, each with
//! a constant of its own. It takes one row more than the slope and the
//! constants need, and three values of the quantity or two pairs. When some costs are known, rows are corrected by them, and
//! only the quantities that are still unknown have to agree; a cost found so
//! names what it was corrected for.
//!
//! Often each guest block is one request. If neither can be told from the
//! other, the cost of a block with its request is fitted as one, from rows that
//! have as many of either, and the model holds for such operations only.
//!
//! Quantities that remain unknown must be fixed: the model then covers the
//! largest set of rows that agree in them.

use serde::Serialize;

use super::{Amounts, QUANTITIES, Quantity};
use crate::report::stats::mean;

/// One row: its quantities and what it cost, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Quantities.
    pub amounts: Amounts,
    /// Cost.
    pub ns: f64,
}

/// The cost of one unit of a quantity.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Slope {
    /// Nanoseconds for one.
    pub per_unit_ns: f64,
    /// Its standard error, that of corrections included.
    pub error_ns: f64,
    /// Rows it was fitted to.
    pub rows: usize,
    /// Series they form.
    pub series: usize,
    /// Quantities whose cost was taken off before.
    pub corrected_for: Vec<Quantity>,
}

/// Why a quantity's cost is not known.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unknown {
    /// It is the same in every row.
    Fixed(f64),
    /// It never varies without these.
    VariesWith(Vec<Quantity>),
    /// It varies alone in too few rows to tell a cost from noise.
    TooFewRows,
}

/// A quantity's cost, or why it is not known.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Term {
    /// Known.
    Known(Slope),
    /// Not known.
    Unknown(Unknown),
}

impl Term {
    /// The cost, if it is known.
    #[must_use]
    pub fn slope(&self) -> Option<&Slope> {
        match self {
            Self::Known(slope) => Some(slope),
            Self::Unknown(_) => None,
        }
    }
}

/// One row against the model.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Residual {
    /// Which of the points given.
    pub row: usize,
    /// What the model says.
    pub fitted_ns: f64,
    /// (measured - fitted) / measured.
    pub relative: f64,
}

/// A fitted model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Model {
    /// Cost of each quantity, in the order of [`QUANTITIES`].
    pub terms: [Term; 4],
    /// Cost of a guest block with its one request, where the two cannot be
    /// told apart.
    pub block_with_request: Option<Slope>,
    /// Cost that depends on no quantity.
    pub constant_ns: f64,
    /// Rows that the model covers, against it.
    pub residuals: Vec<Residual>,
    /// Rows that differ in a quantity whose cost is not known.
    pub left_out: Vec<usize>,
    /// Share of the variation that the model explains.
    pub r_squared: f64,
    /// (largest - smallest) / mean of the covered rows.
    pub variation: f64,
    /// Largest relative residual, without its sign.
    pub worst_residual: f64,
    /// Standard deviation of the residuals.
    pub deviation_ns: f64,
    /// Mean, smallest and largest of each quantity over the covered rows.
    pub means: Amounts,
    /// Smallest.
    pub from: Amounts,
    /// Largest.
    pub to: Amounts,
}

/// Fits a model; none without rows.
#[must_use]
pub fn fit(points: &[Point]) -> Option<Model> {
    let mut terms: [Option<Slope>; 4] = [const { None }; 4];
    let everything: Vec<usize> = (0..points.len()).collect();
    resolve(points, &everything, &mut terms, None);
    let mut domain = everything.clone();
    let mut pair = None;
    if terms[0].is_none() && terms[1].is_none() {
        let equal: Vec<usize> = everything
            .iter()
            .copied()
            .filter(|row| points[*row].amounts[0] == points[*row].amounts[1])
            .collect();
        if let Ok(slope) = separate(points, &equal, Target::Pair, &terms, None) {
            resolve(points, &equal, &mut terms, Some(&slope));
            pair = Some(slope);
            domain = equal;
        }
    }
    assemble(points, &domain, terms, pair)
}

/// Finds costs until no more can be found.
fn resolve(points: &[Point], rows: &[usize], terms: &mut [Option<Slope>; 4], pair: Option<&Slope>) {
    loop {
        let unknown = QUANTITIES.iter().filter(|q| {
            let covered = pair.is_some() && q.index() < 2;
            terms[q.index()].is_none() && !covered
        });
        let found: Vec<(usize, Slope)> = unknown
            .filter_map(|q| {
                let slope = separate(points, rows, Target::One(*q), terms, pair).ok()?;
                Some((q.index(), slope))
            })
            .collect();
        if found.is_empty() {
            return;
        }
        for (index, slope) in found {
            terms[index] = Some(slope);
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Target {
    One(Quantity),
    /// Blocks, with as many requests.
    Pair,
}

impl Target {
    fn index(self) -> usize {
        match self {
            Self::One(quantity) => quantity.index(),
            Self::Pair => 0,
        }
    }

    fn covers(self, index: usize) -> bool {
        index == self.index() || (self == Self::Pair && index < 2)
    }
}

/// The cost of one target from series in which everything unknown but it is
/// fixed.
fn separate(
    points: &[Point],
    rows: &[usize],
    target: Target,
    known: &[Option<Slope>; 4],
    pair: Option<&Slope>,
) -> Result<Slope, Unknown> {
    let x = target.index();
    let must_agree = |index: usize| {
        let paired = pair.is_some() && index < 2;
        !target.covers(index) && known[index].is_none() && !paired
    };
    let series: Vec<Vec<usize>> = series(points, rows, must_agree)
        .into_iter()
        .filter(|series| varies(points, series, x))
        .collect();
    if series.is_empty() {
        return Err(why_not(points, rows, x, must_agree));
    }
    let n: usize = series.iter().map(Vec::len).sum();
    let Some(freedom) = n
        .checked_sub(series.len().saturating_add(1))
        .filter(|f| *f > 0 && steps(points, &series, x) > 1)
    else {
        return Err(Unknown::TooFewRows);
    };
    let corrections: Vec<(usize, &Slope)> = known
        .iter()
        .enumerate()
        .filter(|(index, _)| !target.covers(*index))
        .filter_map(|(index, slope)| Some((index, slope.as_ref()?)))
        .chain(pair.map(|slope| (0, slope)))
        .filter(|(index, _)| series.iter().any(|s| varies(points, s, *index)))
        .collect();
    let cost = |row: usize| {
        let taken = corrections
            .iter()
            .map(|(index, slope)| slope.per_unit_ns * points[row].amounts[*index]);
        points[row].ns - taken.sum::<f64>()
    };
    let amount = |index: usize| move |row: usize| points[row].amounts[index];
    let sxx = within(&series, amount(x), amount(x));
    let slope = within(&series, amount(x), cost) / sxx;
    let left = within(&series, cost, cost) - slope * slope * sxx;
    let variance = left.max(0.0) / real(freedom) / sxx;
    let corrected: f64 = corrections
        .iter()
        .map(|(index, s)| (within(&series, amount(x), amount(*index)) / sxx * s.error_ns).powi(2))
        .sum();
    Ok(Slope {
        per_unit_ns: slope,
        error_ns: (variance + corrected).sqrt(),
        rows: n,
        series: series.len(),
        corrected_for: corrections
            .iter()
            .map(|(index, _)| QUANTITIES[*index])
            .collect(),
    })
}

/// Rows that agree exactly in the quantities that must.
fn series(points: &[Point], rows: &[usize], must_agree: impl Fn(usize) -> bool) -> Vec<Vec<usize>> {
    let mut all: Vec<Vec<usize>> = Vec::new();
    for row in rows {
        let agrees = |other: usize| {
            (0..4).all(|i| !must_agree(i) || points[*row].amounts[i] == points[other].amounts[i])
        };
        match all
            .iter_mut()
            .find(|s| s.first().is_some_and(|o| agrees(*o)))
        {
            Some(series) => series.push(*row),
            None => all.push(vec![*row]),
        }
    }
    all
}

fn varies(points: &[Point], rows: &[usize], index: usize) -> bool {
    let mut amounts = rows.iter().map(|row| points[*row].amounts[index]);
    let first = amounts.next();
    amounts.any(|amount| Some(amount) != first)
}

/// How often the amount changes, all series together: one change alone shows
/// no line.
fn steps(points: &[Point], series: &[Vec<usize>], index: usize) -> usize {
    let in_one = |rows: &Vec<usize>| {
        let mut amounts: Vec<f64> = rows.iter().map(|row| points[*row].amounts[index]).collect();
        amounts.sort_by(f64::total_cmp);
        amounts.dedup();
        amounts.len().saturating_sub(1)
    };
    series.iter().map(in_one).sum()
}

/// Sum over all series of the products of deviations from the series' means.
fn within(series: &[Vec<usize>], a: impl Fn(usize) -> f64, b: impl Fn(usize) -> f64) -> f64 {
    series
        .iter()
        .map(|rows| {
            let mean_a = mean(&rows.iter().map(|row| a(*row)).collect::<Vec<_>>());
            let mean_b = mean(&rows.iter().map(|row| b(*row)).collect::<Vec<_>>());
            let products = rows
                .iter()
                .map(|row| (a(*row) - mean_a) * (b(*row) - mean_b));
            products.sum::<f64>()
        })
        .sum()
}

/// The others that change in every pair of rows in which the quantity does.
fn why_not(
    points: &[Point],
    rows: &[usize],
    x: usize,
    must_agree: impl Fn(usize) -> bool,
) -> Unknown {
    if !varies(points, rows, x) {
        let value = rows.first().map_or(0.0, |row| points[*row].amounts[x]);
        return Unknown::Fixed(value);
    }
    let mut always = [true; 4];
    for (a, b) in pairs(rows) {
        let (a, b) = (&points[a].amounts, &points[b].amounts);
        if a[x] != b[x] {
            for (index, still) in always.iter_mut().enumerate() {
                *still &= a[index] != b[index];
            }
        }
    }
    let candidates = |strict: bool| -> Vec<Quantity> {
        QUANTITIES
            .into_iter()
            .filter(|q| q.index() != x && must_agree(q.index()))
            .filter(|q| !strict || always[q.index()])
            .collect()
    };
    let strict = candidates(true);
    Unknown::VariesWith(if strict.is_empty() {
        candidates(false)
    } else {
        strict
    })
}

fn pairs(rows: &[usize]) -> impl Iterator<Item = (usize, usize)> + '_ {
    rows.iter()
        .enumerate()
        .flat_map(|(i, a)| rows.iter().skip(i.saturating_add(1)).map(|b| (*a, *b)))
}

/// The model over the rows that agree in what is still unknown.
fn assemble(
    points: &[Point],
    domain: &[usize],
    slopes: [Option<Slope>; 4],
    pair: Option<Slope>,
) -> Option<Model> {
    let open = |index: usize| slopes[index].is_none() && (pair.is_none() || index > 1);
    let covered = series(points, domain, open)
        .into_iter()
        .rev()
        .max_by_key(Vec::len)?;
    let left_out = (0..points.len()).filter(|r| !covered.contains(r)).collect();
    let variable = |amounts: &Amounts| -> f64 {
        let single = slopes.iter().zip(amounts);
        let single =
            single.filter_map(|(slope, amount)| Some(slope.as_ref()?.per_unit_ns * amount));
        let both = pair
            .as_ref()
            .map_or(0.0, |slope| slope.per_unit_ns * amounts[0]);
        single.sum::<f64>() + both
    };
    let column = |f: &dyn Fn(&Point) -> f64| -> Vec<f64> {
        covered.iter().map(|row| f(&points[*row])).collect()
    };
    let constant_ns = mean(&column(&|p| p.ns - variable(&p.amounts)));
    let residuals: Vec<Residual> = covered
        .iter()
        .map(|row| {
            let point = &points[*row];
            let fitted_ns = constant_ns + variable(&point.amounts);
            let relative = (point.ns - fitted_ns) / point.ns.abs().max(1.0);
            Residual {
                row: *row,
                fitted_ns,
                relative,
            }
        })
        .collect();
    let costs = column(&|p| p.ns);
    let quality = quality(&costs, &residuals, &slopes, pair.is_some());
    let over = |pick: fn(f64, f64) -> f64| {
        [0, 1, 2, 3].map(|i| {
            column(&|p| p.amounts[i])
                .into_iter()
                .reduce(pick)
                .unwrap_or(0.0)
        })
    };
    Some(Model {
        terms: terms(points, &slopes),
        block_with_request: pair,
        constant_ns,
        left_out,
        r_squared: quality.r_squared,
        variation: quality.variation,
        worst_residual: residuals
            .iter()
            .map(|r| r.relative.abs())
            .fold(0.0, f64::max),
        deviation_ns: quality.deviation_ns,
        means: [0, 1, 2, 3].map(|i| mean(&column(&|p| p.amounts[i]))),
        from: over(f64::min),
        to: over(f64::max),
        residuals,
    })
}

/// Costs, and for those that are not known the reason.
fn terms(points: &[Point], slopes: &[Option<Slope>; 4]) -> [Term; 4] {
    [0, 1, 2, 3].map(|index| match &slopes[index] {
        Some(slope) => Term::Known(slope.clone()),
        None => {
            let target = Target::One(QUANTITIES[index]);
            let everything: Vec<usize> = (0..points.len()).collect();
            let why = separate(points, &everything, target, slopes, None).err();
            Term::Unknown(why.unwrap_or(Unknown::TooFewRows))
        }
    })
}

struct Quality {
    r_squared: f64,
    variation: f64,
    deviation_ns: f64,
}

fn quality(
    costs: &[f64],
    residuals: &[Residual],
    slopes: &[Option<Slope>; 4],
    pair: bool,
) -> Quality {
    let average = mean(costs);
    let total: f64 = costs.iter().map(|y| (y - average).powi(2)).sum();
    let left: f64 = costs
        .iter()
        .zip(residuals)
        .map(|(y, r)| (y - r.fitted_ns).powi(2))
        .sum();
    let largest = costs.iter().copied().fold(f64::MIN, f64::max);
    let smallest = costs.iter().copied().fold(f64::MAX, f64::min);
    let parameters = slopes.iter().flatten().count() + usize::from(pair) + 1;
    let freedom = costs.len().saturating_sub(parameters).max(1);
    Quality {
        r_squared: if total > 0.0 { 1.0 - left / total } else { 1.0 },
        variation: (largest - smallest) / average.abs().max(1.0),
        deviation_ns: (left / real(freedom)).sqrt(),
    }
}

fn real(count: usize) -> f64 {
    crate::report::stats::real(u64::try_from(count).unwrap_or(u64::MAX))
}

#[cfg(test)]
#[path = "fit_tests.rs"]
mod tests;
