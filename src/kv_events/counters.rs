//! What the feeds count. One set for all feeds; they share the control plane's thread, so plain
//! cells will do.

use super::feed_size::{ExpiryTurn, FeedSize, OrphanOutcomes};
use super::outcome::BatchOutcome;
use super::tier::{TIERS, Tier};
use forebay_zmq::LossReason;
use std::cell::Cell;

/// What became of a whole batch; the words are the metrics label `result`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchResult {
    /// Every event was taken, waits for its parent, or concerned another tier or group.
    Applied,
    /// Some events were not taken.
    Partly,
    /// None was.
    Refused,
}

impl BatchResult {
    /// All, with their metrics label.
    pub const ALL: [(Self, &'static str); 3] =
        [(Self::Applied, "applied"), (Self::Partly, "partly"), (Self::Refused, "refused")];
}

/// Kinds of events; the words are the metrics label `kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// `BlockStored`.
    Stored,
    /// `BlockRemoved`.
    Removed,
    /// `AllBlocksCleared`.
    Cleared,
    /// Any other, or none at all.
    Other,
}

impl EventKind {
    /// All, with their metrics label.
    pub const ALL: [(Self, &'static str); 4] = [
        (Self::Stored, "stored"),
        (Self::Removed, "removed"),
        (Self::Cleared, "cleared"),
        (Self::Other, "other"),
    ];
}

/// Why a rank's blocks were forgotten without the engine saying so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetReason {
    /// Batches were lost.
    Gap,
    /// The publisher began again.
    Restart,
    /// The connection ended.
    Disconnect,
    /// A replay ended half way: what it had brought is history.
    Replay,
    /// A batch could not be read.
    Undecodable,
    /// Restored from a snapshot, and nothing has confirmed it in time.
    Unverified,
    /// The publisher said more that cannot be than it said that can.
    Contradiction,
}

impl ResetReason {
    /// All, with their metrics label.
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

/// Why blocks of a snapshot are not held, or not any more; the words are the metrics label
/// `reason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// The engine went on without us, further than it can replay.
    Gap,
    /// The engine began again.
    Restart,
    /// A replay ended half way.
    Replay,
    /// Nothing has confirmed them in time.
    Unverified,
    /// The worker, its stream or its model changed after they were restored.
    Replaced,
    /// Tokens become other bytes now.
    Tokenizer,
    /// The engine has another block size now.
    BlockSize,
    /// Their tier does not count any more.
    Tier,
    /// The rank may not track so many.
    Limit,
    /// They changed while the snapshot was taken; or their path does not reach its first block, and
    /// the number of shards is another now.
    Orphan,
    /// No rank of the fleet has that stream.
    Unclaimed,
    /// The snapshot says what cannot be.
    Odd,
}

impl Dropped {
    /// All, with their metrics label.
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

impl From<ResetReason> for Dropped {
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

/// What a replay brought; the words are the metrics label `result`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayResult {
    /// Everything that was missing.
    Complete,
    /// Less than was missing, or nothing at all.
    Incomplete,
    /// Asked in a quiet moment, and nothing was missing.
    Nothing,
}

impl ReplayResult {
    /// All, with their metrics label.
    pub const ALL: [(Self, &'static str); 3] = [
        (Self::Complete, "complete"),
        (Self::Incomplete, "incomplete"),
        (Self::Nothing, "nothing_missed"),
    ];
}

const KINDS: usize = EventKind::ALL.len();
const OUTCOMES: usize = BatchOutcome::ALL.len();

/// Counts since start.
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
    dropped: [Cell<u64>; Dropped::ALL.len()],
}

impl FeedCounters {
    /// All zero.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts one batch.
    pub fn batch(&self, result: BatchResult) {
        bump(self.batches.get(result as usize));
    }

    /// Counts one event.
    pub fn event(&self, kind: EventKind, outcome: BatchOutcome) {
        bump(self.events.get(kind as usize).and_then(|row| row.get(outcome as usize)));
    }

    /// Counts one reset of a rank.
    pub fn reset(&self, reason: ResetReason) {
        bump(self.resets.get(reason as usize));
    }

    /// Counts one wait for a shard whose ring was full.
    pub fn stall(&self) {
        bump(Some(&self.stalls));
    }

    /// Counts one replay.
    pub fn replay(&self, result: ReplayResult) {
        bump(self.replays.get(result as usize));
    }

