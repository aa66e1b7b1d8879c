//! JSON string contents to plain bytes. Total: never fails, never reads past the input; an
//! invalid escape (the scan refuses such bodies before) is copied unchanged.

use forebay_wide::{BLOCK_BYTES, find_equal};
use memchr::memchr;

/// Appends the unescaped text of a JSON string body (the bytes between its quotes) to `out`.
///
/// `\uXXXX` pairs of surrogates become a character; a lone surrogate becomes U+FFFD (RFC 8259
/// section 8.2 leaves it open; UTF-8 cannot carry it). Runs without a backslash are copied whole.
pub fn unescape_into(escaped: &[u8], out: &mut Vec<u8>) {
    let mut rest = escaped;
    while let Some(block) = rest.first_chunk::<BLOCK_BYTES>() {
        let found = find_equal(block, b'\\');
        let tail = match found {
            0 => plain_run(rest, out),
            // Behind an escape, text mostly has another escape soon. A block of fixed length is
            // copied without a call.
            _ => {
                let plain_bytes = found.trailing_zeros() as usize;
                let length = out.len() + plain_bytes;
                out.extend_from_slice(block);
                out.truncate(length);
                rest.get(plain_bytes..).unwrap_or_default()
            }
        };
        if tail.is_empty() {
            return;
        }
        rest = unescape_one(tail, out);
    }
    while !rest.is_empty() {
        let tail = plain_run(rest, out);
        rest = if tail.is_empty() { tail } else { unescape_one(tail, out) };
    }
}

/// Copies the bytes before the first backslash, and returns the rest of the text.
fn plain_run<'a>(text: &'a [u8], out: &mut Vec<u8>) -> &'a [u8] {
    let at = memchr(b'\\', text).unwrap_or(text.len());
    let (plain, tail) = text.split_at(at);
    out.extend_from_slice(plain);
    tail
}

/// The same until `out` has grown by about `bytes_max`: at most 3 bytes more, and always whole
/// characters. False when input is left.
pub fn unescape_up_to(escaped: &[u8], bytes_max: usize, out: &mut Vec<u8>) -> bool {
    let end = out.len().saturating_add(bytes_max);
    let mut rest = escaped;
    loop {
        let mut room = end.saturating_sub(out.len()).min(rest.len());
        while room > 0 && rest.get(room).is_some_and(|byte| byte & 0xc0 == 0x80) {
            room -= 1;
        }
        let (window, after) = rest.split_at(room);
        match memchr(b'\\', window) {
            Some(at) => {
                let (plain, tail) = rest.split_at(at);
                out.extend_from_slice(plain);
                rest = unescape_one(tail, out);
            }
            None => {
                out.extend_from_slice(window);
                return after.is_empty();
            }
        }
    }
}

/// Resolves the escape at the start of `tail`, and returns the bytes behind it.
// With two callers the compiler does not inline it: 2,300 instructions more for a prompt of 8 KB.
#[inline(always)]
fn unescape_one<'a>(tail: &'a [u8], out: &mut Vec<u8>) -> &'a [u8] {
    let [_, kind, rest @ ..] = tail else {
        out.extend_from_slice(tail);
        return &[];
    };
    let byte = match kind {
        b'"' | b'\\' | b'/' => *kind,
        b'n' => b'\n',
        b't' => b'\t',
        b'r' => b'\r',
        b'b' => 0x08,
        b'f' => 0x0c,
        b'u' => return unescape_unicode(rest, out),
        _ => {
            out.extend_from_slice(&[b'\\', *kind]);
            return rest;
        }
    };
    out.push(byte);
    rest
}

/// Resolves a Unicode escape; `rest` starts after `\u`.
fn unescape_unicode<'a>(rest: &'a [u8], out: &mut Vec<u8>) -> &'a [u8] {
    let Some((unit, after)) = code_unit(rest) else {
        out.extend_from_slice(b"\\u");
        return rest;
    };
    let (point, after) = match unit {
        0xd800..=0xdbff => match after.strip_prefix(b"\\u").and_then(code_unit) {
            Some((low @ 0xdc00..=0xdfff, end)) => {
                (0x1_0000 + ((unit - 0xd800) << 10) + (low - 0xdc00), end)
            }
            _ => (0xfffd, after),
        },
        0xdc00..=0xdfff => (0xfffd, after),
        _ => (unit, after),
    };
    let character = char::from_u32(point).unwrap_or(char::REPLACEMENT_CHARACTER);
    out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
    after
}

/// The value of four hexadecimal digits at the front, and the bytes behind them.
fn code_unit(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (digits, rest) = bytes.split_first_chunk::<4>()?;
    let mut value = 0;
    for digit in digits {
        value = value * 16 + char::from(*digit).to_digit(16)?;
    }
    Some((value, rest))
}

#[cfg(test)]
mod tests {
    use super::{unescape_into, unescape_up_to};
    use proptest::prelude::{any, prop_assert_eq, proptest};

    fn unescaped(text: &str) -> String {
        let mut out = Vec::new();
        unescape_into(text.as_bytes(), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn escapes_are_resolved() {
        assert_eq!(unescaped(r#"a\n\t\r\b\f\"\\\/z"#), "a\n\t\r\u{8}\u{c}\"\\/z");
        assert_eq!(unescaped(r"\u0041\u00e9\u20AC\ud83d\ude00!"), "Aé€😀!");
        assert_eq!(unescaped("no escape at all"), "no escape at all");
        assert_eq!(unescaped(""), "");
    }

    #[test]
    fn lone_surrogates_become_the_replacement_character() {
        assert_eq!(unescaped(r"\ud83d"), "\u{fffd}");
        assert_eq!(unescaped(r"\ude00x"), "\u{fffd}x");
        assert_eq!(unescaped(r"\ud83d\u0041"), "\u{fffd}A");
        assert_eq!(unescaped(r"\ud83d\ud83d\ude00"), "\u{fffd}😀");
    }

    #[test]
    fn what_is_no_escape_stays() {
        assert_eq!(unescaped(r"\q\u12"), r"\q\u12");
        assert_eq!(unescaped(r"\u+123"), r"\u+123");
        assert_eq!(unescaped("end\\"), "end\\");
    }

    proptest! {
        #[test]
        fn agrees_with_serde_json(text in any::<String>()) {
            let quoted = serde_json::to_string(&text).unwrap();
            prop_assert_eq!(unescaped(&quoted[1..quoted.len() - 1]), text);
        }

        /// A cut text is the beginning of the whole one, ends with a whole character and is about
        /// as long as asked.
        #[test]
        fn what_is_cut_is_a_beginning(
            text in "[aé日\n\"\u{1f600}]{0,40}",
            bytes_max in 0_usize..80,
        ) {
            let quoted = serde_json::to_string(&text).unwrap();
            let mut out = b"kept".to_vec();
            let whole =
                unescape_up_to(&quoted.as_bytes()[1..quoted.len() - 1], bytes_max, &mut out);
            let cut = std::str::from_utf8(&out[4..]).unwrap();
            assert!(text.starts_with(cut) && cut.len() <= bytes_max + 3);
            prop_assert_eq!(whole, cut == text);
            assert!(whole || cut.len() + 4 > bytes_max);
        }

        #[test]
        fn any_bytes_are_survived(bytes in any::<Vec<u8>>()) {
            unescape_into(&bytes, &mut Vec::new());
        }
    }
}
