//! How loud to be about what a guest can bring about as often as it likes: the
//! log is written by the event loop, which has more to do than that.
//!
//! States: silent → told (what, and when). Something else may be told once a
//! pause is over; the same again is not. One owner: a machine's half of a
//! window, so that each machine starts silent.

/// Least time between two loud messages after the first.
const PAUSE_NS: u64 = 10_000_000_000;

/// How loud one kind of message may be.
#[derive(Debug, Default)]
pub(super) struct Loudness {
    told: Option<(String, u64)>,
}

impl Loudness {
    /// Whether `what` is to be told loudly at `now_ns`: it is the first, or
    /// another than the last one told and the pause is over.
    pub(super) fn loud(&mut self, what: &str, now_ns: u64) -> bool {
        let loud = self
            .told
            .as_ref()
            .is_none_or(|(last, at_ns)| last != what && now_ns.saturating_sub(*at_ns) >= PAUSE_NS);
        if loud {
            self.told = Some((what.to_owned(), now_ns));
        }
        loud
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_told_and_then_what_is_new_after_a_pause() {
        let mut loudness = Loudness::default();
        assert!(loudness.loud("pool empty", 5));
        assert!(!loudness.loud("pool empty", 6));
        assert!(!loudness.loud("no slots", 7), "too soon");
        assert!(!loudness.loud("pool empty", u64::MAX), "nothing new");
        assert!(loudness.loud("no slots", 5 + PAUSE_NS));
        assert!(!loudness.loud("pool empty", 6 + PAUSE_NS));
        assert!(loudness.loud("pool empty", 5 + 2 * PAUSE_NS));
    }
}
