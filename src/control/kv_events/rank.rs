//! One rank's stream without its socket: messages in, operations and counts out. Sans-IO, so that tests and the
//! fuzzer run the very path that sockets feed.

use super::blocks::{BlockText, Naming, Outcome, RankBlocks, SliceOps};
use super::counters::{BatchResult, EventKind, FeedCounters, ResetReason};
use super::decode::Decoder;
use super::event::{Event, Stored};
use super::held::Held;
use super::sequence::{Sequence, Step};
use xxhash_rust::xxh3::xxh3_64;

/// State of one stream.
#[derive(Debug)]
pub struct RankFeed<T> {
    decoder: Decoder,
    blocks: RankBlocks<T>,
    sequence: Sequence,
    /// Last batch that came by replay, until the live stream is past it.
    replayed_until: Option<u64>,
    block_size_tokens: u32,
    /// Of the last batch taken.
    payload_hash: u64,
    /// What is held came from a snapshot, and nothing has shown yet that the engine still is where it was then.
    is_unverified: bool,
}

/// A stream at one moment: as a snapshot takes it and brings it back.
#[derive(Clone, Debug)]
pub struct RankState {
    /// The blocks.
    pub held: Held,
    /// Number of the last batch taken.
    pub sequence: u64,
    /// XXH3-64 of that batch's payload.
    pub payload_hash: u64,
    /// Tokens per block as seen in events; 0 if none has told.
    pub block_size_tokens: u32,
}

/// What one message was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// For the counters.
    pub result: BatchResult,
    /// Set when batches before this one were lost or the publisher restarted; the rank was cleared first.
    pub reset: Option<ResetReason>,
    /// Batches missing before this one.
    pub missed: u64,
}

impl<T: BlockText> RankFeed<T> {
    /// Nothing seen yet.
    #[must_use]
    pub fn new(naming: Naming<T>, entries_max: usize) -> Self {
        Self {
            decoder: Decoder::new(),
            blocks: RankBlocks::new(naming, entries_max),
            sequence: Sequence::default(),
            replayed_until: None,
            block_size_tokens: 0,
            payload_hash: 0,
            is_unverified: false,
        }
    }

    /// A copy for a snapshot; `None` where there is nothing worth one.
    #[must_use]
    pub fn state(&self) -> Option<RankState> {
        let sequence = self.sequence.last()?;
        (!self.blocks.is_empty()).then(|| RankState {
            held: self.blocks.held().clone(),
            sequence,
            payload_hash: self.payload_hash,
            block_size_tokens: self.block_size_tokens,
        })
    }

    /// Goes on where a snapshot was taken; unverified until the stream shows that the engine did so too.
    pub fn restore(&mut self, state: RankState, counters: &FeedCounters) {
        self.blocks.restore(state.held);
        counters.blocks_changed(0, self.blocks.len());
        self.sequence = Sequence::after(state.sequence);
        self.payload_hash = state.payload_hash;
        self.block_size_tokens = state.block_size_tokens;
        self.is_unverified = true;
    }

    /// True while nothing has confirmed what was restored.
    #[must_use]
    pub fn is_unverified(&self) -> bool {
        self.is_unverified
    }

    /// Number of the last batch taken, in this connection or before the snapshot.
    #[must_use]
    pub fn position(&self) -> Option<u64> {
        self.sequence.last()
    }

    /// Compares the first answer to a replay with the batch that the restored state was taken after. An engine that began
    /// again and counted past it has another batch under that number. If it is not the same, everything is forgotten and the
    /// reason returned.
    pub fn verify(
        &mut self,
        parts: &[&[u8]],
        counters: &FeedCounters,
        ops: &mut SliceOps,
    ) -> Option<ResetReason> {
        let (number, last) = (sequence_number(parts), self.sequence.last());
        let payload_hash = parts.get(2).map(|payload| xxh3_64(payload));
        let is_end = number == Some(u64::MAX);
        let reason = if number > last && !is_end {
            ResetReason::Gap
        } else if number != last || payload_hash != Some(self.payload_hash) {
            ResetReason::Restart
        } else {
            self.is_unverified = false;
            return None;
        };
        self.give_up(reason, counters, ops);
        Some(reason)
    }

    /// Forgets what was restored.
    pub fn give_up(&mut self, reason: ResetReason, counters: &FeedCounters, ops: &mut SliceOps) {
        counters.reset(reason);
        self.count_dropped(reason, counters);
        self.begin_again(counters, ops);
    }

    /// Tokens per block as seen in the events of this connection; 0 before the first.
    #[must_use]
    pub fn block_size_tokens(&self) -> u32 {
        self.block_size_tokens
    }

    /// Blocks known by the engine's hash.
    #[must_use]
    pub fn block_count(&self) -> usize {
        self.blocks.len()
    }

    /// Batches missing before the one of this message: the first of them, and this one.
    #[must_use]
    pub fn missing_before(&self, parts: &[&[u8]]) -> Option<(u64, u64)> {
        self.sequence.missing_before(sequence_number(parts)?)
    }

