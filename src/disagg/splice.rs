//! Copies a body with some members cut, some values replaced and some members added; all other
//! bytes stay the same.

use super::members::Member;
use super::split_request::SplitRequest;
use std::ops::Range;

/// Change of a member in the copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Keep,
    Cut,
    Replace(&'static [u8]),
}

/// A changed copy of a body.
pub(super) struct Splice<'a> {
    body: &'a [u8],
    out: &'a mut Vec<u8>,
    /// Position in the body up to which the copy is done.
    at: usize,
    /// The copied object has members.
    any: bool,
}

impl<'a> Splice<'a> {
    /// Copies the body up to its closing brace; [`Splice::member`] and [`Splice::finish`] follow.
    /// `room_bytes` is about the number of bytes that members will add.
    pub(super) fn begin(
        body: &'a [u8],
        wanted: &SplitRequest,
        change: impl Fn(&Member) -> Change,
        room_bytes: usize,
        out: &'a mut Vec<u8>,
    ) -> Self {
        out.reserve(body.len().saturating_add(room_bytes));
        let mut splice = Self { body, out, at: 0, any: false };
        let mut cut = 0_u32;
        for member in &wanted.members {
            match change(member) {
                Change::Keep => {}
                Change::Replace(value) => {
                    splice.copy_up_to(member.value.start);
                    splice.out.extend_from_slice(value);
                    splice.skip_to(member.value.end);
                }
                Change::Cut => {
                    // Only cut members before this member: cut the comma behind it.
                    let gap = cut_range(member, cut == member.position);
                    splice.copy_up_to(gap.start);
                    splice.skip_to(gap.end);
                    cut = cut.saturating_add(1);
                }
            }
        }
        splice.copy_up_to(wanted.closing_brace);
        splice.any = cut < wanted.member_count;
        splice
    }

    /// Begins another member; the caller appends its value to the returned buffer. `key` must not
    /// need escapes.
    pub(super) fn member(&mut self, key: &str) -> &mut Vec<u8> {
        if std::mem::replace(&mut self.any, true) {
            self.out.push(b',');
        }
        self.out.push(b'"');
        self.out.extend_from_slice(key.as_bytes());
        self.out.extend_from_slice(b"\":");
        self.out
    }

    /// Copies the closing brace and all bytes behind it.
    pub(super) fn finish(self) {
        self.out.extend_from_slice(self.body.get(self.at..).unwrap_or_default());
    }

    fn copy_up_to(&mut self, end: u32) {
        let end = usize::try_from(end).unwrap_or(usize::MAX);
        self.out.extend_from_slice(self.body.get(self.at..end).unwrap_or_default());
        self.at = self.at.max(end);
    }

    fn skip_to(&mut self, end: u32) {
        self.at = self.at.max(usize::try_from(end).unwrap_or(usize::MAX));
    }
}

fn cut_range(member: &Member, is_leading: bool) -> Range<u32> {
    match (is_leading, member.next) {
        (true, Some(next)) => member.span.start..next,
        (true, None) => member.span.clone(),
        (false, _) => member.after_previous..member.span.end,
    }
}

/// Appends a quoted JSON string.
pub(super) fn push_string(text: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    push_escaped(text, out);
    out.push(b'"');
}

/// Appends text with the escapes of a JSON string.
pub(super) fn push_escaped(text: &str, out: &mut Vec<u8>) {
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            0..0x20 => {
                const DIGITS: [u8; 16] = *b"0123456789abcdef";
                let digit = |nibble: u8| DIGITS.get(usize::from(nibble)).copied().unwrap_or(b'0');
                out.extend_from_slice(b"\\u00");
                out.extend_from_slice(&[digit(byte >> 4), digit(byte & 15)]);
            }
            _ => out.push(byte),
        }
    }
}
