//! Token ids in events that are longer than [`forebay_base::limits::CONTINUED_EVENT_BYTES_MAX`].

/// Removes the lists of token ids from the parts of such an event.
#[derive(Debug, Default)]
pub(super) struct OverlongIds {
    /// Bytes of [`LIST`] that have matched.
    matched: usize,
    is_in_list: bool,
    /// The stream has broken off in such an event, and the client has its beginning.
    pub(super) is_torn: bool,
}

/// The beginning of a list of ids. In a string the quote would be escaped, so this is the end of a
/// key. Only its first byte begins it again.
const LIST: &[u8] = b"token_ids\":[";

impl OverlongIds {
    /// Appends a part of an event, with null in the place of each list.
    pub(super) fn pass(&mut self, mut part: &[u8], out: &mut Vec<u8>) {
        loop {
            if self.is_in_list {
                let Some(end) = memchr::memchr(b']', part) else { return };
                part = part.get(end + 1..).unwrap_or_default();
                *self = Self::default();
            }
            let begins = part.iter().position(|byte| {
                let is_next = LIST.get(self.matched) == Some(byte);
                self.matched = if is_next { self.matched + 1 } else { usize::from(*byte == b't') };
                self.matched == LIST.len()
            });
            let Some(bracket) = begins else { return out.extend_from_slice(part) };
            out.extend_from_slice(part.get(..bracket).unwrap_or_default());
            out.extend_from_slice(b"null");
            part = part.get(bracket + 1..).unwrap_or_default();
            self.is_in_list = true;
        }
    }
}
