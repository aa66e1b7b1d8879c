//! Recordings of KV-event streams: messages of engines with their times, in a file. A replay puts
//! them into an index of this process, or onto sockets that a router follows. A recording may also
//! contain a router's notes of requests, from which the hit ladder is computed.
//!
//! The codec ([`RecordingHeader`], [`ChunkWriter`], [`RecordingDecoder`]) is sans-IO and fuzzed;
//! `format` documents the layout. [`record`] and [`publish`] run on the single-threaded `tokio`
//! runtime of the command. Limits: [`MESSAGE_BYTES_MAX`] a message, a single chunk in memory,
//! `WAITING_MAX` messages between a socket and the file. Must never be on the path of requests, and
//! never trust a length, a count or a checksum of a file.

mod chunk;
mod file;
mod format;
mod ladder;
mod message;
mod publish;
mod rebuild;
mod source_link;
mod recorder;
mod request_note;
#[cfg(test)]
mod tests;

pub use chunk::{ChunkWriter, DecodeStep, RecordingDecoder, frame_chunk};
pub use file::{FileReader, FileWriter, Summary, inspect};
pub use format::{
    MESSAGE_BYTES_MAX, RecordingDamage, RecordingEnd, RecordingError, RecordingHeader, SourceKind,
    SourceName, VERSION,
};
pub use ladder::{HitLadder, LadderMaker, LadderSurvey, RUNGS, STEPS};
pub use message::{FRAMES_MAX, RecordedMessage};
pub use publish::{PublishError, PublishTotals, Publisher, Speed};
pub use rebuild::{RebuiltIndex, TokenText};
pub use recorder::{RecordError, RecordSource, RecordingTotals, RequestSource, record};
pub use request_note::{RankEntry, RequestEnd, RequestNote, RequestStart, RequestUsage};
pub use source_link::{STEADY, SourceLink};
