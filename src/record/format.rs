//! The layout of a recording, version 2, and its header. Numbers are little-endian; `varint` is
//! LEB128 of at most ten bytes; checksums are XXH3-64 without a seed.
//!
//! ```text
//! header   89 'F' 'K' 'V' 0D 0A 1A 0A    magic; shows a transfer that rewrote line ends
//! u16 version = 2
//! u16 sources                   1 to 1024
//! u32 bytes of the source list
//! u64 start                     nanoseconds since 1970
//! sources times: u16 bytes, endpoint in UTF-8; u16 bytes, topic in UTF-8; u8 kind
//!                               kind 0: KV events; 1: notes of requests. Version 1: no kind, all 0
//! u64 checksum of all the above
//! chunk    u32 mark = 'CHNK'
//! u32 packed bytes
//! u32 plain bytes
//! u32 messages                  1 or more
//! u64 checksum of the packed bytes
//! u64 checksum of the five numbers above
//! packed bytes: raw DEFLATE (RFC 1951) of the messages
//! message  varint time                   ns since the start for the first of a chunk,
//! since the message before for later messages
//! varint source                 position in the source list
//! varint frames                 0 to 8; 0: the connection to the source ended here
//! frames times: varint bytes, the bytes of the frame
//! end      a chunk header with the mark 'DONE', 0 packed and 0 plain bytes, 0 messages
//! ```
//!
//! No bytes follow the end. Chunks do not depend on each other, so a file that ends early (a crash,
//! a full disk) is valid up to its last whole chunk. Lengths have a checksum of their own, so that
//! a damaged length does not look like an early end.

use forebay_snapshot::framing::NumberReader;
use std::fmt;
use thiserror::Error;
use twox_hash::XxHash3_64;

/// Version of new recordings. Version 1 can be read too.
pub const VERSION: u16 = 2;
/// Version of recordings of KV events only, without kinds of sources.
const VERSION_OF_EVENTS: u16 = 1;
/// Most sources of a recording.
pub(super) const SOURCES_MAX: usize = 1_024;
/// Largest message, frames together: the limit of the sockets that feeds read.
pub const MESSAGE_BYTES_MAX: usize = forebay_zmq::zmtp::MESSAGE_BYTES_MAX;
/// Most plain bytes of a chunk: a message of the largest size, or many small messages.
pub(super) const PLAIN_BYTES_MAX: usize = MESSAGE_BYTES_MAX + 64 * 1024;

const MAGIC: [u8; 8] = *b"\x89FKV\r\n\x1a\n";
/// Magic, version, sources, bytes of the list, start.
const FIXED_BYTES: usize = 24;
const CHECKSUM_BYTES: usize = 8;
/// Longest source list that is accepted: the largest number of sources with the longest names.
const LIST_BYTES_MAX: usize = SOURCES_MAX * (2 * (NAME_BYTES_MAX + 2) + 1);
const NAME_BYTES_MAX: usize = 1_024;

/// Header of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordingHeader {
    /// Start of the recording, in nanoseconds since 1970.
    pub started_unix_ns: u64,
    /// Recorded streams; messages refer to a source by its position here.
    pub sources: Vec<SourceName>,
}

/// A recorded stream, as named in the header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceName {
    /// Endpoint of the publisher or the router.
    pub endpoint: String,
    /// Prefix of the topics subscribed to.
    pub topic: String,
    pub kind: SourceKind,
}

/// Kind of a source's messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SourceKind {
    /// KV events of a rank, as received.
    #[default]
    Events,
    /// Notes of requests by a router.
    Requests,
}

/// Why bytes are not a usable recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RecordingError {
    /// A file of another kind.
    #[error(
        "not a recording of KV events: it does not begin with the magic bytes 89 46 4b 56 0d 0a 1a 0a"
    )]
    Foreign,
    /// A recording of a later version.
    #[error("a recording of version {0}; this program reads versions 1 to {VERSION}")]
    Version(u16),
    /// The file ends within its header.
    #[error("the recording ends within its header")]
    HeaderCut,
    /// The bytes have changed since they were written.
    #[error("damaged at byte {at}: {what}")]
    Damaged {
        /// Offset in the file.
        at: u64,
        what: RecordingDamage,
    },
    /// Too many sources, or too long a name, when writing.
    #[error(
        "a recording has 1 to {SOURCES_MAX} sources with names of at most {NAME_BYTES_MAX} bytes"
    )]
    Sources,
    /// A message past the limits, when writing.
    #[error(
        "a message is larger than {MESSAGE_BYTES_MAX} bytes, has more than 8 frames, or names no source"
    )]
    Message,
}

/// The damaged part of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordingDamage {
    /// The header's checksum, or bytes under it.
    Header,
    /// A chunk header's checksum, mark or sizes.
    ChunkHeader,
    /// The checksum of a chunk's bytes.
    Checksum,
    /// Bytes that are no DEFLATE, or do not have the size in the chunk header.
    Packing,
    /// A message that does not follow the format.
    Message,
    /// There are bytes after the end mark.
    AfterEnd,
}

