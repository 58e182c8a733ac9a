//! Work that grows with blocks and memory together.
//!
//! For each memory block that comes or goes, Linux walks all of the zone's
//! memory (6.1: `set_zone_contiguous` in mm/page_alloc.c, called by
//! `online_pages` and `remove_pfn_range_from_zone` in mm/memory_hotplug.c). A
//! block thus costs more the more memory there is, which no cost of a block
//! alone describes: it would be found too small at small amounts, and what it
//! says of large ones would be far too little.
//!
//! The cost is found before the others, from rows in which blocks vary at two
//! amounts at least, and taken off all rows; [`super::fit`] sees the rest.

use super::fit::{Point, Slope};
use crate::report::stats::{mean, real};

/// Blocks times GiB of the zone: each of `blocks`, that make up `gib` together,
/// finds there what came before it, and itself.
#[must_use]
pub fn walked(blocks: f64, gib: f64) -> f64 {
    (blocks + 1.0) / 2.0 * gib
}

/// The cost of a block for each GiB of its zone; `known` are the costs of
/// requests and of slots, where rows tell them. None where rows do not tell.
#[must_use]
pub fn cost(
    points: &[Point],
    walked: &[f64],
    (request, slot): (Option<&Slope>, Option<&Slope>),
) -> Option<Slope> {
    let all: Vec<Row> = points
        .iter()
        .zip(walked)
        .filter(|(point, _)| request.is_some() || point.amounts[0] == point.amounts[1])
        .map(|(point, walked)| Row {
            // Without the cost of a request, it is part of its block's.
            ns: point.ns
                - request.map_or(0.0, |cost| cost.per_unit_ns * point.amounts[1])
                - slot.map_or(0.0, |cost| cost.per_unit_ns * point.amounts[2]),
            blocks: point.amounts[0],
            walked: *walked,
            slots: point.amounts[2],
            gib: point.amounts[3],
        })
        .collect();
    let series = series(&all, slot.is_none());
    joint(&series)
}

#[derive(Clone, Copy)]
struct Row {
    ns: f64,
    blocks: f64,
    walked: f64,
    slots: f64,
    gib: f64,
}

/// Rows of one amount, and of equal slots where their cost is not known, in
/// which blocks vary.
fn series(rows: &[Row], by_slots: bool) -> Vec<Vec<Row>> {
    let mut all: Vec<Vec<Row>> = Vec::new();
    for row in rows {
        let same = |part: &&mut Vec<Row>| {
            part.first()
                .is_some_and(|r| r.gib == row.gib && (!by_slots || r.slots == row.slots))
        };
        match all.iter_mut().find(same) {
            Some(part) => part.push(*row),
            None => all.push(vec![*row]),
        }
    }
    all.retain(|part| part.iter().any(|row| row.blocks != part[0].blocks));
    all
}

/// Least squares over blocks and walked together, each series with a constant
/// of its own: the cost of the latter.
fn joint(series: &[Vec<Row>]) -> Option<Slope> {
    let count = |n: usize| real(u64::try_from(n).unwrap_or(u64::MAX));
    let rows: usize = series.iter().map(Vec::len).sum();
    let freedom = rows.checked_sub(series.len().checked_add(2)?)?;
    let within = |a: fn(&Row) -> f64, b: fn(&Row) -> f64| -> f64 {
        let part = |part: &Vec<Row>| {
            let mean_a = mean(&part.iter().map(a).collect::<Vec<_>>());
            let mean_b = mean(&part.iter().map(b).collect::<Vec<_>>());
            let products = part.iter().map(|row| (a(row) - mean_a) * (b(row) - mean_b));
            products.sum::<f64>()
        };
        series.iter().map(part).sum()
    };
    let n = |row: &Row| row.blocks;
    let w = |row: &Row| row.walked;
    let y = |row: &Row| row.ns;
    let (nn, nw, ww) = (within(n, n), within(n, w), within(w, w));
    let determinant = nn * ww - nw * nw;
    // At one amount walked is as good as proportional to blocks.
    if freedom == 0 || determinant <= 1e-6 * nn * ww {
        return None;
    }
    let (ny, wy) = (within(n, y), within(w, y));
    let block = (ww * ny - nw * wy) / determinant;
    let walk = (nn * wy - nw * ny) / determinant;
    let left = within(y, y) - block * ny - walk * wy;
    let error_ns = (left.max(0.0) / count(freedom) * nn / determinant).sqrt();
    Some(Slope {
        per_unit_ns: walk,
        error_ns,
        rows,
        series: series.len(),
        corrected_for: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::model::fit::fit;

    fn point(blocks: f64, requests: f64, gib: f64, walk_ns: f64) -> Point {
        Point {
            amounts: [blocks, requests, 1.0, gib],
            ns: 1e7 + 8e4 * blocks + 1e5 * requests + 2.6e7 * gib + walk_ns * walked(blocks, gib),
        }
    }

    fn found(points: &[Point], request: Option<&Slope>) -> Option<Slope> {
        let walked: Vec<f64> = points
            .iter()
            .map(|p| walked(p.amounts[0], p.amounts[3]))
            .collect();
        cost(points, &walked, (request, None))
    }

    #[test]
    fn blocks_find_what_came_before_them() {
        // Blocks of 1 GiB: 1 + 2 + 3 + 4.
        assert_eq!(walked(4.0, 4.0), 10.0);
        assert_eq!(walked(1.0, 2.0), 2.0);
    }

    #[test]
    fn the_walk_is_told_from_the_block_at_two_amounts() {
        let two: Vec<Point> = [
            (4.0, 8.0),
            (4.0, 16.0),
            (4.0, 32.0),
            (32.0, 16.0),
            (32.0, 64.0),
        ]
        .map(|(gib, blocks)| point(blocks, blocks, gib, 9e4))
        .to_vec();
        let slope = found(&two, None).unwrap();
        assert!((slope.per_unit_ns - 9e4).abs() < 1.0, "{slope:?}");
        let none: Vec<Point> = two
            .iter()
            .map(|p| point(p.amounts[0], p.amounts[1], p.amounts[3], 0.0))
            .collect();
        assert!(found(&none, None).unwrap().per_unit_ns.abs() < 1e-3);
    }

    #[test]
    fn one_amount_does_not_tell() {
        let one: Vec<Point> = [8.0, 16.0, 32.0, 64.0]
            .map(|blocks| point(blocks, blocks, 32.0, 9e4))
            .to_vec();
        assert_eq!(found(&one, None), None);
        assert_eq!(found(&[], None), None);
    }

    #[test]
    fn requests_that_vary_by_themselves_take_no_part_unless_their_cost_is_known() {
        let mut all: Vec<Point> = [
            (4.0, 8.0),
            (4.0, 32.0),
            (32.0, 16.0),
            (32.0, 64.0),
            (32.0, 256.0),
        ]
        .map(|(gib, blocks)| point(blocks, 1.0, gib, 9e4))
        .to_vec();
        assert_eq!(found(&all, None), None);
        all.extend([2.0, 8.0, 32.0].map(|requests| point(32.0, requests, 4.0, 9e4)));
        let model = fit(&all).unwrap();
        let request = model.terms[1].slope().unwrap();
        let slope = found(&all, Some(request)).unwrap();
        assert!((slope.per_unit_ns - 9e4).abs() < 1.0, "{slope:?}");
    }
}
