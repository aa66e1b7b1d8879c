//! Counters of all feeds. The feeds share the control plane's thread, so plain cells suffice.

use super::feeds::feed_size::{ExpiryTurn, FeedSize, OrphanOutcomes};
use super::outcome::BatchOutcome;
use super::paths::tier::{TIERS, Tier};
use forebay_zmq::LossReason;
use std::cell::Cell;

/// Outcome of a whole batch, the metrics label `result`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchResult {
    /// Every event was applied, waits for its parent, or concerned another tier or group.
    Applied,
    /// Some events were not applied.
    Partly,
    /// No event was applied.
    Refused,
}

impl BatchResult {
    pub const ALL: [(Self, &'static str); 3] =
        [(Self::Applied, "applied"), (Self::Partly, "partly"), (Self::Refused, "refused")];
}

/// Kinds of events, the metrics label `kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    Stored,
    Removed,
    Cleared,
    /// Another event type, or bytes that are no event.
    Other,
}

impl EventKind {
    pub const ALL: [(Self, &'static str); 4] = [
        (Self::Stored, "stored"),
        (Self::Removed, "removed"),
        (Self::Cleared, "cleared"),
        (Self::Other, "other"),
    ];
}

/// Why a rank's blocks were removed without a clear event of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetReason {
    /// Batches of the stream were lost.
    Gap,
    /// The publisher is another process.
    Restart,
    /// The connection to the publisher ended.
    Disconnect,
    /// A replay ended early, so its blocks are out of date.
    Replay,
    /// A batch could not be decoded.
    Undecodable,
    /// The stream did not confirm blocks of a snapshot in time.
    Unverified,
    /// More events of the publisher contradict each other than there are blocks.
    Contradiction,
}

impl ResetReason {
    pub const ALL: [(Self, &'static str); 7] = [
        (Self::Gap, "gap"),
        (Self::Restart, "restart"),
        (Self::Disconnect, "disconnect"),
        (Self::Replay, "replay"),
        (Self::Undecodable, "undecodable"),
        (Self::Unverified, "unverified"),
        (Self::Contradiction, "contradiction"),
    ];
}

/// Why blocks of a snapshot were dropped, the metrics label `reason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// The engine published more batches since the snapshot than it can replay.
    Gap,
    /// The engine is another process.
    Restart,
    /// A replay ended early.
    Replay,
    /// The stream did not confirm the blocks in time.
    Unverified,
    /// The worker, its stream or its model changed after the restore.
    Replaced,
    /// The tokenizer has changed: tokens become other bytes.
    Tokenizer,
    /// The block size of the engine has changed.
    BlockSize,
    /// The tier of the blocks does not count any more.
    Tier,
    /// The rank is at its limit of tracked blocks.
    Limit,
    /// The blocks changed while the snapshot was taken; or their path does not reach its first
    /// block, and the number of shards has changed.
    Orphan,
    /// No rank of the fleet has that stream.
    Unclaimed,
    /// Entries of the snapshot contradict each other.
    Odd,
}

impl DropReason {
    pub const ALL: [(Self, &'static str); 12] = [
        (Self::Gap, "gap"),
        (Self::Restart, "restart"),
        (Self::Replay, "replay"),
        (Self::Unverified, "unverified"),
        (Self::Replaced, "replaced"),
        (Self::Tokenizer, "tokenizer"),
        (Self::BlockSize, "block_size"),
        (Self::Tier, "tier"),
        (Self::Limit, "limit"),
        (Self::Orphan, "orphan"),
        (Self::Unclaimed, "unclaimed"),
        (Self::Odd, "odd"),
    ];
}

impl From<ResetReason> for DropReason {
    fn from(reason: ResetReason) -> Self {
        match reason {
            ResetReason::Gap => Self::Gap,
            ResetReason::Restart => Self::Restart,
            ResetReason::Disconnect => Self::Replaced,
            ResetReason::Replay | ResetReason::Undecodable | ResetReason::Contradiction => {
                Self::Replay
            }
            ResetReason::Unverified => Self::Unverified,
        }
    }
}

/// Outcome of a replay, the metrics label `result`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayResult {
    /// The answer had every missing batch.
    Complete,
    /// The answer lacked missing batches, or failed.
    Incomplete,
    /// The stream was silent, and no batch was missing.
    Nothing,
}

impl ReplayResult {
    pub const ALL: [(Self, &'static str); 3] = [
        (Self::Complete, "complete"),
        (Self::Incomplete, "incomplete"),
        (Self::Nothing, "nothing_missed"),
    ];
}

const KINDS: usize = EventKind::ALL.len();
const OUTCOMES: usize = BatchOutcome::ALL.len();

/// Counts since the start of the process.
#[derive(Debug, Default)]
pub struct FeedCounters {
    batches: [Cell<u64>; BatchResult::ALL.len()],
    events: [[Cell<u64>; OUTCOMES]; KINDS],
    resets: [Cell<u64>; ResetReason::ALL.len()],
    stalls: Cell<u64>,
    replays: [Cell<u64>; ReplayResult::ALL.len()],
    losses: [Cell<u64>; LossReason::ALL.len()],
    missed: Cell<u64>,
    size: Cell<FeedSize>,
    orphan_outcomes: Cell<OrphanOutcomes>,
    expired: [Cell<u64>; TIERS],
    restored: Cell<u64>,
    dropped: [Cell<u64>; DropReason::ALL.len()],
}

impl FeedCounters {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    pub fn batch(&self, result: BatchResult) {
        bump(self.batches.get(result as usize));
    }