impl fmt::Display for RecordingDamage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Header => "the header does not match its checksum",
            Self::ChunkHeader => "no valid chunk begins here",
            Self::Checksum => "the chunk does not match its checksum",
            Self::Packing => "the chunk cannot be unpacked to the size that it names",
            Self::Message => "the chunk holds a message that does not follow the format",
            Self::AfterEnd => "there are bytes after the end",
        })
    }
}

/// How a recording ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordingEnd {
    /// The recording ends with its end mark.
    Complete,
    /// The recording ends early; all chunks before the offset are valid.
    Cut {
        /// Offset of the first unused byte.
        at: u64,
    },
}

impl RecordingHeader {
    /// True if the messages of the source are KV events.
    #[must_use]
    pub fn has_events(&self, source: u16) -> bool {
        let source = self.sources.get(usize::from(source));
        source.is_some_and(|source| source.kind == SourceKind::Events)
    }

    /// Number of KV-event streams, which are before all other sources.
    #[must_use]
    pub fn events_count(&self) -> usize {
        self.sources.iter().take_while(|source| source.kind == SourceKind::Events).count()
    }

    /// Appends the header to `out`.
    ///
    /// # Errors
    /// [`RecordingError::Sources`] without a source, for too many, or for too long a name.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), RecordingError> {
        let mut list = Vec::new();
        for source in &self.sources {
            for name in [&source.endpoint, &source.topic] {
                let length = u16::try_from(name.len()).map_err(|_| RecordingError::Sources)?;
                if name.len() > NAME_BYTES_MAX {
                    return Err(RecordingError::Sources);
                }
                list.extend_from_slice(&length.to_le_bytes());
                list.extend_from_slice(name.as_bytes());
            }
            list.push(u8::from(source.kind == SourceKind::Requests));
        }
        let count = u16::try_from(self.sources.len()).map_err(|_| RecordingError::Sources)?;
        if count == 0 || self.sources.len() > SOURCES_MAX {
            return Err(RecordingError::Sources);
        }
        let list_bytes = u32::try_from(list.len()).map_err(|_| RecordingError::Sources)?;
        let mut header = MAGIC.to_vec();
        header.extend_from_slice(&VERSION.to_le_bytes());
        header.extend_from_slice(&count.to_le_bytes());
        header.extend_from_slice(&list_bytes.to_le_bytes());
        header.extend_from_slice(&self.started_unix_ns.to_le_bytes());
        header.append(&mut list);
        header.extend_from_slice(&XxHash3_64::oneshot(&header).to_le_bytes());
        out.append(&mut header);
        Ok(())
    }

    /// Reads the header, and returns it with its size in bytes; `None` if more bytes are needed.
    ///
    /// # Errors
    /// As soon as the bytes cannot become a header of this version.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, RecordingError> {
        if !MAGIC.iter().zip(bytes).all(|(wanted, byte)| wanted == byte) {
            return Err(RecordingError::Foreign);
        }
        let Some(fixed) = bytes.first_chunk::<FIXED_BYTES>() else { return Ok(None) };
        let mut reader = NumberReader(fixed.get(MAGIC.len()..).unwrap_or_default());
        let damaged = RecordingError::Damaged { at: 0, what: RecordingDamage::Header };
        let version = reader.u16().ok_or(damaged)?;
        if !(VERSION_OF_EVENTS..=VERSION).contains(&version) {
            return Err(RecordingError::Version(version));
        }
        let count = usize::from(reader.u16().ok_or(damaged)?);
        let list_bytes = reader.u32().and_then(|n| usize::try_from(n).ok()).ok_or(damaged)?;
        let started_unix_ns = reader.u64().ok_or(damaged)?;
        if list_bytes > LIST_BYTES_MAX || count == 0 || count > SOURCES_MAX {
            return Err(damaged);
        }
        let end = FIXED_BYTES + list_bytes;
        let Some(covered) = bytes.get(..end) else { return Ok(None) };
        let Some(checksum) = bytes.get(end..).and_then(<[u8]>::first_chunk::<CHECKSUM_BYTES>)
        else {
            return Ok(None);
        };
        if XxHash3_64::oneshot(covered) != u64::from_le_bytes(*checksum) {
            return Err(damaged);
        }
        let mut reader = NumberReader(covered.get(FIXED_BYTES..).unwrap_or_default());
        let mut sources = Vec::new();
        for _ in 0..count {
            let mut name = || text(&mut reader).ok_or(damaged);
            let endpoint = name()?;
            let topic = name()?;
            let kind = if version == VERSION_OF_EVENTS { Some([0]) } else { reader.array() };
            let kind = match kind {
                Some([0]) => SourceKind::Events,
                Some([1]) => SourceKind::Requests,
                _ => return Err(damaged),
            };
            sources.push(SourceName { endpoint, topic, kind });
        }
        if !reader.0.is_empty() {
            return Err(damaged);
        }
        Ok(Some((Self { started_unix_ns, sources }, end + CHECKSUM_BYTES)))
    }
}

fn text(reader: &mut NumberReader<'_>) -> Option<String> {
    let length = usize::from(reader.u16()?);
    std::str::from_utf8(reader.bytes(length)?).ok().map(str::to_owned)
}
