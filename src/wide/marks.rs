//! The marks of JSON text: the bytes that end a run of plain text in a string. Marks are quotes,
//! backslashes and control characters, stored as a bit per byte, for a window of the text at a
//! time.

/// Bytes of a block: a word of marks.
const BLOCK_BYTES: usize = 64;
/// Text of a word of marks.
type MarkBlock = [u8; BLOCK_BYTES];

/// Blocks of a window. Each call finds the marks of a window.
const BLOCKS: usize = 64;

/// The marks of a window of a text that is read forward.
#[derive(Debug)]
pub struct Marks {
    words: [u64; BLOCKS],
    /// The window of `words`.
    window: usize,
}

impl Default for Marks {
    fn default() -> Self {
        Self { words: [0; BLOCKS], window: usize::MAX }
    }
}

impl Marks {
    /// The first mark of `text` at or after `at`; the end of the text without a mark.
    #[inline]
    pub fn next(&mut self, text: &[u8], at: usize) -> usize {
        let block = at / BLOCK_BYTES;
        if block / BLOCKS == self.window {
            let word = self.words.get(block % BLOCKS).copied().unwrap_or(0);
            let marks = word & u64::MAX << (at % BLOCK_BYTES);
            if marks != 0 {
                return block * BLOCK_BYTES + marks.trailing_zeros() as usize;
            }
        }
        self.search(text, at)
    }

    /// [`Self::next`] behind the block of `at`, mostly in the same window. The only call is at the
    /// end, so that no register is saved.
    #[inline(never)]
    fn search(&mut self, text: &[u8], at: usize) -> usize {
        let mut block = at / BLOCK_BYTES;
        if block / BLOCKS != self.window {
            return self.search_windows(text, at);
        }
        loop {
            block += 1;
            let place = block % BLOCKS;
            if place == 0 {
                return self.search_windows(text, block * BLOCK_BYTES);
            }
            let marks = self.words.get(place).copied().unwrap_or(0);
            if marks != 0 {
                return block * BLOCK_BYTES + marks.trailing_zeros() as usize;
            }
        }
    }

    /// [`Self::next`] in windows that are not read yet.
    #[inline(never)]
    fn search_windows(&mut self, text: &[u8], at: usize) -> usize {
        let mut block = at / BLOCK_BYTES;
        let mut mask = u64::MAX << (at % BLOCK_BYTES);
        while block * BLOCK_BYTES < text.len() {
            self.read(text, block / BLOCKS);
            for word in self.words.get(block % BLOCKS..).unwrap_or_default() {
                let marks = word & mask;
                if marks != 0 {
                    return block * BLOCK_BYTES + marks.trailing_zeros() as usize;
                }
                block += 1;
                mask = u64::MAX;
            }
        }
        text.len()
    }

    #[cold]
    #[inline(never)]
    fn read(&mut self, text: &[u8], window: usize) {
        let from = text.get(window * BLOCKS * BLOCK_BYTES..).unwrap_or(&[]);
        let (blocks, tail) = from.as_chunks::<BLOCK_BYTES>();
        let blocks = blocks.get(..BLOCKS).unwrap_or(blocks);
        find_marks(blocks, &mut self.words);
        let mut rest = self.words.iter_mut().skip(blocks.len());
        if let Some(word) = rest.next() {
            let mut block = [b' '; BLOCK_BYTES];
            block.iter_mut().zip(tail).for_each(|(to, from)| *to = *from);
            find_marks(&[block], std::slice::from_mut(word));
        }
        // Past the end of the text are no marks of the window before.
        rest.for_each(|word| *word = 0);
        self.window = window;
    }
}

/// Writes the marks of each block, its first byte lowest. Stops at the end of either list.
fn find_marks(blocks: &[MarkBlock], words: &mut [u64]) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2, the only requirement of the function beside its types.
        unsafe { wide::find(blocks, words) };
        return;
    }
    for (word, block) in words.iter_mut().zip(blocks) {
        *word = marks_of(block);
    }
}

/// The marks of a block, byte by byte.
fn marks_of(block: &MarkBlock) -> u64 {
    let is_mark = |byte: u8| matches!(byte, b'"' | b'\\' | 0..0x20);
    block.iter().rev().fold(0, |marks, byte| marks << 1 | u64::from(is_mark(*byte)))
}

#[cfg(target_arch = "x86_64")]
mod wide {
    use super::MarkBlock;
    use crate::load::vector;
    use std::arch::x86_64::{
        _mm256_cmpeq_epi8, _mm256_min_epu8, _mm256_movemask_epi8, _mm256_or_si256, _mm256_set1_epi8,
    };

    #[target_feature(enable = "avx2")]
    pub(super) fn find(blocks: &[MarkBlock], words: &mut [u64]) {
        for (word, block) in words.iter_mut().zip(blocks) {
            let [low, high] = block.as_chunks::<32>().0 else { continue };
            *word = u64::from(half(high)) << 32 | u64::from(half(low));
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn half(bytes: &[u8; 32]) -> u32 {
        let bytes = vector(bytes);
        let last_control = _mm256_set1_epi8(0x1f);
        let quote = _mm256_cmpeq_epi8(bytes, _mm256_set1_epi8(i8::from_ne_bytes([b'"'])));
        let backslash = _mm256_cmpeq_epi8(bytes, _mm256_set1_epi8(i8::from_ne_bytes([b'\\'])));
        let control = _mm256_cmpeq_epi8(_mm256_min_epu8(bytes, last_control), bytes);
        let either = _mm256_or_si256(_mm256_or_si256(quote, backslash), control);
        _mm256_movemask_epi8(either).cast_unsigned()
    }
}

#[cfg(test)]
mod tests {
    use super::{BLOCK_BYTES, BLOCKS, Marks, find_marks, marks_of};
    use proptest::prelude::{any, prop_assert_eq, proptest};

    const WINDOW_BYTES: usize = BLOCK_BYTES * BLOCKS;

    #[test]
    fn each_byte_is_a_mark_or_none_in_each_place() {
        for byte in 0..=u8::MAX {
            let is_mark = byte < 0x20 || byte == b'"' || byte == b'\\';
            for place in [0, 1, 31, 32, 63, 64, WINDOW_BYTES - 1, WINDOW_BYTES, WINDOW_BYTES + 7] {
                let mut text = vec![b'a'; WINDOW_BYTES + 9];
                text[place] = byte;
                let expected = if is_mark { place } else { text.len() };
                assert_eq!(Marks::default().next(&text, 0), expected, "{byte:#x} at {place}");
            }
        }
    }

    proptest! {
        #[test]
        fn marks_agree_with_bytes(
            plain in 0..2 * WINDOW_BYTES,
            rest in any::<Vec<u8>>(),
            skip in 0..200_usize,
        ) {
            let text = [vec![b'a'; plain], rest].concat();
            let mut marks = Marks::default();
            let mut at = skip.min(text.len());
            let is_mark = |byte: &u8| matches!(byte, b'"' | b'\\' | 0..0x20);
            while at < text.len() {
                let slow = text[at..].iter().position(is_mark).map_or(text.len(), |run| at + run);
                prop_assert_eq!(marks.next(&text, at), slow);
                at = slow + 1;
            }
            prop_assert_eq!(marks.next(&text, text.len()), text.len());
        }

        #[test]
        fn wide_marks_are_narrow_marks(block in any::<[u8; BLOCK_BYTES]>()) {
            let mut words = [0, 7];
            find_marks(&[block], &mut words);
            prop_assert_eq!(words, [marks_of(&block), 7]);
        }
    }
}
