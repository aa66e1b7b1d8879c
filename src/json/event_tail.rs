//! Holds back an event that is not whole, so that a stream that breaks off ends behind a whole
//! event. A client would parse half an event, and never read the error behind that event. Whole
//! events pass without a copy, and so does a read that ends with an event.
//!
//! An event ends with an empty line (WHATWG HTML section 9.2). Comments mean nothing to a parser
//! and keep connections open: whole comment lines pass behind a whole event. An event longer than
//! [`HELD_EVENT_BYTES_MAX`] passes as it comes.

use forebay_base::limits::HELD_EVENT_BYTES_MAX;

/// The bytes so far of an event that is not whole.
#[derive(Debug, Default)]
pub struct EventTail {
    held: Vec<u8>,
    /// The client has the beginning of an event that is too long.
    is_overlong: bool,
    /// The last two bytes that the client has.
    before: [u8; 2],
}

impl EventTail {
    /// The bytes that were held back and pass now, and the part of `data` that passes behind them.
    pub fn pass<'a>(&mut self, data: &'a [u8]) -> (Vec<u8>, &'a [u8]) {
        let is_long = self.held.len().saturating_add(data.len()) > HELD_EVENT_BYTES_MAX;
        let end = self.end_in(data);
        self.is_overlong = end.is_none() && (self.is_overlong || is_long);
        let end = end.unwrap_or(if self.is_overlong { data.len() } else { 0 });
        let (whole, rest) = data.split_at(end.min(data.len()));
        let held = if whole.is_empty() { Vec::new() } else { std::mem::take(&mut self.held) };
        self.before = last_two(last_two(self.before, &held), whole);
        self.held.extend_from_slice(rest);
        (held, whole)
    }

    /// At the end of the stream the held bytes pass.
    pub fn flush(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }

    /// Do the bytes of the client end with a whole event?
    pub const fn is_between_events(&self) -> bool {
        !self.is_overlong
    }

    /// Behind the last whole event in `data`, and whole comments behind that.
    fn end_in(&self, data: &[u8]) -> Option<usize> {
        // The common case: the read ends with an event.
        if data.ends_with(b"\n\n") || data.ends_with(b"\r\n\r\n") {
            return Some(data.len());
        }
        let event_end = self.event_end(data);
        let is_at_start = self.held.is_empty() && !self.is_overlong;
        let from = event_end.or(is_at_start.then_some(0))?;
        let comments = comments_end(data.get(from..).unwrap_or_default());
        let end = from.saturating_add(comments);
        (event_end.is_some() || end > 0).then_some(end)
    }

    fn event_end(&self, data: &[u8]) -> Option<usize> {
        let [first, second] = last_two(self.before, &self.held);
        let at = |position: usize| match position {
            0 => first,
            1 => second,
            position => data.get(position - 2).copied().unwrap_or_default(),
        };
        // Positions are by two higher than in `data`.
        memchr::memrchr2_iter(b'\n', b'\r', data).find_map(|position| {
            let last = position + 2;
            let before = match (at(last - 1), at(last)) {
                (b'\r', b'\n') => at(last - 2),
                (before, _) => before,
            };
            matches!(before, b'\n' | b'\r').then_some(position + 1)
        })
    }
}

/// The last two bytes of `before` and `data`.
const fn last_two(before: [u8; 2], data: &[u8]) -> [u8; 2] {
    match (before, data) {
        (_, [.., first, second]) => [*first, *second],
        ([_, first], [second]) => [first, *second],
        (before, []) => before,
    }
}

