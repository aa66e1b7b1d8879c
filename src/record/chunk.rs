//! Chunks: messages packed together, each chunk with its checksums. Sans-IO: [`ChunkWriter`] writes
//! bytes, [`RecordingDecoder`] reads them in pieces of any size. Claimed sizes are compared with
//! limits and with the ratio of DEFLATE, and memory grows with the unpacked bytes, not with the
//! claimed size.

use super::format::{PLAIN_BYTES_MAX, RecordingDamage, RecordingError, RecordingHeader};
use super::message::RecordedMessage;
use flate2::Compression;
use forebay_snapshot::framing::{
    CHUNK_HEADER_BYTES, ChunkHead, NumberReader, pack, put_chunk, unpack,
};

const CHUNK_MARK: [u8; 4] = *b"CHNK";
const END_MARK: [u8; 4] = *b"DONE";
/// Plain bytes after which a chunk is closed: enough to pack well, and few to lose in a crash.
const CHUNK_BYTES_AIM: usize = 256 * 1024;

/// Collects messages and closes chunks.
#[derive(Debug)]
pub struct ChunkWriter {
    source_count: usize,
    plain: Vec<u8>,
    packed: Vec<u8>,
    message_count: u32,
    last_ns: u64,
}

impl ChunkWriter {
    /// A writer for a recording of that many sources.
    #[must_use]
    pub fn new(source_count: usize) -> Self {
        Self { source_count, plain: Vec::new(), packed: Vec::new(), message_count: 0, last_ns: 0 }
    }

    /// Adds a message. A time before the time of the previous message becomes that time. Appends a
    /// full chunk to `out`.
    ///
    /// # Errors
    /// [`RecordingError::Message`] if the recording has no such source.
    pub fn push(
        &mut self,
        message: &RecordedMessage<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), RecordingError> {
        if usize::from(message.source) >= self.source_count {
            return Err(RecordingError::Message);
        }
        let bytes: usize = message.frames().iter().map(|frame| frame.len()).sum();
        if self.plain.len() + bytes > CHUNK_BYTES_AIM {
            self.close_chunk(out);
        }
        let at_ns = message.at_ns.max(self.last_ns);
        let base_ns = if self.message_count == 0 { 0 } else { self.last_ns };
        message.at(at_ns).encode(base_ns, &mut self.plain);
        self.last_ns = at_ns;
        self.message_count += 1;
        Ok(())
    }

    /// Appends the collected messages as a chunk, if there are any.
    pub fn close_chunk(&mut self, out: &mut Vec<u8>) {
        if self.message_count == 0 {
            return;
        }
        pack(&self.plain, Compression::default(), &mut self.packed);
        frame_chunk(&self.packed, self.plain.len(), self.message_count, out);
        self.message_count = 0;
        self.plain.clear();
        self.plain.shrink_to(2 * CHUNK_BYTES_AIM);
    }

    /// Appends the collected messages and the end mark.
    pub fn finish(mut self, out: &mut Vec<u8>) {
        self.close_chunk(out);
        put_chunk(END_MARK, &[], 0, 0, out);
    }
}

/// Appends a chunk of packed messages. [`ChunkWriter`] calls this; tests call it with invalid
/// bytes.
pub fn frame_chunk(packed: &[u8], plain_bytes: usize, message_count: u32, out: &mut Vec<u8>) {
    put_chunk(CHUNK_MARK, packed, plain_bytes, message_count, out);
}

/// Result of a [`RecordingDecoder::step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeStep {
    /// The part is incomplete: call again with more bytes from the same start.
    NeedMore {
        /// Least number of bytes from that start, more than there were.
        bytes: usize,
    },
    /// The header, which is in [`RecordingDecoder::header`] now.
    Header {
        /// Bytes to consume before the next step.
        used_bytes: usize,
    },
    /// A chunk with its messages in [`RecordingDecoder::messages`] now.
    Chunk {
        /// Bytes to consume before the next step.
        used_bytes: usize,
    },
    /// The end mark of the recording.
    End {
        /// Bytes to consume; no bytes may follow.
        used_bytes: usize,
    },
}

/// Reads a recording from front to back. Must not be used after an error.
#[derive(Debug, Default)]
pub struct RecordingDecoder {
    header: Option<RecordingHeader>,
    plain: Vec<u8>,
    message_count: usize,
    last_ns: u64,
    /// Offset of the next part in the file.
    at: u64,
    ended: bool,
}

impl RecordingDecoder {
    /// A decoder at the start of a recording.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The header; `None` before [`DecodeStep::Header`].
    #[must_use]
    pub fn header(&self) -> Option<&RecordingHeader> {
        self.header.as_ref()
    }

