//! Recordings of KV-event streams: what engines published, when, in a file; and the way back, into
//! an index of this process or onto sockets that a router follows. A router's notes of requests may
//! stand beside them; the ladder of hits is made from the notes.
//!
//! The codec ([`RecordingHeader`], [`ChunkWriter`], [`RecordingDecoder`]) is sans-IO and fuzzed;
//! the layout stands in `format`. [`record`] and [`publish`] run on a `tokio` runtime of one thread
//! that belongs to the command. Limits: one message of [`MESSAGE_BYTES_MAX`], one chunk in memory,
//! `WAITING_MAX` messages between a socket and the file. Must never be on the path of requests, and
//! never trust a length, a count or a checksum that it reads.

mod chunk;
mod file;
mod format;
mod ladder;
mod message;
mod publish;
mod rebuild;
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
pub use publish::{PublishError, Published, Publisher, Speed};
pub use rebuild::{Rebuilt, TokenText};
pub use recorder::{RecordError, RecordSource, Recorded, RequestSource, record};
pub use request_note::{NotedEnd, NotedRank, NotedRequest, NotedUsage, RequestNote};
