//! In which order a round runs its configurations.
//!
//! What drifts (a host's caches, its heat, its neighbours) must not fall on
//! the same configuration each time, so the order changes from round to round,
//! and always in the same way: round `r` is turned by two places for each pair
//! of rounds before it, and every second round goes backwards.

/// Which of `count` configurations runs at each position of round `round`.
#[must_use]
pub fn of_round(count: usize, round: u32) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    if count == 0 {
        return order;
    }
    let pairs = usize::try_from(round / 2).unwrap_or(0) % count;
    order.rotate_left(pairs.saturating_mul(2) % count);
    if round % 2 == 1 {
        order.reverse();
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_first_rounds_by_hand() {
        assert_eq!(of_round(4, 0), [0, 1, 2, 3]);
        assert_eq!(of_round(4, 1), [3, 2, 1, 0]);
        assert_eq!(of_round(4, 2), [2, 3, 0, 1]);
        assert_eq!(of_round(4, 3), [1, 0, 3, 2]);
        assert_eq!(of_round(2, 2), [0, 1]);
        assert_eq!(of_round(1, 5), [0]);
        assert_eq!(of_round(0, 5), Vec::<usize>::new());
    }

    proptest! {
        #[test]
        fn every_round_runs_everything_once_and_not_as_the_one_before(
            count in 2_usize..40, round in 0_u32..1000,
        ) {
            let order = of_round(count, round);
            let mut sorted = order.clone();
            sorted.sort_unstable();
            prop_assert_eq!(sorted, (0..count).collect::<Vec<_>>());
            prop_assert_ne!(order, of_round(count, round + 1));
        }

        /// Over an even number of rounds no place in time is anyone's own: the
        /// mean position of each configuration is the middle.
        #[test]
        fn two_rounds_are_balanced(count in 2_usize..40, pair in 0_u32..20) {
            let (one, two) = (of_round(count, pair * 2), of_round(count, pair * 2 + 1));
            for configuration in 0..count {
                let place = |order: &[usize]| order.iter().position(|c| *c == configuration);
                prop_assert_eq!(place(&one).zip(place(&two)).map(|(a, b)| a + b), Some(count - 1));
            }
        }
    }
}