    /// True for a message of the live stream that a replay has brought already.
    #[must_use]
    pub fn is_replayed(&self, parts: &[&[u8]]) -> bool {
        let number = sequence_number(parts);
        number.is_some() && number <= self.replayed_until
    }

    /// A replay has ended: the live stream may still hold what it brought.
    pub fn replay_ended(&mut self) {
        if !self.is_unverified {
            self.replayed_until = self.sequence.last();
        }
    }

    /// Takes one message: `[topic, sequence, payload]`.
    pub fn message(
        &mut self,
        parts: &[&[u8]],
        counters: &FeedCounters,
        ops: &mut SliceOps,
    ) -> Taken {
        let held = self.blocks.len();
        let taken = self.take(parts, counters, ops);
        counters.blocks_changed(held, self.blocks.len());
        counters.batch(taken.result);
        if let Some(reason) = taken.reset {
            counters.reset(reason);
        }
        taken
    }

    /// The connection ended: what happens now is lost, so nothing that is held can be trusted.
    pub fn disconnected(&mut self, counters: &FeedCounters, ops: &mut SliceOps) {
        if !self.blocks.is_empty() {
            counters.reset(ResetReason::Disconnect);
        }
        self.count_dropped(ResetReason::Disconnect, counters);
        self.begin_again(counters, ops);
    }

    fn begin_again(&mut self, counters: &FeedCounters, ops: &mut SliceOps) {
        counters.blocks_changed(self.blocks.len(), 0);
        self.blocks.clear(ops);
        self.sequence = Sequence::default();
        self.replayed_until = None;
        self.block_size_tokens = 0;
    }

    /// What is held goes; counts it if it came from a snapshot and was never confirmed.
    fn count_dropped(&mut self, reason: ResetReason, counters: &FeedCounters) {
        if std::mem::take(&mut self.is_unverified) {
            counters.dropped(reason.into(), self.blocks.held().block_count() as u64);
        }
    }

    fn take(&mut self, parts: &[&[u8]], counters: &FeedCounters, ops: &mut SliceOps) -> Taken {
        let refused = Taken { result: BatchResult::Refused, reset: None, missed: 0 };
        let (Some(number), Some(payload)) = (sequence_number(parts), parts.get(2)) else {
            return refused;
        };
        if self.replayed_until.is_some_and(|until| number > until) {
            self.replayed_until = None;
        }
        let (reset, missed) = match self.sequence.step(number) {
            Step::Next => (None, 0),
            Step::First { missed } => (None, missed),
            Step::Gap { missed } => (Some(ResetReason::Gap), missed),
            Step::Restarted => (Some(ResetReason::Restart), 0),
        };
        if let Some(reason) = reset {
            self.count_dropped(reason, counters);
            self.blocks.clear(ops);
        }
        self.is_unverified = false;
        self.payload_hash = xxh3_64(payload);
        Taken { result: self.payload(payload, counters, ops), reset, missed }
    }

    fn payload(
        &mut self,
        bytes: &[u8],
        counters: &FeedCounters,
        ops: &mut SliceOps,
    ) -> BatchResult {
        let Self { decoder, blocks, block_size_tokens, .. } = self;
        let (mut taken, mut failed) = (0_usize, 0_usize);
        let decoded = decoder.decode(bytes, |event| {
            let (kind, outcome) = apply(blocks, block_size_tokens, &event, ops);
            counters.event(kind, outcome);
            match outcome {
                Outcome::Applied | Outcome::Elsewhere | Outcome::OtherGroup => taken += 1,
                _ => failed += 1,
            }
        });
        match (decoded.is_ok(), taken, failed) {
            (true, _, 0) => BatchResult::Applied,
            (_, 0, _) => BatchResult::Refused,
            _ => BatchResult::Partly,
        }
    }
}

/// The number of a well-formed message.
fn sequence_number(parts: &[&[u8]]) -> Option<u64> {
    let &[_, number, _] = parts else { return None };
    <[u8; 8]>::try_from(number).ok().map(u64::from_be_bytes)
}

fn apply<T: BlockText>(
    blocks: &mut RankBlocks<T>,
    block_size_tokens: &mut u32,
    event: &Event<'_>,
    ops: &mut SliceOps,
) -> (EventKind, Outcome) {
    match event {
        Event::Stored(stored) => {
            let outcome = blocks.stored(stored, ops);
            if outcome == Outcome::Applied && !is_finer(stored, *block_size_tokens) {
                *block_size_tokens = stored.block_size_tokens;
            }
            (EventKind::Stored, outcome)
        }
        Event::Removed(removed) => (EventKind::Removed, blocks.removed(removed, ops)),
        Event::Cleared => {
            blocks.clear(ops);
            (EventKind::Cleared, Outcome::Applied)
        }
        Event::Unknown => (EventKind::Other, Outcome::UnknownType),
        Event::Malformed => (EventKind::Other, Outcome::Malformed),
    }
}

/// Some engines also announce part blocks in a finer size; those say nothing about the size of whole ones.
fn is_finer(stored: &Stored<'_>, block_size_tokens: u32) -> bool {
    stored.group.is_some() && stored.block_size_tokens < block_size_tokens
}
