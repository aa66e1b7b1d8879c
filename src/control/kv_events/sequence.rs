//! Sequence numbers of one publisher: is anything missing between two batches? Pure state.

/// The last number seen.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sequence {
    last: Option<u64>,
}

/// What a number says about the batch that carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The first batch seen. What was published before it is unknown.
    First {
        /// Batches published before it.
        missed: u64,
    },
    /// The next one.
    Next,
    /// Batches were lost.
    Gap {
        /// How many.
        missed: u64,
    },
    /// The publisher began again: another process, with an empty cache.
    Restarted,
}

impl Sequence {
    /// Numbers that are missing before this one, if any: from, and this one.
    pub(super) fn missing_before(&self, number: u64) -> Option<(u64, u64)> {
        let from = match self.last {
            Some(last) if number > last => last + 1,
            _ => 0,
        };
        (from < number).then_some((from, number))
    }

    /// Goes on after a number that was taken in another life.
    pub(super) fn after(last: u64) -> Self {
        Self { last: Some(last) }
    }

    /// The last number taken.
    pub(super) fn last(&self) -> Option<u64> {
        self.last
    }

    /// Takes the next number.
    pub(super) fn step(&mut self, number: u64) -> Step {
        let last = self.last.replace(number);
        match last {
            None => Step::First { missed: number },
            Some(last) if number <= last => Step::Restarted,
            Some(last) if number - last == 1 => Step::Next,
            Some(last) => Step::Gap { missed: number - last - 1 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_what_is_missing() {
        let mut sequence = Sequence::default();
        assert_eq!(sequence.missing_before(0), None);
        assert_eq!(sequence.missing_before(3), Some((0, 3)));
        sequence.step(5);
        assert_eq!(sequence.missing_before(6), None);
        assert_eq!(sequence.missing_before(9), Some((6, 9)));
        assert_eq!(sequence.missing_before(2), Some((0, 2)), "began again");
        assert_eq!(sequence.missing_before(0), None);
        assert_eq!(sequence.missing_before(u64::MAX), Some((6, u64::MAX)));
    }

    #[test]
    fn tells_gaps_from_restarts() {
        let mut sequence = Sequence::default();
        let steps: Vec<Step> =
            [5, 6, 9, 10, 0, 1, 1, u64::MAX].map(|number| sequence.step(number)).into();
        assert_eq!(
            steps,
            [
                Step::First { missed: 5 },
                Step::Next,
                Step::Gap { missed: 2 },
                Step::Next,
                Step::Restarted,
                Step::Next,
                Step::Restarted,
                Step::Gap { missed: u64::MAX - 2 },
            ]
        );
    }
}
