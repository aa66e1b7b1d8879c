//! Keys of a prompt's prefixes at fixed lengths: two prompts with the same key at a length have the
//! same text up to there. Used to compare the requests that run on a rank.

use super::BlockKey;
use std::sync::Arc;
use twox_hash::XxHash3_64;

/// Prefixes of a prompt with a key, at most. The rest of a longer prompt has no keys.
pub const MARKS_MAX: usize = 40;
/// The first prefix has this length. Further lengths are no farther apart than a quarter of a
/// prefix, or this.
const STEP_BYTES: usize = 1 << 9;
/// Lengths per doubling of the prefix.
const STEPS: usize = 4;

/// Keys of prefixes, the shortest first. Cheap to copy: the request, its wait and its lease share
/// them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrefixMarks(Option<Arc<[u64]>>);

impl PrefixMarks {
    pub const NONE: Self = Self(None);

    /// Keys of a prompt. `root` separates prompts of different models, and is secret. Takes about a
    /// cycle per six bytes.
    #[must_use]
    pub fn of(root: BlockKey, text: &[u8]) -> Self {
        let mut name = root.bits();
        let mut from = 0;
        let mut names = [0; MARKS_MAX];
        let mut count = 0;
        for (place, bytes) in names.iter_mut().zip((0..).map(step_bytes)) {
            let Some(part) = text.get(from..from + bytes) else { break };
            name = XxHash3_64::oneshot_with_seed(name, part);
            *place = name;
            from += bytes;
            count += 1;
        }
        Self(names.get(..count).filter(|names| !names.is_empty()).map(Arc::from))
    }

    /// The keys, the shortest prefix first.
    #[must_use]
    pub fn names(&self) -> &[u64] {
        self.0.as_deref().unwrap_or(&[])
    }
}

/// Bytes of the prefix of that number, from 0 on, beyond the prefix before.
#[must_use]
#[inline]
pub fn step_bytes(number: usize) -> usize {
    // The first two rows have the same step: the second doubles the length of the first.
    let row = number / STEPS;
    STEP_BYTES << row.saturating_sub(1).min(MARKS_MAX / STEPS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{KeySeed, RootName};

    #[test]
    fn lengths_grow_by_a_quarter_at_most() {
        let steps = (0..MARKS_MAX).map(step_bytes);
        let lengths: Vec<usize> = steps
            .scan(0, |length, step| {
                *length += step;
                Some(*length)
            })
            .collect();
        assert_eq!(lengths[..3], [512, 1_024, 1_536]);
        assert_eq!(lengths[3..10], [4, 5, 6, 7, 8, 10, 12].map(|k| k << 9));
        assert_eq!(lengths[MARKS_MAX - 1], 1 << 20);
        for pair in lengths.windows(2) {
            let step = pair[1] - pair[0];
            assert!(step >= 512 && step * 4 <= pair[0].max(4 << 9), "{pair:?}");
        }
    }

    #[test]
    fn only_equal_beginnings_have_equal_names() {
        let root = |seed| BlockKey::root(KeySeed(seed), &RootName::default());
        let marks = |text: &[u8]| PrefixMarks::of(root(1), text);
        let one = vec![7; 5_000];
        let mut other = vec![7; 9_000];
        other[3_500] = 8;
        let one = marks(&one);
        let other = marks(&other);
        assert_eq!((one.names().len(), other.names().len()), (8, 12));
        assert_eq!(one.names()[..6], other.names()[..6]);
        assert_ne!(one.names()[6], other.names()[6]);
        assert_eq!(marks(&[7; 511]), PrefixMarks::NONE);
        let elsewhere = PrefixMarks::of(root(2), &[7; 5_000]);
        assert_ne!(elsewhere.names()[0], one.names()[0]);
    }
}
