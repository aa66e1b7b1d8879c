//! Notes of requests, sent from shards to the control plane while a recorder is attached. The fleet
//! snapshot contains the sink, so a shard without a recorder reads a single word per request. No
//! shard waits: a note that finds no room is dropped, and the shard counts it.

use crate::tenant::TokenUsage;
use forebay_base::limits::REQUEST_NOTES_MAX;
use forebay_base::{NanosSinceStart, RankIndex};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// A note of a shard about a request.
#[derive(Debug)]
pub enum ShardNote {
    /// The request was sent. Boxed: end notes are as frequent, and small.
    Sent(Box<SentNote>),
    /// The answer has ended, or the request was refused.
    Ended {
        /// Id of the [`SentNote`].
        id: u64,
        /// The rank that finally computed the prompt.
        rank: RankIndex,
        /// Tokens, if the engine reported them.
        told: Option<TokenUsage>,
    },
}

/// A request that was sent for the first time.
#[derive(Debug)]
pub struct SentNote {
    /// Random id of the request.
    pub id: u64,
    pub rank: RankIndex,
    /// When the request arrived.
    pub arrived_at: NanosSinceStart,
    pub prompt_bytes: u64,
    /// Keys of the parts of the prompt, from the beginning.
    pub keys: Vec<u64>,
}

/// Sender of notes, for shards.
#[derive(Clone, Debug)]
pub struct NoteSink(SyncSender<ShardNote>);

impl NoteSink {
    /// A channel for notes of all shards. The receiver must not block: a sender that has to wake a
    /// receiver takes a lock.
    #[must_use]
    pub fn new() -> (Self, Receiver<ShardNote>) {
        let (sender, receiver) = sync_channel(REQUEST_NOTES_MAX);
        (Self(sender), receiver)
    }

    /// False if the channel is full.
    #[must_use]
    pub fn put(&self, note: ShardNote) -> bool {
        self.0.try_send(note).is_ok()
    }
}
