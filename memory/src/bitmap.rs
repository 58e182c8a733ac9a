//! A fixed-length bitmap with word-wise range operations: one bit for each
//! LMB, 64 KiB for 524,288 of them.

use std::ops::Range;

#[derive(Clone, Debug)]
pub(crate) struct Bitmap {
    words: Vec<u64>,
    len: u64,
}

const WORD: u64 = 64;

impl Bitmap {
    /// `len` bits, all clear.
    pub(crate) fn new(len: u64) -> Self {
        let words = usize::try_from(len.div_ceil(WORD)).unwrap_or(usize::MAX);
        Self {
            words: vec![0; words],
            len,
        }
    }

    pub(crate) fn get(&self, index: u64) -> bool {
        index < self.len
            && self
                .words
                .get(word_of(index))
                .is_some_and(|word| word >> (index % WORD) & 1 == 1)
    }

    /// How many bits of the range are set; bits past the end count as clear.
    pub(crate) fn count(&self, range: Range<u64>) -> u64 {
        masks(range, self.len)
            .map(|(word, mask)| u64::from((self.words[word] & mask).count_ones()))
            .sum()
    }

    /// Sets or clears the bits of the range; those past the end do not exist.
    pub(crate) fn fill(&mut self, range: Range<u64>, value: bool) {
        for (word, mask) in masks(range, self.len) {
            if value {
                self.words[word] |= mask;
            } else {
                self.words[word] &= !mask;
            }
        }
    }

    pub(crate) fn clear(&mut self) {
        self.words.fill(0);
    }

    /// Runs of set bits, ascending, as long as they are.
    pub(crate) fn runs(&self) -> Runs<'_> {
        self.runs_of(true)
    }

    /// Runs of clear bits, ascending, as long as they are.
    pub(crate) fn gaps(&self) -> Runs<'_> {
        self.runs_of(false)
    }

    fn runs_of(&self, value: bool) -> Runs<'_> {
        Runs {
            map: self,
            value,
            next: 0,
        }
    }

    /// First bit at or after `from` that is `value`, or the length.
    fn find(&self, from: u64, value: bool) -> u64 {
        let mut index = from;
        while index < self.len {
            let word = self.words[word_of(index)];
            let word = if value { word } else { !word };
            let rest = word & (u64::MAX << (index % WORD));
            if rest != 0 {
                let found = index - index % WORD + u64::from(rest.trailing_zeros());
                return found.min(self.len);
            }
            index = index - index % WORD + WORD;
        }
        self.len
    }
}

/// Iterator of [`Bitmap::runs`] and [`Bitmap::gaps`].
#[derive(Clone, Debug)]
pub(crate) struct Runs<'a> {
    map: &'a Bitmap,
    value: bool,
    next: u64,
}

impl Iterator for Runs<'_> {
    type Item = Range<u64>;

    fn next(&mut self) -> Option<Range<u64>> {
        let start = self.map.find(self.next, self.value);
        if start >= self.map.len {
            return None;
        }
        self.next = self.map.find(start, !self.value);
        Some(start..self.next)
    }
}

/// The words a range touches and which of their bits; clipped at `len`.
pub(crate) fn masks(range: Range<u64>, len: u64) -> impl Iterator<Item = (usize, u64)> {
    let end = range.end.min(len);
    let start = range.start.min(end);
    let words = start / WORD..end.div_ceil(WORD);
    words.map(move |word| {
        let low = start.saturating_sub(word * WORD);
        let high = (end - word * WORD).min(WORD);
        // `high` is 1 to 64: the word holds at least one bit of the range.
        let mask = (u64::MAX << low) & (u64::MAX >> (WORD - high));
        (word_of(word * WORD), mask)
    })
}

fn word_of(index: u64) -> usize {
    // An index past the address space finds no word.
    usize::try_from(index / WORD).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn agrees_with_a_vector_of_bools(
            len in 1_u64..300,
            steps in prop::collection::vec((0_u64..330, 0_u64..330, any::<bool>()), 0..20),
        ) {
            let mut map = Bitmap::new(len);
            let mut model = vec![false; usize::try_from(len).unwrap()];
            for (a, b, value) in steps {
                let (start, end) = (a.min(b), a.max(b));
                map.fill(start..end, value);
                for (_, bit) in (0..).zip(&mut model).filter(|(i, _)| (start..end).contains(i)) {
                    *bit = value;
                }
                let counted = (0..).zip(&model).filter(|(i, bit)| (start..end).contains(i) && **bit);
                prop_assert_eq!(map.count(start..end), counted.count() as u64);
            }
            for (index, bit) in (0..).zip(&model) {
                prop_assert_eq!(map.get(index), *bit);
            }
            prop_assert!(!map.get(len) && !map.get(u64::MAX));
            let mut rebuilt = vec![false; model.len()];
            let mut last_end = None;
            for run in map.runs() {
                prop_assert!(run.start < run.end && last_end.is_none_or(|end| end < run.start));
                last_end = Some(run.end);
                for index in run {
                    rebuilt[usize::try_from(index).unwrap()] = true;
                }
            }
            prop_assert_eq!(rebuilt, model);
            let mut both: Vec<_> = map.runs().chain(map.gaps()).collect();
            both.sort_by_key(|run| run.start);
            prop_assert!(both.windows(2).all(|pair| pair[0].end == pair[1].start));
            prop_assert_eq!((both[0].start, both[both.len() - 1].end), (0, len));
        }
    }
}