    pub fn event(&self, kind: EventKind, outcome: BatchOutcome) {
        bump(self.events.get(kind as usize).and_then(|row| row.get(outcome as usize)));
    }

    /// Counts a reset of a rank.
    pub fn reset(&self, reason: ResetReason) {
        bump(self.resets.get(reason as usize));
    }

    /// Counts a wait for a full ring of a shard.
    pub fn stall(&self) {
        bump(Some(&self.stalls));
    }

    pub fn replay(&self, result: ReplayResult) {
        bump(self.replays.get(result as usize));
    }

    #[must_use]
    pub fn replay_count(&self, result: ReplayResult) -> u64 {
        self.replays.get(result as usize).map_or(0, Cell::get)
    }

    /// Counts the end of a connection that had followed events.
    pub fn loss(&self, reason: LossReason) {
        bump(self.losses.get(reason as usize));
    }

    #[must_use]
    pub fn loss_count(&self, reason: LossReason) -> u64 {
        self.losses.get(reason as usize).map_or(0, Cell::get)
    }

    /// Counts batches that a gap lost and no replay recovered.
    pub fn missed(&self, count: u64) {
        self.missed.set(self.missed.get().saturating_add(count));
    }

    #[must_use]
    pub fn missed_count(&self) -> u64 {
        self.missed.get()
    }

    /// Replaces the size of a feed in the totals.
    pub fn size_changed(&self, before: FeedSize, after: FeedSize) {
        let all = self.size.get();
        let moved =
            |all: usize, before: usize, after| all.saturating_add(after).saturating_sub(before);
        let mut tier_blocks = all.tier_blocks;
        for ((all, before), after) in
            tier_blocks.iter_mut().zip(before.tier_blocks).zip(after.tier_blocks)
        {
            *all = moved(*all, before, after);
        }
        self.size.set(FeedSize {
            blocks: moved(all.blocks, before.blocks, after.blocks),
            tier_blocks,
            orphans: moved(all.orphans, before.orphans, after.orphans),
            bytes: moved(all.bytes, before.bytes, after.bytes),
        });
    }

