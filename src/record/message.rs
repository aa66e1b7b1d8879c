//! A recorded message and its encoding in a chunk. Sans-IO.

use super::format::{MESSAGE_BYTES_MAX, RecordingError};
use forebay_snapshot::framing::{NumberReader, put_varint};

/// Most frames of a message; engines send three.
pub const FRAMES_MAX: usize = 8;

/// A message of a source with its time; borrows the chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedMessage<'a> {
    /// Nanoseconds since the start of the recording, ascending.
    pub at_ns: u64,
    /// Position of the source in [`super::RecordingHeader::sources`].
    pub source: u16,
    frames: [&'a [u8]; FRAMES_MAX],
    frame_count: usize,
}

impl<'a> RecordedMessage<'a> {
    /// A message of these frames; without frames, the end of the connection to the source.
    ///
    /// # Errors
    /// [`RecordingError::Message`] for more than [`FRAMES_MAX`] frames or [`MESSAGE_BYTES_MAX`].
    pub fn new(at_ns: u64, source: u16, frames: &[&'a [u8]]) -> Result<Self, RecordingError> {
        let bytes = frames.iter().map(|frame| frame.len()).sum::<usize>();
        if frames.len() > FRAMES_MAX || bytes > MESSAGE_BYTES_MAX {
            return Err(RecordingError::Message);
        }
        let mut message =
            Self { at_ns, source, frames: [&[]; FRAMES_MAX], frame_count: frames.len() };
        for (to, from) in message.frames.iter_mut().zip(frames) {
            *to = from;
        }
        Ok(message)
    }

    /// Topic, sequence number and payload, as received.
    #[must_use]
    pub fn frames(&self) -> &[&'a [u8]] {
        self.frames.get(..self.frame_count).unwrap_or_default()
    }

    /// True if the connection to the source ended here.
    #[must_use]
    pub fn is_end_of_connection(&self) -> bool {
        self.frame_count == 0
    }

    /// The message with another time.
    pub(super) fn at(self, at_ns: u64) -> Self {
        Self { at_ns, ..self }
    }

    /// Appends the message; `base_ns` is the time of the message before in the chunk, or 0.
    pub(super) fn encode(&self, base_ns: u64, out: &mut Vec<u8>) {
        put_varint(self.at_ns.saturating_sub(base_ns), out);
        put_varint(u64::from(self.source), out);
        put_varint(self.frames().len() as u64, out);
        for frame in self.frames() {
            put_varint(frame.len() as u64, out);
            out.extend_from_slice(frame);
        }
    }

    /// Reads the next message; `None` if the bytes do not follow the format.
    pub(super) fn decode(reader: &mut NumberReader<'a>, base_ns: u64) -> Option<Self> {
        let at_ns = base_ns.checked_add(reader.varint()?)?;
        let source = u16::try_from(reader.varint()?).ok()?;
        let frame_count = usize::try_from(reader.varint()?).ok()?;
        let mut message = Self { at_ns, source, frames: [&[]; FRAMES_MAX], frame_count };
        let mut bytes = 0_usize;
        for frame in message.frames.get_mut(..frame_count)? {
            let length = usize::try_from(reader.varint()?).ok()?;
            *frame = reader.bytes(length)?;
            bytes += length;
        }
        (bytes <= MESSAGE_BYTES_MAX).then_some(message)
    }
}
