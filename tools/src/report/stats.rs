//! Repeats of one figure: median, spread and outliers.

use serde::Serialize;

/// A value this many robust standard deviations from the median is an outlier
/// (Iglewicz and Hoaglin's modified z-score).
pub const OUTLIER_Z: f64 = 3.5;
/// From a median absolute deviation to a standard deviation, for a normal
/// distribution.
const MAD_TO_SIGMA: f64 = 1.4826;
/// The same from a mean absolute deviation, for when more than half of the
/// values are equal and the median of deviations is 0.
const MEAN_DEVIATION_TO_SIGMA: f64 = 1.2533;
/// With fewer values than this none is called an outlier.
const OUTLIERS_FROM: usize = 4;

/// What repeats of a figure come to. Outliers are shown and stay in: the median
/// does not follow them, and the spread must not hide them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// How many there are, one at least.
    pub n: usize,
    /// The middle one, or the mean of the two in the middle.
    pub median: f64,
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
    /// (max - min) / median; 0 for a median of 0.
    pub spread: f64,
    /// Values far from the median, ascending.
    pub outliers: Vec<f64>,
}

impl Summary {
    /// Summarises values; none for no value.
    #[must_use]
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.into_iter().filter(|v| v.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let median = median_of_sorted(&sorted)?;
        let spread = if median == 0.0 {
            0.0
        } else {
            (max - min) / median.abs()
        };
        let outliers = outliers(&sorted, median);
        Some(Self {
            n: sorted.len(),
            median,
            min,
            max,
            spread,
            outliers,
        })
    }
}

fn median_of_sorted(sorted: &[f64]) -> Option<f64> {
    let upper = *sorted.get(sorted.len() / 2)?;
    if sorted.len().is_multiple_of(2) {
        let lower = *sorted.get((sorted.len() / 2).checked_sub(1)?)?;
        Some(lower + (upper - lower) / 2.0)
    } else {
        Some(upper)
    }
}

fn outliers(sorted: &[f64], median: f64) -> Vec<f64> {
    if sorted.len() < OUTLIERS_FROM {
        return Vec::new();
    }
    let mut deviations: Vec<f64> = sorted.iter().map(|v| (v - median).abs()).collect();
    deviations.sort_by(f64::total_cmp);
    let mad = median_of_sorted(&deviations).unwrap_or(0.0);
    let sigma = if mad > 0.0 {
        mad * MAD_TO_SIGMA
    } else {
        mean(&deviations) * MEAN_DEVIATION_TO_SIGMA
    };
    let far = |v: &&f64| (*v - median).abs() > OUTLIER_Z * sigma;
    sorted.iter().filter(far).copied().collect()
}

/// The mean; 0 of nothing.
#[must_use]
pub fn mean(values: &[f64]) -> f64 {
    let Ok(n) = u32::try_from(values.len()) else {
        return 0.0;
    };
    if n == 0 {
        return 0.0;
    }
    values.iter().sum::<f64>() / f64::from(n)
}

/// A count as a number to calculate with. Exact to 2^53, far beyond what a
/// sample can hold of anything but a broken file.
#[must_use]
pub fn real(count: u64) -> f64 {
    let high = u32::try_from(count >> 32).unwrap_or(u32::MAX);
    let low = u32::try_from(count & u64::from(u32::MAX)).unwrap_or(u32::MAX);
    f64::from(high) * 4_294_967_296.0 + f64::from(low)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn medians_of_odd_and_even_counts() {
        assert_eq!(Summary::of([]), None);
        assert_eq!(Summary::of([f64::NAN]), None);
        assert_eq!(Summary::of([3.0, 1.0, 2.0]).unwrap().median, 2.0);
        let even = Summary::of([4.0, 1.0, 2.0, 3.0]).unwrap();
        assert_eq!(
            (even.median, even.min, even.max, even.n),
            (2.5, 1.0, 4.0, 4)
        );
        assert_eq!(even.spread, 3.0 / 2.5);
        assert_eq!(Summary::of([0.0, 0.0]).unwrap().spread, 0.0);
    }

    #[test]
    fn one_slow_run_is_an_outlier_and_does_not_move_the_median() {
        let runs = [1627.456, 1627.465, 1627.466, 1627.491, 1641.0];
        let summary = Summary::of(runs).unwrap();
        assert_eq!(summary.median, 1627.466);
        assert_eq!(summary.outliers, [1641.0]);
        assert_eq!(summary.max, 1641.0);
    }

    #[test]
    fn an_outlier_among_equal_values_is_found() {
        let summary = Summary::of([5.0, 5.0, 5.0, 5.0, 5.0, 9.0]).unwrap();
        assert_eq!(summary.outliers, [9.0]);
    }

    #[test]
    fn three_values_have_no_outlier() {
        assert_eq!(Summary::of([1.0, 1.0, 99.0]).unwrap().outliers, [0.0; 0]);
    }

    #[test]
    fn counts_as_numbers() {
        for count in [0, 1, u64::from(u32::MAX), 1 << 32, (1 << 53) - 1] {
            assert_eq!(format!("{:.0}", real(count)), count.to_string());
        }
    }

    proptest! {
        #[test]
        fn order_does_not_matter_and_bounds_hold(
            mut values in prop::collection::vec(0.0f64..1e12, 1..40),
        ) {
            let forward = Summary::of(values.clone()).unwrap();
            values.reverse();
            let backward = Summary::of(values.clone()).unwrap();
            prop_assert_eq!(&backward, &forward);
            prop_assert!(forward.min <= forward.median && forward.median <= forward.max);
            prop_assert!(forward.outliers.len() * 2 < values.len().max(1));
            prop_assert!(forward.outliers.iter().all(|v| values.contains(v)));
        }

        #[test]
        fn no_value_breaks_it(values in prop::collection::vec(any::<f64>(), 0..20)) {
            let summary = Summary::of(values);
            prop_assert!(summary.is_none_or(|s| s.n > 0));
        }
    }
}