    /// Counts orphans that do not wait any more.
    pub fn orphan_outcomes(&self, gone: OrphanOutcomes) {
        let all = self.orphan_outcomes.get();
        self.orphan_outcomes.set(OrphanOutcomes {
            applied: all.applied.saturating_add(gone.applied),
            dropped: all.dropped.saturating_add(gone.dropped),
            removed: all.removed.saturating_add(gone.removed),
        });
    }

    pub fn expired(&self, expired: &ExpiryTurn) {
        for (all, blocks) in self.expired.iter().zip(expired.tier_blocks) {
            all.set(all.get().saturating_add(blocks));
        }
    }

    #[must_use]
    pub fn expired_count(&self, tier: Tier) -> u64 {
        self.expired.get(tier.index()).map_or(0, Cell::get)
    }

    /// Counts blocks restored from a snapshot.
    pub fn restored(&self, blocks: usize) {
        self.restored.set(self.restored.get().saturating_add(blocks as u64));
    }

    /// Counts blocks of a snapshot that were dropped.
    pub fn dropped(&self, reason: DropReason, blocks: u64) {
        if let Some(cell) = self.dropped.get(reason as usize) {
            cell.set(cell.get().saturating_add(blocks));
        }
    }

    /// Blocks restored from a snapshot.
    #[must_use]
    pub fn restored_count(&self) -> u64 {
        self.restored.get()
    }

    #[must_use]
    pub fn dropped_count(&self, reason: DropReason) -> u64 {
        self.dropped.get(reason as usize).map_or(0, Cell::get)
    }

    #[must_use]
    pub fn batch_count(&self, result: BatchResult) -> u64 {
        self.batches.get(result as usize).map_or(0, Cell::get)
    }

    #[must_use]
    pub fn event_count(&self, kind: EventKind, outcome: BatchOutcome) -> u64 {
        let row = self.events.get(kind as usize);
        row.and_then(|row| row.get(outcome as usize)).map_or(0, Cell::get)
    }

    #[must_use]
    pub fn reset_count(&self, reason: ResetReason) -> u64 {
        self.resets.get(reason as usize).map_or(0, Cell::get)
    }

    #[must_use]
    pub fn stall_count(&self) -> u64 {
        self.stalls.get()
    }

    /// Blocks of all feeds, by engine hash and group.
    #[must_use]
    pub fn block_count(&self) -> usize {
        self.size.get().blocks
    }

    /// Blocks of all feeds in a tier.
    #[must_use]
    pub fn tier_block_count(&self, tier: Tier) -> usize {
        self.size.get().tier_blocks.get(tier.index()).copied().unwrap_or(0)
    }

    #[must_use]
    pub fn orphan_count(&self) -> usize {
        self.size.get().orphans
    }

    /// Memory of the blocks of all feeds.
    #[must_use]
    pub fn byte_count(&self) -> usize {
        self.size.get().bytes
    }

    /// Outcomes of blocks that waited for their parent.
    #[must_use]
    pub fn orphans_gone_count(&self) -> OrphanOutcomes {
        self.orphan_outcomes.get()
    }
}

fn bump(cell: Option<&Cell<u64>>) {
    if let Some(cell) = cell {
        cell.set(cell.get().saturating_add(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_stand_at_their_index() {
        for (index, (result, _)) in BatchResult::ALL.iter().enumerate() {
            assert_eq!(*result as usize, index);
        }
        for (index, (kind, _)) in EventKind::ALL.iter().enumerate() {
            assert_eq!(*kind as usize, index);
        }
        for (index, (reason, _)) in ResetReason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, index);
        }
        for (index, (result, _)) in ReplayResult::ALL.iter().enumerate() {
            assert_eq!(*result as usize, index);
        }
        for (index, (reason, _)) in LossReason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, index);
        }
        for (index, (reason, _)) in DropReason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, index);
        }
        for (index, (outcome, _)) in BatchOutcome::ALL.iter().enumerate() {
            assert_eq!(*outcome as usize, index);
        }
    }
}
