//! Ends of field names and values in a head that is read forward, found in blocks of 64 bytes.

use super::chars::{is_token, is_value};
use forebay_wide::{AsciiSet, BLOCK_BYTES, find_members};

/// Bytes of a token, and bytes that end a value. An [`AsciiSet`] has no byte from 0x80 on: such
/// bytes end a token and do not end a value, so the first set has members and the second ends.
const SETS: [AsciiSet; 2] = {
    let mut tokens = 0;
    let mut refused = 0;
    let mut byte = 0;
    while byte < 0x80 {
        tokens |= (is_token(byte) as u128) << byte;
        refused |= (!is_value(byte) as u128) << byte;
        byte += 1;
    }
    [AsciiSet::new(tokens), AsciiSet::new(refused)]
};

/// The runs of a head.
#[derive(Debug)]
pub(super) struct HeadRuns<'a> {
    head: &'a [u8],
    /// Number of the block of `ends`.
    block: usize,
    ends: BlockEnds,
}

/// Ends of runs in a block, a bit for each byte.
#[derive(Clone, Copy, Debug)]
struct BlockEnds {
    /// Bytes that end a token.
    tokens: u64,
    /// Bytes that end a value.
    values: u64,
}

impl<'a> HeadRuns<'a> {
    /// The runs from `at` on.
    pub(super) fn new(head: &'a [u8], at: usize) -> Self {
        let block = at / BLOCK_BYTES;
        Self { head, block, ends: BlockEnds::of(head, block) }
    }

    /// The first byte from `at` on that is not of a token; the end of the head if there is none.
    #[inline]
    pub(super) fn token_end(&mut self, at: usize) -> usize {
        self.end(at, |ends| ends.tokens)
    }

    /// The first byte from `at` on that is not of a value ([`is_value`]).
    #[inline]
    pub(super) fn value_end(&mut self, at: usize) -> usize {
        self.end(at, |ends| ends.values)
    }

    #[inline]
    fn end(&mut self, at: usize, kind: impl Fn(BlockEnds) -> u64) -> usize {
        let mut block = at / BLOCK_BYTES;
        let mut mask = u64::MAX << (at % BLOCK_BYTES);
        while block * BLOCK_BYTES < self.head.len() {
            if block != self.block {
                self.block = block;
                self.ends = BlockEnds::of(self.head, block);
            }
            let ends = kind(self.ends) & mask;
            if ends != 0 {
                let end = block * BLOCK_BYTES + ends.trailing_zeros() as usize;
                return end.min(self.head.len());
            }
            block += 1;
            mask = u64::MAX;
        }
        self.head.len()
    }
}

impl BlockEnds {
    fn of(head: &[u8], block: usize) -> Self {
        let rest = head.get(block * BLOCK_BYTES..).unwrap_or_default();
        let mut padded = [0; BLOCK_BYTES];
        let block = match rest.first_chunk() {
            Some(block) => block,
            None => {
                padded.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
                &padded
            }
        };
        let [tokens, values] = find_members(block, &SETS);
        Self { tokens: !tokens, values }
    }
}

#[cfg(test)]
mod tests {
    use super::HeadRuns;
    use crate::chars::{is_token, is_value};
    use proptest::prelude::{any, prop, prop_assert_eq, proptest};

    proptest! {
        #[test]
        fn a_run_ends_where_its_bytes_do(
            plain in 0..150_usize,
            rest in prop::collection::vec(any::<u8>(), 0..150),
            mut places in prop::collection::vec(0..400_usize, 0..20),
        ) {
            let head = [vec![b'a'; plain], rest].concat();
            places.sort_unstable();
            let mut runs = HeadRuns::new(&head, places.first().copied().unwrap_or(0));
            for at in places {
                let end = |is_of: fn(u8) -> bool| {
                    let run = head.get(at..).unwrap_or_default().iter();
                    run.take_while(|byte| is_of(**byte)).count() + at.min(head.len())
                };
                prop_assert_eq!(runs.token_end(at), end(is_token));
                prop_assert_eq!(runs.value_end(at), end(is_value));
            }
        }
    }
}
