//! Cuts a stream into events, wherever reads end, and finds the data of an event.

use forebay_base::limits::CONTINUED_EVENT_BYTES_MAX;

/// What has come of an event.
#[derive(Debug, Default)]
pub struct EventCutter {
    held: Vec<u8>,
    /// No event ends in so many of the bytes held.
    searched: usize,
    /// The rest of an event that is too long passes as it comes.
    is_overlong: bool,
}

/// The next of a stream.
pub enum CutPart<'a> {
    /// An event that is whole.
    Event(&'a [u8]),
    /// A part of one that is too long to be read.
    Part(&'a [u8]),
}

impl EventCutter {
    /// Takes bytes, and calls for each event that has come whole.
    pub fn feed(&mut self, data: &[u8], mut each: impl FnMut(CutPart<'_>)) {
        self.held.extend_from_slice(data);
        let mut from = 0;
        while let Some(end) = event_end(&self.held, self.searched.max(from)) {
            let event = self.held.get(from..end).unwrap_or_default();
            let is_part = std::mem::take(&mut self.is_overlong);
            each(if is_part { CutPart::Part(event) } else { CutPart::Event(event) });
            from = end;
            self.searched = end;
        }
        self.held.drain(..from);
        // The end of an event may begin with the last bytes.
        self.searched = self.held.len().saturating_sub(2);
        if self.is_overlong || self.held.len() > CONTINUED_EVENT_BYTES_MAX {
            // The bytes that may begin the end of the event stay.
            let part = self.held.get(..self.searched).unwrap_or_default();
            each(CutPart::Part(part));
            self.held.drain(..self.searched);
            self.is_overlong = true;
            self.searched = 0;
        }
        if self.held.is_empty() {
            // A stream that waits for its next event holds no buffer.
            self.held = Vec::new();
        }
    }

    /// Forgets what has come of an event.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Has a part of an event passed?
    pub const fn is_overlong(&self) -> bool {
        self.is_overlong
    }

    /// What has come of an event, and stays.
    pub fn held(&self) -> &[u8] {
        &self.held
    }

    /// What has come of an event.
    pub fn take(&mut self) -> Vec<u8> {
        self.searched = 0;
        std::mem::take(&mut self.held)
    }
}

/// Behind the empty line that ends an event.
fn event_end(bytes: &[u8], from: usize) -> Option<usize> {
    let lines = memchr::memchr_iter(b'\n', bytes.get(from..)?);
    lines.map(|at| from + at + 1).find_map(|line| match bytes.get(line..)? {
        [b'\n', ..] => Some(line + 1),
        [b'\r', b'\n', ..] => Some(line + 2),
        _ => None,
    })
}

/// What stands before the data of an event that has one line of it, and the data.
pub fn data_of(event: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut at = 0_usize;
    let mut found = None;
    for line in event.split_inclusive(|byte| *byte == b'\n') {
        let rest = line.trim_ascii_start();
        if let Some(data) = rest.strip_prefix(b"data:") {
            let blanks = data.len().saturating_sub(data.trim_ascii_start().len());
            let start = at.saturating_add(line.len()).saturating_sub(data.len()) + blanks;
            let data = data.trim_ascii();
            if data.is_empty() || found.replace((event.get(..start)?, data)).is_some() {
                return None;
            }
        } else if !says_nothing(rest) {
            return None;
        }
        at = at.saturating_add(line.len());
    }
    found
}

/// Has an event nothing but comments?
pub fn is_comment(event: &[u8]) -> bool {
    event.split(|byte| *byte == b'\n').all(|line| says_nothing(line.trim_ascii_start()))
}

/// A line without its blanks: is it empty, or a comment?
fn says_nothing(line: &[u8]) -> bool {
    line.is_empty() || line.starts_with(b":")
}