/// Behind the lines of comments that `data` begins with.
fn comments_end(data: &[u8]) -> usize {
    let mut end = 0;
    while let Some(rest) = data.get(end..).filter(|rest| rest.starts_with(b":")) {
        let Some(line) = memchr::memchr2(b'\n', b'\r', rest) else { break };
        let is_crlf = rest.get(line..).is_some_and(|end| end.starts_with(b"\r\n"));
        end += line + 1 + usize::from(is_crlf);
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What the client has after each read.
    fn passed(reads: &[&[u8]]) -> Vec<String> {
        let mut tail = EventTail::default();
        let each = reads.iter().map(|read| {
            let (mut out, whole) = tail.pass(read);
            out.extend_from_slice(whole);
            String::from_utf8(out).unwrap()
        });
        each.collect()
    }

    #[test]
    fn an_event_passes_with_its_end() {
        for (reads, wanted) in [
            (&["data: 1\n\n"][..], &["data: 1\n\n"][..]),
            (&["data: 1\n\ndata", ": 2\n\nid: 3"], &["data: 1\n\n", "data: 2\n\n"]),
            (&["data: 1", "\n", "\n", "x"], &["", "", "data: 1\n\n", ""]),
            (&["a\r\n", "\r\n"], &["", "a\r\n\r\n"]),
            (&["a\r", "\n\r", "\nb\n\n"], &["", "a\r\n\r", "\nb\n\n"]),
            (&["a\r\n", "b\r\n\r\n"], &["", "a\r\nb\r\n\r\n"]),
            (&["a\r\rb", "\r", "\rc"], &["a\r\r", "", "b\r\r"]),
            (&["a\n\r\nb\n"], &["a\n\r\n"]),
            (&["a\r", "\n", "b\n"], &["", "", ""]),
            (&["a\n\n", "\n", "b"], &["a\n\n", "\n", ""]),
        ] {
            let reads: Vec<&[u8]> = reads.iter().map(|read| read.as_bytes()).collect();
            assert_eq!(passed(&reads), wanted, "{reads:?}");
        }
    }

    #[test]
    fn comments_pass_at_once_behind_a_whole_event() {
        for (reads, wanted) in [
            (&[": ping\n"][..], &[": ping\n"][..]),
            (&["a\n\n:\r\n: b\rdata"], &["a\n\n:\r\n: b\r"]),
            (&[": pi", "ng\n\n"], &["", ": ping\n\n"]),
            (&["data: 1\n", ": ping\n", "\n"], &["", "", "data: 1\n: ping\n\n"]),
            (&[": a\n", "\n", "b"], &[": a\n", "\n", ""]),
        ] {
            let reads: Vec<&[u8]> = reads.iter().map(|read| read.as_bytes()).collect();
            assert_eq!(passed(&reads), wanted, "{reads:?}");
        }
    }

    #[test]
    fn an_event_that_is_too_long_passes_as_it_comes() {
        let half = vec![b'x'; HELD_EVENT_BYTES_MAX / 2 + 1];
        let mut tail = EventTail::default();
        let mut pass = |read: &[u8]| {
            let (held, whole) = tail.pass(read);
            ([&held, whole].concat(), tail.is_between_events())
        };
        assert_eq!(pass(&half), (Vec::new(), true));
        assert_eq!(pass(&half), (half.repeat(2), false));
        assert_eq!(pass(b"y\n"), (b"y\n".to_vec(), false));
        assert_eq!(pass(b"\ndata"), (b"\n".to_vec(), true));
        assert_eq!(tail.flush(), b"data");
    }

    proptest! {
        /// Wherever reads end, all bytes pass, and before its end no event passes in part.
        #[test]
        fn all_bytes_pass(
            lines in prop::collection::vec("(data: [ab]{0,4}|: c|id:1|)(\r\n|\n|\r)", 0..12),
            cuts in prop::collection::vec(1_usize..12, 0..20),
        ) {
            let text: String = lines.concat();
            let mut tail = EventTail::default();
            let mut out = Vec::new();
            let mut rest = text.as_bytes();
            let mut feed = |tail: &mut EventTail, read: &[u8]| {
                let (held, whole) = tail.pass(read);
                out.extend_from_slice(&held);
                out.extend_from_slice(whole);
                let has = String::from_utf8(out.clone()).unwrap().replace("\r\n", "\n");
                let has = has.replace('\r', "\n");
                let open = has.rsplit_once("\n\n").map_or(&*has, |(_, open)| open);
                let is_whole = open.lines().all(|line| line.is_empty() || line.starts_with(':'));
                prop_assert!(is_whole, "{:?}", has);
                Ok(())
            };
            for cut in cuts {
                let (read, behind) = rest.split_at(cut.min(rest.len()));
                feed(&mut tail, read)?;
                rest = behind;
            }
            feed(&mut tail, rest)?;
            out.extend_from_slice(&tail.flush());
            prop_assert_eq!(out, text.into_bytes());
        }
    }
}
