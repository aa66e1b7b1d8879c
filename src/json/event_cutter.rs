//! Cuts a stream into whole events, wherever reads end, and finds the data of an event.

use forebay_base::limits::CONTINUED_EVENT_BYTES_MAX;

/// The bytes so far of an event that is not whole.
#[derive(Debug, Default)]
pub struct EventCutter {
    held: Vec<u8>,
    /// No event ends before this byte of `held`.
    searched: usize,
    /// The rest of an event that is too long passes as it comes.
    is_overlong: bool,
}

/// The next bytes of a stream.
pub enum CutPart<'a> {
    /// An event with its end.
    Event(&'a [u8]),
    /// A part of an event that is longer than [`CONTINUED_EVENT_BYTES_MAX`].
    Part(&'a [u8]),
}

impl EventCutter {
    /// Takes the next bytes of the body. Calls `each` for each event that is whole with them.
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
            // The last bytes stay: the end of the event may begin with them.
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

    /// Drops the bytes of an event that is not whole.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Was a part of an open event returned?
    pub const fn is_overlong(&self) -> bool {
        self.is_overlong
    }

    /// The bytes so far of an event that is not whole.
    pub fn held(&self) -> &[u8] {
        &self.held
    }

    /// Removes and returns the bytes of an event that is not whole.
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

/// The bytes before the data of an event with a single line of data, and the data.
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
        } else if !is_empty(rest) {
            return None;
        }
        at = at.saturating_add(line.len());
    }
    found
}

/// Does the event have only comments?
pub fn is_comment(event: &[u8]) -> bool {
    event.split(|byte| *byte == b'\n').all(|line| is_empty(line.trim_ascii_start()))
}

/// Is the line, without its blanks, empty or a comment?
fn is_empty(line: &[u8]) -> bool {
    line.is_empty() || line.starts_with(b":")
}
