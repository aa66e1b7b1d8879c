//! The text of a simulated prompt, by blocks.

/// Words of a block that are written at once.
pub(crate) const ROW_WORDS: usize = 8;

/// Adds the text of a block: equal blocks have equal text.
pub(crate) fn write_block(block: u32, bytes: usize, text: &mut Vec<u8>) {
    let word = (u64::from(block) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes();
    // By the row: of a run without events, the text took a tenth of all instructions by the word.
    let row = [word; ROW_WORDS];
    let end = text.len() + bytes;
    while text.len() < end {
        text.extend_from_slice(row.as_flattened());
    }
    text.truncate(end);
}
