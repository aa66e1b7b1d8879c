//! Character classes of RFC 9110 section 5.6.2, and eight-at-a-time search for the end of a value.

/// True for bytes of a token.
pub(super) const fn is_token(byte: u8) -> bool {
    matches!(byte,
        b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^'
        | b'_' | b'`' | b'|' | b'~'
        | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z')
}

/// True for bytes that a field value may contain: visible ASCII, SP, HTAB and bytes from 0x80.
pub(super) const fn is_value(byte: u8) -> bool {
    byte == b'\t' || (byte >= 0x20 && byte != 0x7f)
}

/// True for visible ASCII that a request target may contain. Wider than RFC 3986 (quotes, pipes and
/// brackets reach the engine as sent), but no fragment, no space, no control and nothing above
/// ASCII.
pub(super) const fn is_target(byte: u8) -> bool {
    byte > 0x20 && byte < 0x7f && byte != b'#'
}

/// Length of the run of token bytes at the front.
pub(super) fn token_run(bytes: &[u8]) -> usize {
    let ends = |byte: &u8| TOKENS.get(usize::from(*byte)) != Some(&true);
    bytes.iter().position(ends).unwrap_or(bytes.len())
}

/// [`is_token`] as a table.
const TOKENS: [bool; 256] = {
    let mut table = [false; 256];
    let mut rest: &mut [bool] = &mut table;
    let mut byte = 0_u8;
    while let [first, tail @ ..] = rest {
        *first = is_token(byte);
        byte = byte.wrapping_add(1);
        rest = tail;
    }
    table
};

/// Length of the run of target bytes at the front.
pub(super) fn target_run(bytes: &[u8]) -> usize {
    bytes.iter().position(|byte| !is_target(*byte)).unwrap_or(bytes.len())
}

/// Length of the run of spaces and tabs at the front.
pub(super) fn blank_run(bytes: &[u8]) -> usize {
    bytes.iter().position(|byte| !matches!(byte, b' ' | b'\t')).unwrap_or(bytes.len())
}

/// Without spaces and tabs at both ends.
pub(super) fn trim_blanks(mut bytes: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = bytes {
        bytes = rest;
    }
    bytes
}

/// Length of the run of value bytes at the front ([`is_value`]), eight bytes at a time.
pub(super) fn value_run(bytes: &[u8]) -> usize {
    let mut at = 0;
    loop {
        let rest = bytes.get(at..).unwrap_or(&[]);
        let Some(word) = rest.first_chunk::<8>() else {
            return at + rest.iter().position(|byte| !is_value(*byte)).unwrap_or(rest.len());
        };
        let suspects = controls(u64::from_le_bytes(*word));
        if suspects == 0 {
            at += 8;
            continue;
        }
        // The lowest mark is exact. HTAB is marked too, and allowed.
        let offset = usize::try_from(suspects.trailing_zeros() / 8).unwrap_or(0);
        at += offset;
        if rest.get(offset) != Some(&b'\t') {
            return at;
        }
        at += 1;
    }
}

/// Marks (0x80) each byte below 0x20 or equal to 0x7f; the lowest mark is always right, higher
/// marks may be false.
const fn controls(word: u64) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGHS: u64 = ONES << 7;
    let below = word.wrapping_sub(ONES * 0x20) & !word & HIGHS;
    let del = word ^ (ONES * 0x7f);
    below | (del.wrapping_sub(ONES) & !del & HIGHS)
}

#[cfg(test)]
mod tests {
    use super::{is_value, trim_blanks, value_run};
    use proptest::prelude::{any, prop_assert_eq, proptest};

    #[test]
    fn blanks_are_trimmed() {
        assert_eq!(trim_blanks(b" \t a b\t "), b"a b");
        assert_eq!(trim_blanks(b" \t "), b"");
        assert_eq!(trim_blanks(b"a"), b"a");
    }

    #[test]
    fn every_byte_ends_a_run_or_does_not() {
        for byte in 0..=255_u8 {
            for at in 0..20 {
                let mut bytes = vec![b'a'; 20];
                bytes[at] = byte;
                assert_eq!(
                    value_run(&bytes),
                    if is_value(byte) { 20 } else { at },
                    "{byte:#x} at {at}"
                );
            }
        }
    }

    proptest! {
        #[test]
        fn words_agree_with_bytes(bytes in any::<Vec<u8>>()) {
            let slow = bytes.iter().position(|byte| !is_value(*byte)).unwrap_or(bytes.len());
            prop_assert_eq!(value_run(&bytes), slow);
        }
    }
}
