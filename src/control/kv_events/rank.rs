//! One rank's stream without its socket: messages in, operations and counts out. Sans-IO, so that tests and the
//! fuzzer run the very path that sockets feed.

use super::blocks::RankBlocks;
use super::counters::{BatchResult, EventKind, FeedCounters, ResetReason};
use super::decode::Decoder;
use super::event::{Event, Medium, Stored};
use super::naming::{BlockText, Naming};
use super::outcome::Outcome;
use super::sequence::{Sequence, Step};
use super::slice_ops::SliceOps;
use super::tier::{LowerTiers, Tier};

/// State of one stream.
#[derive(Debug)]
pub struct RankFeed<T> {
    decoder: Decoder,
    blocks: RankBlocks<T>,
    sequence: Sequence,
    /// Last batch that came by replay, until the live stream is past it.
    replayed_until: Option<u64>,
    block_size_tokens: u32,
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
        }
    }

    /// Tokens per block as seen in the events of this connection; 0 before the first.
    #[must_use]
    pub fn block_size_tokens(&self) -> u32 {
        self.block_size_tokens
    }

    /// Which tiers beside the device count; `expected` are those of an engine that is known to use them. Before the first
    /// message.
    pub fn set_lower_tiers(&mut self, counted: LowerTiers, expected: bool) {
        self.blocks.set_lower_tiers(counted);
        if expected {
            self.blocks.expect_lower_tiers();
        }
    }

    /// True once the index has a tree for that tier.
    #[must_use]
    pub fn has_tree(&self, tier: Tier) -> bool {
        self.blocks.has_tree(tier)
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
        self.replayed_until = self.sequence.last();
    }

    /// Takes one message: `[topic, sequence, payload]`.
    pub fn message(
        &mut self,
        parts: &[&[u8]],
        counters: &FeedCounters,
        ops: &mut SliceOps,
    ) -> Taken {
        let before = self.blocks.holding();
        let taken = self.take(parts, counters, ops);
        counters.holding_changed(before, self.blocks.holding());
        counters.orphans_gone(self.blocks.take_orphans_gone());
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
        self.begin_again(counters, ops);
        self.block_size_tokens = 0;
    }

    /// Forgets the stream, to take it from its start.
    pub fn begin_again(&mut self, counters: &FeedCounters, ops: &mut SliceOps) {
        let before = self.blocks.holding();
        self.blocks.clear(ops);
        counters.holding_changed(before, self.blocks.holding());
        counters.orphans_gone(self.blocks.take_orphans_gone());
        self.sequence = Sequence::default();
        self.replayed_until = None;
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
        if reset.is_some() {
            self.blocks.clear(ops);
        }
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
                Outcome::Applied | Outcome::Orphaned | Outcome::Elsewhere | Outcome::OtherGroup => {
                    taken += 1;
                }
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
            let is_whole = matches!(outcome, Outcome::Applied | Outcome::Orphaned)
                && stored.medium == Medium::Device;
            if is_whole && !is_finer(stored, *block_size_tokens) {
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