    /// Offset of the first byte that no step has used.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.at
    }

    /// Reads the next part from the front of `bytes`, which must start at the end of the part
    /// before.
    ///
    /// # Errors
    /// [`RecordingError`] when the bytes are no recording or damaged.
    pub fn step(&mut self, bytes: &[u8]) -> Result<DecodeStep, RecordingError> {
        self.message_count = 0;
        self.plain.clear();
        let step = if self.header.is_none() { self.read_header(bytes) } else { self.part(bytes) }?;
        let (DecodeStep::Header { used_bytes }
        | DecodeStep::Chunk { used_bytes }
        | DecodeStep::End { used_bytes }) = step
        else {
            return Ok(step);
        };
        self.at = self.at.saturating_add(used_bytes as u64);
        Ok(step)
    }

    /// The messages of the last step's chunk.
    pub fn messages(&self) -> impl Iterator<Item = RecordedMessage<'_>> {
        let mut reader = NumberReader(&self.plain);
        let mut base_ns = 0;
        (0..self.message_count).map_while(move |_| {
            let message = RecordedMessage::decode(&mut reader, base_ns)?;
            base_ns = message.at_ns;
            Some(message)
        })
    }

    fn read_header(&mut self, bytes: &[u8]) -> Result<DecodeStep, RecordingError> {
        let Some((header, used_bytes)) = RecordingHeader::decode(bytes)? else {
            return Ok(DecodeStep::NeedMore { bytes: bytes.len() + 1 });
        };
        self.header = Some(header);
        Ok(DecodeStep::Header { used_bytes })
    }

    fn part(&mut self, bytes: &[u8]) -> Result<DecodeStep, RecordingError> {
        if self.ended {
            return if bytes.is_empty() {
                Ok(DecodeStep::NeedMore { bytes: 1 })
            } else {
                Err(self.damaged(RecordingDamage::AfterEnd))
            };
        }
        let Some(head) = bytes.first_chunk::<CHUNK_HEADER_BYTES>() else {
            return Ok(DecodeStep::NeedMore { bytes: CHUNK_HEADER_BYTES });
        };
        let head = chunk_head(head).ok_or(self.damaged(RecordingDamage::ChunkHeader))?;
        if head.mark == END_MARK {
            self.ended = true;
            return Ok(DecodeStep::End { used_bytes: CHUNK_HEADER_BYTES });
        }
        let used_bytes = CHUNK_HEADER_BYTES + head.packed_bytes;
        let Some(packed) = bytes.get(CHUNK_HEADER_BYTES..used_bytes) else {
            return Ok(DecodeStep::NeedMore { bytes: used_bytes });
        };
        if !head.matches(packed) {
            return Err(self.damaged(RecordingDamage::Checksum));
        }
        self.unpack(packed, &head)?;
        Ok(DecodeStep::Chunk { used_bytes })
    }

    /// Unpacks a chunk and checks every message in it.
    fn unpack(&mut self, packed: &[u8], head: &ChunkHead) -> Result<(), RecordingError> {
        if !unpack(packed, head.plain_bytes, &mut self.plain) {
            return Err(self.damaged(RecordingDamage::Packing));
        }
        let source_count = self.header.as_ref().map_or(0, |header| header.sources.len());
        let mut reader = NumberReader(&self.plain);
        let mut base_ns = 0;
        for position in 0..head.count {
            let message = RecordedMessage::decode(&mut reader, base_ns)
                .filter(|message| usize::from(message.source) < source_count)
                .filter(|message| position > 0 || message.at_ns >= self.last_ns)
                .ok_or(self.damaged(RecordingDamage::Message))?;
            base_ns = message.at_ns;
        }
        if !reader.0.is_empty() {
            return Err(self.damaged(RecordingDamage::Message));
        }
        self.last_ns = base_ns;
        self.message_count = head.count;
        Ok(())
    }

    fn damaged(&self, what: RecordingDamage) -> RecordingError {
        RecordingError::Damaged { at: self.at, what }
    }
}

/// `None` if the checksum, the mark or the sizes are not possible.
fn chunk_head(bytes: &[u8; CHUNK_HEADER_BYTES]) -> Option<ChunkHead> {
    let head = ChunkHead::decode(bytes, PLAIN_BYTES_MAX)?;
    let possible = match head.mark {
        END_MARK => head.packed_bytes == 0 && head.plain_bytes == 0 && head.count == 0,
        // The shortest message has three bytes.
        CHUNK_MARK => (1..=head.plain_bytes / 3).contains(&head.count),
        _ => false,
    };
    possible.then_some(head)
}
