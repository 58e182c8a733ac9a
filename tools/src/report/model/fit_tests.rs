//! Costs that are known go in, and must come out, or be refused.
#![allow(clippy::unwrap_used)]

use super::*;
use proptest::prelude::*;

const COSTS: Amounts = [600.0, 250.0, 40.0, 3000.0];
const CONSTANT: f64 = 100_000.0;

fn cost(amounts: &Amounts) -> f64 {
    CONSTANT + amounts.iter().zip(COSTS).map(|(a, c)| a * c).sum::<f64>()
}

fn points(all: &[Amounts]) -> Vec<Point> {
    all.iter()
        .map(|amounts| Point {
            amounts: *amounts,
            ns: cost(amounts),
        })
        .collect()
}

/// Each quantity doubled twice with the others fixed.
fn star() -> Vec<Amounts> {
    let base = [256.0, 64.0, 32.0, 32.0];
    let mut all = vec![base];
    for index in 0..4 {
        for factor in [2.0, 4.0] {
            let mut amounts = base;
            amounts[index] *= factor;
            all.push(amounts);
        }
    }
    all
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-6 * b.abs().max(1.0)
}

#[test]
fn each_cost_is_found_by_varying_one_quantity() {
    let model = fit(&points(&star())).unwrap();
    for (term, expected) in model.terms.iter().zip(COSTS) {
        let slope = term.slope().unwrap();
        assert!(close(slope.per_unit_ns, expected), "{slope:?}");
        assert_eq!((slope.rows, slope.series), (3, 1));
        assert_eq!(slope.corrected_for, []);
    }
    assert!(close(model.constant_ns, CONSTANT));
    assert!(model.worst_residual < 1e-9 && close(model.r_squared, 1.0));
    assert_eq!(model.residuals.len(), 9);
}

#[test]
fn what_does_not_vary_is_named() {
    let rows: Vec<Amounts> = [16.0, 32.0, 64.0, 128.0]
        .map(|n| [n, 16.0, 32.0, 32.0])
        .to_vec();
    let model = fit(&points(&rows)).unwrap();
    assert!(close(model.terms[0].slope().unwrap().per_unit_ns, COSTS[0]));
    assert_eq!(model.terms[1], Term::Unknown(Unknown::Fixed(16.0)));
    assert_eq!(model.terms[2], Term::Unknown(Unknown::Fixed(32.0)));
    assert_eq!(model.terms[3], Term::Unknown(Unknown::Fixed(32.0)));
}

#[test]
fn blocks_that_are_a_request_each_are_costed_together() {
    let rows: Vec<Amounts> = [32.0, 64.0, 128.0, 256.0]
        .map(|n| [n, n, 32.0, 32.0])
        .to_vec();
    let model = fit(&points(&rows)).unwrap();
    assert_eq!(
        model.terms[0],
        Term::Unknown(Unknown::VariesWith(vec![Quantity::Requests]))
    );
    assert_eq!(
        model.terms[1],
        Term::Unknown(Unknown::VariesWith(vec![Quantity::Blocks]))
    );
    let pair = model.block_with_request.unwrap();
    assert!(close(pair.per_unit_ns, COSTS[0] + COSTS[1]));
    assert!(model.worst_residual < 1e-9);
}

#[test]
fn rows_that_change_in_something_unknown_are_left_out() {
    // The sizes of a sweep whose slots grow with the largest LMBs.
    let rows = [
        [256.0, 256.0, 32.0, 32.0],
        [128.0, 128.0, 32.0, 32.0],
        [64.0, 64.0, 32.0, 32.0],
        [32.0, 32.0, 32.0, 32.0],
        [16.0, 16.0, 16.0, 32.0],
        [16.0, 8.0, 8.0, 32.0],
    ];
    let model = fit(&points(&rows)).unwrap();
    assert_eq!(model.left_out, [4, 5]);
    assert!(model.block_with_request.is_some());
    assert!(matches!(
        &model.terms[2],
        Term::Unknown(Unknown::VariesWith(_))
    ));
}

#[test]
fn a_known_cost_lets_others_vary_with_it() {
    // Slots alone; GiB only along with slots.
    let rows = [
        [64.0, 64.0, 8.0, 32.0],
        [64.0, 64.0, 16.0, 32.0],
        [64.0, 64.0, 32.0, 32.0],
        [64.0, 64.0, 64.0, 64.0],
        [64.0, 64.0, 128.0, 128.0],
    ];
    let model = fit(&points(&rows)).unwrap();
    let gib = model.terms[3].slope().unwrap();
    assert!(close(gib.per_unit_ns, COSTS[3]), "{gib:?}");
    assert_eq!(gib.corrected_for, [Quantity::Slots]);
    assert_eq!(model.terms[2].slope().unwrap().corrected_for, []);
}

#[test]
fn two_rows_are_too_few_for_a_cost() {
    let rows = [[16.0, 8.0, 8.0, 32.0], [32.0, 8.0, 8.0, 32.0]];
    let model = fit(&points(&rows)).unwrap();
    assert_eq!(model.terms[0], Term::Unknown(Unknown::TooFewRows));
    // Both rows cannot be covered, since their blocks differ at unknown cost.
    assert_eq!((model.residuals.len(), model.left_out.len()), (1, 1));
    assert!(fit(&[]).is_none());
}

#[test]
fn a_cost_that_grows_with_the_square_leaves_residuals() {
    let rows: Vec<Point> = [16.0f64, 32.0, 64.0, 128.0]
        .map(|n| Point {
            amounts: [n, 8.0, 8.0, 32.0],
            ns: 1000.0 + n * n * 10.0,
        })
        .to_vec();
    let model = fit(&rows).unwrap();
    assert!(model.worst_residual > 0.05, "{}", model.worst_residual);
}

proptest! {
    #[test]
    fn known_costs_come_out_under_noise(
        costs in prop::array::uniform4(1.0f64..1e6),
        constant in 1e6f64..1e9,
        noise in prop::collection::vec(-1.0f64..1.0, 9),
    ) {
        let all: Vec<Point> = star()
            .into_iter()
            .zip(&noise)
            .map(|(amounts, noise)| {
                let ns = constant + amounts.iter().zip(costs).map(|(a, c)| a * c).sum::<f64>();
                Point { amounts, ns: ns + noise }
            })
            .collect();
        let model = fit(&all).unwrap();
        for (term, expected) in model.terms.iter().zip(costs) {
            let slope = term.slope().unwrap();
            // Noise of at most 1 over a range of at least 96.
            prop_assert!((slope.per_unit_ns - expected).abs() < 0.05, "{:?} {}", slope, expected);
        }
    }

    #[test]
    fn any_rows_give_a_model_without_nonsense(
        rows in prop::collection::vec(
            (prop::array::uniform4(0u8..4), 1.0f64..1e12), 1..20),
    ) {
        let points: Vec<Point> = rows
            .iter()
            .map(|(a, ns)| Point { amounts: a.map(f64::from), ns: *ns })
            .collect();
        let model = fit(&points).unwrap();
        prop_assert_eq!(model.residuals.len() + model.left_out.len(), points.len());
        prop_assert!(model.constant_ns.is_finite() && model.deviation_ns.is_finite());
        for slope in model.terms.iter().filter_map(Term::slope) {
            prop_assert!(slope.per_unit_ns.is_finite() && slope.error_ns >= 0.0);
            prop_assert!(slope.rows >= slope.series + 2);
        }
    }
}
