//! Finds the data of events in a stream (WHATWG HTML section 9.2.6), wherever reads end: lines end
//! with LF, CRLF or CR, an event may have several lines of data, and an empty line ends an event.
//! Nothing is copied. The LF between two lines of data is left out: JSON does not need an LF
//! outside of strings, and has none inside.

/// The field with the data of an event.
const DATA: &[u8] = b"data:";
/// May be in front of the first line of a stream.
const BYTE_ORDER_MARK: &[u8] = &[0xef, 0xbb, 0xbf];

/// The place of the next byte in a stream.
#[derive(Clone, Copy, Debug)]
pub struct EventLines {
    line: LinePlace,
    /// The last byte was a CR. An LF behind a CR is part of the same line end.
    after_cr: bool,
}

#[derive(Clone, Copy, Debug)]
enum LinePlace {
    /// Bytes of [`DATA`] that have matched.
    Name(usize),
    Data,
    /// Another field, or a comment.
    Other,
    /// The whole body is data, without events.
    Whole,
}

/// A part of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataPart<'a> {
    /// Bytes of a line of data.
    Data(&'a [u8]),
    /// The end of an event.
    End,
}

impl EventLines {
    /// For a stream of events, or a whole body of data.
    pub const fn new(is_stream: bool) -> Self {
        let line = if is_stream { LinePlace::Name(0) } else { LinePlace::Whole };
        Self { line, after_cr: false }
    }

    /// The next part, and the bytes behind the part; `None` at the end of `data`.
    pub fn next<'a>(&mut self, data: &'a [u8]) -> Option<(DataPart<'a>, &'a [u8])> {
        let mut rest = data;
        loop {
            let first = *rest.first()?;
            if matches!(self.line, LinePlace::Whole) {
                return Some((DataPart::Data(rest), &[]));
            }
            let behind = rest.get(1..).unwrap_or_default();
            if std::mem::take(&mut self.after_cr) && first == b'\n' {
                rest = behind;
                continue;
            }
            let LinePlace::Name(matched) = self.line else {
                let end = memchr::memchr2(b'\n', b'\r', rest).unwrap_or(rest.len());
                let (line, behind) = rest.split_at(end);
                let is_data = matches!(self.line, LinePlace::Data);
                if let Some(last) = behind.first() {
                    self.end_line(*last);
                }
                rest = behind.get(1..).unwrap_or_default();
                if is_data && !line.is_empty() {
                    return Some((DataPart::Data(line), rest));
                }
                continue;
            };
            rest = behind;
            match first {
                b'\n' | b'\r' => {
                    self.end_line(first);
                    if matched == 0 {
                        return Some((DataPart::End, rest));
                    }
                }
                byte if DATA.get(matched) == Some(&byte) => {
                    let is_whole = matched + 1 == DATA.len();
                    self.line =
                        if is_whole { LinePlace::Data } else { LinePlace::Name(matched + 1) };
                }
                byte if matched == 0 && BYTE_ORDER_MARK.contains(&byte) => {}
                _ => self.line = LinePlace::Other,
            }
        }
    }

    fn end_line(&mut self, last: u8) {
        *self = Self { line: LinePlace::Name(0), after_cr: last == b'\r' };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn events(reads: &[&[u8]]) -> Vec<String> {
        let mut lines = EventLines::new(true);
        let mut all = Vec::new();
        let mut open = Vec::new();
        for read in reads {
            let mut rest = *read;
            while let Some((part, behind)) = lines.next(rest) {
                rest = behind;
                match part {
                    DataPart::Data(data) => open.extend_from_slice(data),
                    DataPart::End => all.push(std::mem::take(&mut open)),
                }
            }
        }
        all.push(open);
        all.into_iter().map(|data| String::from_utf8(data).unwrap()).collect()
    }

    #[test]
    fn data_is_found_whatever_ends_its_lines() {
        let text = "event: x\ndata: {\ndata:1}\nid: 7\n: data: no\n\ndata\n data: no\n\ndata:2";
        for end in ["\n", "\r\n", "\r"] {
            let text = text.replace('\n', end);
            assert_eq!(events(&[text.as_bytes()]), [" {1}", "", "2"], "{end:?}");
        }
        assert_eq!(events(&[b"\xef\xbb\xbfdata:1\n\n"]), ["1", ""]);
        assert_eq!(events(&[b"data:1\r\n", b"\n", b"\r", b"\n"]), ["1", "", ""]);
    }

    proptest! {
        #[test]
        fn reads_may_end_anywhere(
            text in "(data: ?[a-c]{0,3}|data|dat:a|: x|id: data:1|)(\r\n|\n|\r|)(\r\n|\n|\r)",
            turns in 1_usize..6,
            cuts in prop::collection::vec(0_usize..9, 0..20),
        ) {
            let text = text.repeat(turns);
            let mut reads = Vec::new();
            let mut rest = text.as_bytes();
            for cut in cuts {
                let (read, behind) = rest.split_at(cut.min(rest.len()));
                reads.push(read);
                rest = behind;
            }
            reads.push(rest);
            prop_assert_eq!(events(&reads), events(&[text.as_bytes()]));
        }
    }
}