    /// Replays with that result.
    #[must_use]
    pub fn replay_count(&self, result: ReplayResult) -> u64 {
        self.replays.get(result as usize).map_or(0, Cell::get)
    }

    /// Counts one connection that had followed events and ended.
    pub fn loss(&self, reason: LossReason) {
        bump(self.losses.get(reason as usize));
    }

    /// Connections that ended for that reason.
    #[must_use]
    pub fn loss_count(&self, reason: LossReason) -> u64 {
        self.losses.get(reason as usize).map_or(0, Cell::get)
    }

    /// Counts batches that were lost between two others and could not be had again.
    pub fn missed(&self, count: u64) {
        self.missed.set(self.missed.get().saturating_add(count));
    }

    /// Batches lost for good.
    #[must_use]
    pub fn missed_count(&self) -> u64 {
        self.missed.get()
    }

    /// Notes that a feed went from holding one amount to another.
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

    /// Counts blocks that do not wait for their parent any more.
    pub fn orphan_outcomes(&self, gone: OrphanOutcomes) {
        let all = self.orphan_outcomes.get();
        self.orphan_outcomes.set(OrphanOutcomes {
            applied: all.applied.saturating_add(gone.applied),
            dropped: all.dropped.saturating_add(gone.dropped),
            removed: all.removed.saturating_add(gone.removed),
        });
    }

    /// Counts blocks that were too old to be believed.
    pub fn expired(&self, expired: &ExpiryTurn) {
        for (all, blocks) in self.expired.iter().zip(expired.tier_blocks) {
            all.set(all.get().saturating_add(blocks));
        }
    }

    /// Blocks of a tier that were too old to be believed.
    #[must_use]
    pub fn expired_count(&self, tier: Tier) -> u64 {
        self.expired.get(tier.index()).map_or(0, Cell::get)
    }

    /// Counts blocks that came from a snapshot.
    pub fn restored(&self, blocks: usize) {
        self.restored.set(self.restored.get().saturating_add(blocks as u64));
    }

    /// Counts blocks of a snapshot that are not held, or not any more.
    pub fn dropped(&self, reason: Dropped, blocks: u64) {
        if let Some(cell) = self.dropped.get(reason as usize) {
            cell.set(cell.get().saturating_add(blocks));
        }
    }

    /// Blocks that came from a snapshot.
    #[must_use]
    pub fn restored_count(&self) -> u64 {
        self.restored.get()
    }

    /// Blocks of a snapshot that are not held, or not any more, for that reason.
    #[must_use]
    pub fn dropped_count(&self, reason: Dropped) -> u64 {
        self.dropped.get(reason as usize).map_or(0, Cell::get)
    }

    /// Batches with that result.
    #[must_use]
    pub fn batch_count(&self, result: BatchResult) -> u64 {
        self.batches.get(result as usize).map_or(0, Cell::get)
    }

    /// Events of that kind with that outcome.
    #[must_use]
    pub fn event_count(&self, kind: EventKind, outcome: BatchOutcome) -> u64 {
        let row = self.events.get(kind as usize);
        row.and_then(|row| row.get(outcome as usize)).map_or(0, Cell::get)
    }

    /// Resets for that reason.
    #[must_use]
    pub fn reset_count(&self, reason: ResetReason) -> u64 {
        self.resets.get(reason as usize).map_or(0, Cell::get)
    }

    /// Waits for full rings.
    #[must_use]
    pub fn stall_count(&self) -> u64 {
        self.stalls.get()
    }

    /// Blocks that the feeds know by the engines' hashes.
    #[must_use]
    pub fn block_count(&self) -> usize {
        self.size.get().blocks
    }

    /// Blocks that a tier holds, among those.
    #[must_use]
    pub fn tier_block_count(&self, tier: Tier) -> usize {
        self.size.get().tier_blocks.get(tier.index()).copied().unwrap_or(0)
    }

    /// Blocks that wait for their parent.
    #[must_use]
    pub fn orphan_count(&self) -> usize {
        self.size.get().orphans
    }

    /// Memory of what the feeds know.
    #[must_use]
    pub fn byte_count(&self) -> usize {
        self.size.get().bytes
    }

    /// What became of blocks that waited for their parent.
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
        for (index, (reason, _)) in Dropped::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, index);
        }
        for (index, (outcome, _)) in BatchOutcome::ALL.iter().enumerate() {
            assert_eq!(*outcome as usize, index);
        }
    }
}
