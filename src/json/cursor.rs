//! A cursor over JSON text: strict (RFC 8259), no tree, no recursion. Strings are skipped from mark
//! to mark.

use crate::error::JsonError;
use crate::unescape::unescape_into;
use forebay_base::limits::{IMAGE_TEXT_BYTES, JSON_DEPTH_MAX};
use forebay_wide::Marks;
use std::ops::Range;

/// Longest token id in digits: ids are 32-bit.
pub const ID_DIGITS_MAX: usize = 10;

/// The place of a string in the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text {
    /// The bytes between the quotes.
    pub span: Range<usize>,
    /// Does the string hold a backslash?
    pub escaped: bool,
}

/// Checks that `body` is a JSON value in UTF-8, not deeper than [`JSON_DEPTH_MAX`].
pub fn check_json(body: &[u8]) -> Result<(), JsonError> {
    let mut cursor = Cursor::new(body)?;
    cursor.blanks();
    if cursor.peek().is_none() {
        return Err(JsonError::Empty);
    }
    cursor.skip_value(0)?;
    cursor.end()
}

/// Position in UTF-8 text.
#[derive(Debug)]
pub struct Cursor<'a> {
    text: &'a str,
    at: usize,
    marks: Marks,
    /// Values, keys and escapes that may still be read.
    steps_left: u32,
    /// The key read last.
    key: Range<usize>,
    /// All long strings count as encoded data, whatever they look like.
    all_is_data: bool,
    data: EncodedData,
}

/// Long strings that the cursor has skipped and that are images, sound or files, not text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EncodedData {
    /// Number of these strings.
    pub count: u64,
    /// Bytes of these strings.
    pub bytes: u64,
}

/// Strings up to here are text: a token for each byte weighs more than what they encode.
const SHORT_TEXT_BYTES: u64 = IMAGE_TEXT_BYTES as u64;

/// The `;base64,` of a `data:` URL is within its first bytes, up to here.
const DATA_HEAD_BYTES: usize = 256;

impl<'a> Cursor<'a> {
    /// At the start of a body.
    ///
    /// # Errors
    /// A text of 4 GiB or more, or a text that is not UTF-8.
    pub fn new(body: &'a [u8]) -> Result<Self, JsonError> {
        if u32::try_from(body.len()).is_err() {
            return Err(JsonError::TooLong);
        }
        let text = simdutf8::compat::from_utf8(body)
            .map_err(|error| JsonError::Encoding { at: error.valid_up_to() })?;
        let marks = Marks::default();
        let data = EncodedData::default();
        // Each step takes a byte, and there are fewer bytes.
        let steps_left = u32::MAX;
        Ok(Self { text, at: 0, marks, steps_left, key: 0..0, all_is_data: false, data })
    }

    /// Limits the values, keys and escapes that are read. At the limit the text is a syntax error,
    /// and [`Cursor::is_out_of_steps`].
    pub fn limit_steps(&mut self, steps_max: u32) {
        self.steps_left = steps_max;
    }

    /// Did the reading end at [`Cursor::limit_steps`]?
    #[must_use]
    pub fn is_out_of_steps(&self) -> bool {
        self.steps_left == 0
    }

    /// Counts all long strings that follow as encoded data, or only strings that look like data.
    pub fn count_all_as_data(&mut self, all_is_data: bool) {
        self.all_is_data = all_is_data;
    }

    /// Encoded data in the strings skipped so far.
    #[must_use]
    pub fn data(&self) -> EncodedData {
        self.data
    }

    /// Bytes read so far.
    #[must_use]
    pub fn at(&self) -> usize {
        self.at
    }

    /// The key read last, as it is written.
    #[must_use]
    pub fn key_span(&self) -> Range<usize> {
        self.key.clone()
    }

