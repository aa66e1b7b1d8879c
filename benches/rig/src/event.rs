//! Events of streams. Each event has the time at which it was due at its worker.

use std::io::{self, Write};

/// Bytes of one event, its empty line included.
const EVENT_BYTES: usize = 200;
const DUE_MARK: &str = "\"due_ns\":\"";
const DUE_DIGITS: usize = 20;
/// The last event of a stream.
const LAST_EVENT: &[u8] = b"data: [DONE]\n\n";

/// One event as a chunk, with the place of its time.
pub struct Event {
    chunk: Vec<u8>,
    /// The event alone.
    text: std::ops::Range<usize>,
    digits: std::ops::Range<usize>,
}

impl Event {
    #[must_use]
    pub fn new() -> Self {
        let text = |padding: &str| {
            format!(
                "data: {{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\
                 {DUE_MARK}{:020}\",\"choices\":[{{\"index\":0,\
                 \"delta\":{{\"content\":\"{padding}\"}},\"finish_reason\":null}}]}}\n\n",
                0
            )
        };
        let text = text(&"a".repeat(EVENT_BYTES - text("").len()));
        let line = format!("{:x}\r\n", text.len());
        let digits = line.len() + text.find(DUE_MARK).unwrap_or(0) + DUE_MARK.len();
        Self {
            text: line.len()..line.len() + text.len(),
            digits: digits..digits + DUE_DIGITS,
            chunk: format!("{line}{text}\r\n").into_bytes(),
        }
    }

    pub(crate) fn chunk(&mut self, due_ns: u64) -> io::Result<&[u8]> {
        write!(&mut self.chunk[self.digits.clone()], "{due_ns:020}")?;
        Ok(&self.chunk)
    }

    /// Bytes of the event, its empty line included.
    fn len(&self) -> usize {
        self.text.len()
    }

    /// When the event was due; `None` unless the event is as the worker sent it.
    fn due_ns(&self, event: &[u8]) -> Option<u64> {
        let start = self.digits.start - self.text.start;
        let end = self.digits.end - self.text.start;
        let is_same = event.len() == self.len()
            && event[..start] == self.chunk[self.text.start..self.digits.start]
            && event[end..] == self.chunk[self.digits.end..self.text.end];
        is_same.then(|| std::str::from_utf8(&event[start..end]).ok()?.parse().ok())?
    }
}

impl Default for Event {
    fn default() -> Self {
        Self::new()
    }
}

/// The events of a stream that a client reads, wherever reads cut them.
#[derive(Default)]
pub struct EventReader {
    /// The part of an event that is not complete.
    partial: Vec<u8>,
}

impl EventReader {
    /// Takes a part of the body; hands the due time of each event to `due`, and `None` for an event
    /// that is not as the worker sent it.
    pub fn take(&mut self, mut part: &[u8], event: &Event, mut due: impl FnMut(Option<u64>)) {
        while !part.is_empty() {
            let missing = event.len() - self.partial.len();
            let used = missing.min(part.len());
            let is_whole = used == event.len();
            if !is_whole {
                self.partial.extend_from_slice(&part[..used]);
            }
            let whole = if is_whole { &part[..used] } else { &self.partial[..] };
            part = &part[used..];
            if whole.len() < event.len() {
                return;
            }
            due(event.due_ns(whole));
            self.partial.clear();
        }
    }

    /// Did the stream end with its last event?
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.partial == LAST_EVENT
    }
}

#[cfg(test)]
mod tests {
    use super::{Event, EventReader, LAST_EVENT};

    #[test]
    fn events_are_read_wherever_they_are_cut() {
        let mut event = Event::new();
        let text = event.text.clone();
        let mut wire = Vec::new();
        for due_ns in [7, 8] {
            wire.extend_from_slice(&event.chunk(due_ns).unwrap()[text.clone()]);
        }
        wire[EVENT_ODD] ^= 1;
        wire.extend_from_slice(LAST_EVENT);
        for cut in 0..=wire.len() {
            let mut reader = EventReader::default();
            let mut found = Vec::new();
            for part in [&wire[..cut], &wire[cut..]] {
                reader.take(part, &event, |due_ns| found.push(due_ns));
            }
            assert_eq!((found, reader.has_ended()), (vec![Some(7), None], true), "cut at {cut}");
        }
    }

    /// A byte of the second event.
    const EVENT_ODD: usize = super::EVENT_BYTES + 8;
}
