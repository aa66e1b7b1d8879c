//! Splits server-sent events into lines of data, without I/O. An event of several lines gives
//! several calls.

use std::fmt;

/// Longest snapshot; 300 ranks have 24 KB.
pub(crate) const SNAPSHOT_BYTES_MAX: usize = 16 * 1024 * 1024;

/// An event is longer than [`SNAPSHOT_BYTES_MAX`]: this is no live stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an event of the stream has more than {SNAPSHOT_BYTES_MAX} bytes")
    }
}

impl std::error::Error for TooLong {}

/// Splits a stream into lines of data. The router writes a line per event.
#[derive(Debug, Default)]
pub struct LineReader {
    unread: Vec<u8>,
}

impl LineReader {
    /// Takes bytes in any pieces; passes each whole data line to `take`.
    ///
    /// # Errors
    /// A line is too long.
    pub fn push(&mut self, bytes: &[u8], mut take: impl FnMut(&[u8])) -> Result<(), TooLong> {
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let (line, after) = rest.split_at(end);
            self.unread.extend_from_slice(line);
            if self.unread.len() > SNAPSHOT_BYTES_MAX {
                return Err(TooLong);
            }
            if let Some(data) = self.unread.strip_prefix(b"data:") {
                take(data.strip_prefix(b" ").unwrap_or(data).trim_ascii_end());
            }
            self.unread.clear();
            rest = after.get(1..).unwrap_or_default();
        }
        if self.unread.len() + rest.len() > SNAPSHOT_BYTES_MAX {
            return Err(TooLong);
        }
        self.unread.extend_from_slice(rest);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_whole_however_they_are_cut() {
        let text = b": hello\ndata: {\"a\":1}\r\n\nevent: x\ndata:{\"b\":2}\n\ndata: unfinished";
        for size in 1..text.len() {
            let mut reader = LineReader::default();
            let mut seen = Vec::new();
            for piece in text.chunks(size) {
                reader.push(piece, |line| seen.push(line.to_vec())).unwrap();
            }
            assert_eq!(seen, [b"{\"a\":1}".to_vec(), b"{\"b\":2}".to_vec()], "pieces of {size}");
        }
    }

    #[test]
    fn an_endless_line_is_refused() {
        let mut reader = LineReader::default();
        let piece = vec![b'x'; SNAPSHOT_BYTES_MAX / 2];
        assert_eq!(reader.push(&piece, |_| ()), Ok(()));
        assert_eq!(reader.push(&piece, |_| ()), Ok(()));
        assert_eq!(reader.push(b"x", |_| ()), Err(TooLong));
    }
}