    /// The text of a range, empty if it were outside.
    pub fn slice(&self, range: &Range<usize>) -> &'a str {
        self.text.get(range.clone()).unwrap_or("")
    }

    /// The next byte, which stays unread; `None` at the end.
    #[must_use]
    pub fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn syntax<T>(&self) -> Result<T, JsonError> {
        Err(JsonError::Syntax { at: self.at })
    }

    fn syntax_at<T>(&mut self, at: usize) -> Result<T, JsonError> {
        self.at = at;
        self.syntax()
    }

    fn step(&mut self) -> Result<(), JsonError> {
        self.steps_left = self.steps_left.saturating_sub(1);
        if self.steps_left == 0 { self.syntax() } else { Ok(()) }
    }

    /// Skips white space up to the next token.
    pub fn blanks(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    fn expect(&mut self, byte: u8) -> Result<(), JsonError> {
        if self.peek() != Some(byte) {
            return self.syntax();
        }
        self.at += 1;
        Ok(())
    }

    /// Only blanks may follow.
    pub fn end(&mut self) -> Result<(), JsonError> {
        self.blanks();
        if self.at == self.text.len() { Ok(()) } else { self.syntax() }
    }

    /// Enters the array or object that the cursor stands on.
    pub fn open(&mut self) {
        self.at += 1;
    }

    /// Next key of the object entered; then the cursor stands on its value. `None`: the object is
    /// closed. `first` is true before the first call.
    pub fn next_key(&mut self, first: &mut bool) -> Result<Option<Text>, JsonError> {
        if !self.next_item(b'}', first)? {
            return Ok(None);
        }
        self.key().map(Some)
    }

    /// Reads a key that is written as `written`, with its colon and all before it: then the cursor
    /// stands on its value. False: something else comes next, and the cursor stays. A guess that is
    /// mostly right takes a fraction of the instructions of [`Cursor::next_key`].
    #[inline(always)]
    pub fn pass_key(&mut self, written: &[u8]) -> Result<bool, JsonError> {
        let is_next = self.pass(written);
        if is_next {
            self.step()?;
            self.blanks();
        }
        Ok(is_next)
    }

    /// Passes these bytes if they come next. No step: a value, a key or the end of an object
    /// follows.
    #[inline(always)]
    pub fn pass(&mut self, written: &[u8]) -> bool {
        let rest = self.text.as_bytes().get(self.at..);
        let is_next = rest.is_some_and(|rest| rest.starts_with(written));
        self.at += if is_next { written.len() } else { 0 };
        is_next
    }

    /// True when the cursor stands on another element of the array entered, false when the array is
    /// closed.
    pub fn next_element(&mut self, first: &mut bool) -> Result<bool, JsonError> {
        self.next_item(b']', first)
    }

    fn next_item(&mut self, close: u8, first: &mut bool) -> Result<bool, JsonError> {
        self.step()?;
        self.blanks();
        if self.peek() == Some(close) {
            self.at += 1;
            return Ok(false);
        }
        if !std::mem::take(first) {
            self.expect(b',')?;
            self.blanks();
        }
        Ok(true)
    }

    /// A key, its colon and the blanks around it.
    fn key(&mut self) -> Result<Text, JsonError> {
        let key = self.string()?;
        self.key = key.span.clone();
        self.blanks();
        self.expect(b':')?;
        self.blanks();
        Ok(key)
    }

    /// The string the cursor stands on.
    #[inline(always)]
    pub fn string(&mut self) -> Result<Text, JsonError> {
        self.expect(b'"')?;
        let start = self.at;
        self.at = self.marks.next(self.text.as_bytes(), start);
        let escaped = self.peek() != Some(b'"');
        if escaped {
            self.escapes()?;
        }
        let span = start..self.at;
        self.at += 1;
        Ok(Text { span, escaped })
    }

    /// Moves from the first escape of a string to the quote that ends the string.
    #[inline(never)]
    fn escapes(&mut self) -> Result<(), JsonError> {
        let text = self.text.as_bytes();
        // Copies in registers: fields would be written back at each escape.
        let mut at = self.at;
        let mut steps_left = self.steps_left;
        loop {
            match text.get(at..).and_then(|next| next.first_chunk()) {
                Some([b'\\', b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't']) => at += 2,
                Some(b"\\u") => {
                    self.at = at;
                    self.unicode()?;
                    at = self.at;
                }
                _ if text.get(at) == Some(&b'"') => break,
                _ => return self.syntax_at(at),
            }
            steps_left = steps_left.saturating_sub(1);
            if steps_left == 0 {
                self.steps_left = 0;
                return self.syntax_at(at);
            }
            at = self.marks.next(text, at);
        }
        self.at = at;
        self.steps_left = steps_left;
        Ok(())
    }

    /// The `\uXXXX` the cursor stands on, or two of a surrogate pair.
    fn unicode(&mut self) -> Result<(), JsonError> {
        let start = self.at;
        match self.code_unit()? {
            0xd800..=0xdbff => {
                let pairs = self.text.as_bytes().get(self.at..self.at + 2) == Some(b"\\u");
                if !pairs || !matches!(self.code_unit()?, 0xdc00..=0xdfff) {
                    return Err(JsonError::LoneSurrogate { at: start });
                }
                Ok(())
            }
            0xdc00..=0xdfff => Err(JsonError::LoneSurrogate { at: start }),
            _ => Ok(()),
        }
    }

    /// The `\uXXXX` the cursor stands on.
    fn code_unit(&mut self) -> Result<u32, JsonError> {
        let digits = self.text.as_bytes().get(self.at + 2..self.at + 6).unwrap_or(&[]);
        if digits.len() < 4 {
            return self.syntax();
        }
        let mut value = 0;
        for digit in digits {
            let Some(digit) = char::from(*digit).to_digit(16) else { return self.syntax() };
            value = value * 16 + digit;
        }
        self.at += 6;
        Ok(value)
    }

    /// The number at the cursor. Its range, if it has no sign, fraction or exponent.
    pub fn number(&mut self) -> Result<Option<Range<usize>>, JsonError> {
        let start = self.at;
        let mut plain = true;
        if self.peek() == Some(b'-') {
            self.at += 1;
            plain = false;
        }
        let digits_at = self.at;
        self.digits()?;
        if self.at - digits_at > 1 && self.text.as_bytes().get(digits_at) == Some(&b'0') {
            return self.syntax();
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
            plain = false;
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            self.digits()?;
            plain = false;
        }
        Ok(plain.then_some(start..self.at))
    }

    /// Skips elements that are plainly token ids (`12,` or `12, `), up to the last element or to
    /// another kind of element.
    pub fn skip_ids(&mut self) {
        let mut rest = self.text.as_bytes().get(self.at..).unwrap_or(&[]);
        loop {
            let digits = rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len());
            let leading_zero = digits > 1 && rest.first() == Some(&b'0');
            if digits == 0 || digits > ID_DIGITS_MAX || leading_zero || self.steps_left == 0 {
                break;
            }
            self.steps_left -= 1;
            rest = match rest.get(digits..) {
                Some([b',', b' ', next @ ..]) | Some([b',', next @ ..])
                    if next.first().is_some_and(u8::is_ascii_digit) =>
                {
                    next
                }
                _ => break,
            };
        }
        self.at = self.text.len() - rest.len();
    }

    /// A digit or more.
    fn digits(&mut self) -> Result<(), JsonError> {
        let start = self.at;
        while let Some(b'0'..=b'9') = self.peek() {
            self.at += 1;
        }
        if self.at == start { self.syntax() } else { Ok(()) }
    }

    fn literal(&mut self, word: &str) -> Result<(), JsonError> {
        if !self
            .text
            .as_bytes()
            .get(self.at..)
            .is_some_and(|rest| rest.starts_with(word.as_bytes()))
        {
            return self.syntax();
        }
        self.at += word.len();
        Ok(())
    }

    /// Skips the value the cursor stands on; `depth` containers are open around it.
    pub fn skip_value(&mut self, depth: usize) -> Result<(), JsonError> {
        // A bit for each container opened here: 1 is an object.
        let mut open = 0_u128;
        let mut level = 0_usize;
        loop {
            self.blanks();
            let container = match self.peek() {
                Some(b'"') => self.string().map(|text| self.note_data(&text.span))?,
                Some(b'-' | b'0'..=b'9') => self.number().map(|_| None)?,
                Some(b't') => self.literal("true").map(|()| None)?,
                Some(b'f') => self.literal("false").map(|()| None)?,
                Some(b'n') => self.literal("null").map(|()| None)?,
                Some(b'{') => Some(1_u128),
                Some(b'[') => Some(0_u128),
                _ => return self.syntax(),
            };
            if let Some(kind) = container {
                if depth + level >= JSON_DEPTH_MAX {
                    return Err(JsonError::Depth { at: self.at });
                }
                self.open();
                open = open << 1 | kind;
                level += 1;
                if self.inner_item(kind, &mut true)? {
                    continue;
                }
                open >>= 1;
                level -= 1;
            }
            // A value has ended: close the containers that end here, or go on to the next value.
            loop {
                if level == 0 {
                    return Ok(());
                }
                if self.inner_item(open & 1, &mut false)? {
                    break;
                }
                open >>= 1;
                level -= 1;
            }
        }
    }

    /// Counts a string that was skipped if it is no text: a `data:` URL of encoded bytes, or the
    /// `data` of an image or a sound. Short ones are left: what they stand for weighs more. Looks
    /// at the first bytes of long strings only.
    fn note_data(&mut self, span: &Range<usize>) -> Option<u128> {
        let bytes = u64::try_from(span.len()).unwrap_or(u64::MAX);
        if bytes <= SHORT_TEXT_BYTES {
            return None;
        }
        let string = self.text.as_bytes().get(span.clone()).unwrap_or_default();
        let head = string.get(..DATA_HEAD_BYTES).unwrap_or_default();
        let is_url = head.starts_with(b"data:") && head.windows(8).any(|word| word == b";base64,");
        if is_url || self.all_is_data || self.slice(&self.key) == "data" {
            self.data.count += 1;
            self.data.bytes += bytes;
        }
        None
    }

    /// Next value of an array (0) or object (1), key skipped; false when it is closed.
    fn inner_item(&mut self, kind: u128, first: &mut bool) -> Result<bool, JsonError> {
        if kind == 1 {
            self.next_key(first).map(|key| key.is_some())
        } else {
            self.next_element(first)
        }
    }
}

/// The text of a JSON string, escapes resolved.
#[must_use]
pub fn unescaped(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    unescape_into(text.as_bytes(), &mut bytes);
    String::from_utf8(bytes).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::check_json;
    use crate::JsonError;

    #[test]
    fn depth_is_limited() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert_eq!(check_json(nested(128).as_bytes()), Ok(()));
        assert_eq!(check_json(nested(129).as_bytes()), Err(JsonError::Depth { at: 128 }));
        assert_eq!(
            check_json("{\"a\":".repeat(100_000).as_bytes()),
            Err(JsonError::Depth { at: 640 })
        );
    }

    #[test]
    fn faults_say_where() {
        assert_eq!(check_json(b"  "), Err(JsonError::Empty));
        assert_eq!(check_json(b"{\"a\":1,}"), Err(JsonError::Syntax { at: 7 }));
        assert_eq!(check_json(b"[1] x"), Err(JsonError::Syntax { at: 4 }));
        assert_eq!(check_json(b"\"a\xff\""), Err(JsonError::Encoding { at: 2 }));
        assert_eq!(check_json(br#"["\ud800"]"#), Err(JsonError::LoneSurrogate { at: 2 }));
    }
}
