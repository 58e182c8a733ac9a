//! LMBs for partition sizes × LMB sizes: the article's table.

use serde::Serialize;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

/// The article's partition sizes; its 1 TB is 1024 GB.
pub const ARTICLE_PARTITIONS: [u64; 4] = [100 * GIB, TIB, 32 * TIB, 64 * TIB];
/// The article's LMB sizes.
pub const ARTICLE_LMB_SIZES: [u64; 5] = [128 * MIB, 256 * MIB, GIB, 2 * GIB, 4 * GIB];

/// A table of LMB counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Columns.
    pub lmb_sizes_bytes: Vec<u64>,
    /// Rows.
    pub rows: Vec<CountRow>,
}

/// One partition size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CountRow {
    /// Size of the partition.
    pub partition_bytes: u64,
    /// LMBs, in the order of [`Counts::lmb_sizes_bytes`]. A partition that is
    /// no whole number of LMBs is rounded up.
    pub lmbs: Vec<u64>,
    /// What the partition becomes by rounding, in the same order.
    pub rounded_bytes: Vec<u64>,
}

impl Counts {
    /// Counts LMBs. Sizes of 0 give counts of 0.
    #[must_use]
    pub fn new(partitions: &[u64], lmb_sizes: &[u64]) -> Self {
        let row = |&partition_bytes: &u64| {
            let lmbs: Vec<u64> = lmb_sizes
                .iter()
                .map(|lmb| super::rules::blocks(partition_bytes, *lmb))
                .collect();
            let rounded_bytes = lmbs
                .iter()
                .zip(lmb_sizes)
                .map(|(count, lmb)| count.saturating_mul(*lmb))
                .collect();
            CountRow {
                partition_bytes,
                lmbs,
                rounded_bytes,
            }
        };
        Self {
            lmb_sizes_bytes: lmb_sizes.to_vec(),
            rows: partitions.iter().map(row).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_articles_twenty_numbers() {
        let table = Counts::new(&ARTICLE_PARTITIONS, &ARTICLE_LMB_SIZES);
        let counts: Vec<&[u64]> = table.rows.iter().map(|row| row.lmbs.as_slice()).collect();
        assert_eq!(
            counts,
            [
                [800, 400, 100, 50, 25],
                [8_192, 4_096, 1_024, 512, 256],
                [262_144, 131_072, 32_768, 16_384, 8_192],
                [524_288, 262_144, 65_536, 32_768, 16_384],
            ]
        );
    }

    #[test]
    fn a_partition_is_rounded_up_to_whole_lmbs() {
        let table = Counts::new(&[GIB + 1], &[GIB, 4 * GIB]);
        assert_eq!(table.rows[0].lmbs, [2, 1]);
        assert_eq!(table.rows[0].rounded_bytes, [2 * GIB, 4 * GIB]);
    }

    proptest! {
        #[test]
        fn rounding_adds_less_than_an_lmb(partition in 1..=1u64 << 50, shift in 21u32..=32) {
            let lmb = 1u64 << shift;
            let table = Counts::new(&[partition], &[lmb]);
            let rounded = table.rows[0].rounded_bytes[0];
            prop_assert!(rounded >= partition && rounded - partition < lmb);
        }
    }
}
