//! Notes of requests on their way from shards to the control plane, while somebody records. The
//! fleet snapshot has the way, so that a shard without a recorder looks at one word a request. No
//! shard waits: a note that finds no room is dropped, and the shard counts it.

use crate::tenant::TokenUsage;
use forebay_base::limits::REQUEST_NOTES_MAX;
use forebay_base::{NanosSinceStart, RankIndex};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// What a shard notes of a request.
#[derive(Debug)]
pub enum ShardNote {
    /// The request was sent. Boxed: ends are as many, and small.
    Sent(Box<SentNote>),
    /// Its answer has ended, or it was refused.
    Ended {
        /// As in the note of its beginning.
        id: u64,
        /// The rank that computed the prompt in the end.
        rank: RankIndex,
        /// Tokens, where the engine told them.
        told: Option<TokenUsage>,
    },
}

/// A request that was sent for the first time.
#[derive(Debug)]
pub struct SentNote {
    /// A number by chance.
    pub id: u64,
    /// The rank that computes the prompt.
    pub rank: RankIndex,
    /// When the request had come.
    pub arrived_at: NanosSinceStart,
    /// Length of the prompt.
    pub prompt_bytes: u64,
    /// Of the parts of the prompt, from the beginning.
    pub keys: Vec<u64>,
}

/// Where shards put notes.
#[derive(Clone, Debug)]
pub struct NoteSink(SyncSender<ShardNote>);

impl NoteSink {
    /// A way for notes of all shards. The receiver must not block: a sender that finds somebody to
    /// wake locks.
    #[must_use]
    pub fn new() -> (Self, Receiver<ShardNote>) {
        let (sender, receiver) = sync_channel(REQUEST_NOTES_MAX);
        (Self(sender), receiver)
    }

    /// False where there was no room.
    #[must_use]
    pub fn put(&self, note: ShardNote) -> bool {
        self.0.try_send(note).is_ok()
    }
}
