//! The load board: a padded cell of atomics per rank, shared by all shards and the control plane,
//! with the cells of queues, the rejection windows, and the bells of the shards.

use super::ComparisonTurn;
use super::KvReport;
use super::LoadReading;
use super::PassedPrompts;
use super::PinnedPrefixes;
use super::PromptNumber;
use super::QueueCell;
use super::RankLoad;
use super::RankPast;
use super::UnstreamedPrompts;
use super::Windows;
use super::counts::foreign_requests::{ForeignOrigin, ForeignRequests};
use super::counts::kv_report::KvReportCell;
use crate::{InFlightCount, TenantBoard};
use crossbeam_utils::CachePadded;
use forebay_base::limits::{POOLS_MAX, RANKS_MAX};
use forebay_base::{ModelIndex, NanosSinceStart, QueueIndex, RankIndex};
use forebay_fleet::worker::{FleetSnapshot, RoomLimits};
use forebay_ring::Bell;
use forebay_ring::sync::OnceLock;
use std::sync::Arc;

/// A cell per rank and per queue, the rejection windows, and the bells of the shards.
#[derive(Debug)]
pub struct LoadBoard {
    ranks: RankCells,
    comparison: CachePadded<ComparisonTurn>,
    queues: Box<[CachePadded<QueueCell>]>,
    windows: Windows,
    in_flight: CachePadded<InFlightCount>,
    tenants: TenantBoard,
    bells: Vec<Arc<Bell>>,
}

/// Cells of all ranks, by index. Apart, because a choice reads only the first two of each rank.
#[derive(Debug)]
struct RankCells {
    loads: Box<[CachePadded<RankLoad>]>,
    pasts: Box<[RankPast]>,
    prompts: Box<[RankPrompts]>,
    foreign: Box<[ForeignRequests]>,
}

/// Prompts in flight on a rank, and what they hold by its engine.
#[derive(Debug, Default)]
struct RankPrompts {
    pinned: PinnedPrefixes,
    kv_report: KvReportCell,
    /// Allocated with the first such prompt.
    unstreamed: OnceLock<Box<UnstreamedPrompts>>,
}

impl LoadBoard {
    /// An empty board without bells.
    #[must_use]
    pub fn new() -> Self {
        Self::with_bells(Vec::new())
    }

    /// An empty board. `bells` are the bells of the shards, in shard order: shards own the queues.
    #[must_use]
    pub fn with_bells(bells: Vec<Arc<Bell>>) -> Self {
        Self {
            ranks: RankCells {
                loads: (0..RANKS_MAX).map(|_| CachePadded::default()).collect(),
                pasts: (0..RANKS_MAX).map(|_| RankPast::default()).collect(),
                prompts: (0..RANKS_MAX).map(|_| RankPrompts::default()).collect(),
                foreign: (0..RANKS_MAX).map(|_| ForeignRequests::default()).collect(),
            },
            comparison: CachePadded::default(),
            queues: (0..POOLS_MAX).map(|_| CachePadded::default()).collect(),
            windows: Windows::new(),
            in_flight: CachePadded::default(),
            tenants: TenantBoard::new(),
            bells,
        }
    }

    /// The cell of a rank; `None` only for an index past [`RANKS_MAX`].
    #[must_use]
    pub fn rank(&self, rank: RankIndex) -> Option<&RankLoad> {
        self.ranks.loads.get(rank.index()).map(|cell| &**cell)
    }

    /// Sets the queue that each rank of the snapshot wakes when it has room. Called before the
    /// snapshot is published.
    pub fn set_queues(&self, fleet: &FleetSnapshot) {
        for rank in (0..fleet.ranks.len()).filter_map(RankIndex::try_from_index) {
            if let Some(load) = self.rank(rank) {
                load.set_queue(fleet.queue_of(rank));
            }
        }
    }

    /// Recent history of a rank; `None` only for an index past [`RANKS_MAX`].
    #[must_use]
    pub fn past(&self, rank: RankIndex) -> Option<&RankPast> {
        self.ranks.pasts.get(rank.index())
    }

    /// Stores the KV use that a reading has. Only the control plane calls this.
    pub fn report_kv(&self, rank: RankIndex, reading: &LoadReading, now: NanosSinceStart) {
        if let Some(prompts) = self.ranks.prompts.get(rank.index()) {
            prompts.kv_report.take(reading, now);
        }
    }

    /// Last report of the KV use of a rank. Only the control plane calls this.
    #[must_use]
    pub fn kv_report(&self, rank: RankIndex) -> Option<KvReport> {
        self.ranks.prompts.get(rank.index())?.kv_report.newest()
    }

    /// Limits of a rank, with the limit of prompt tokens that its speed gives at this moment.
    #[must_use]
    #[inline]
    pub fn limits_now(&self, rank: RankIndex, limits: RoomLimits) -> RoomLimits {
        if limits.prefill_tokens_max != RoomLimits::PREFILL_BY_SPEED {
            return limits;
        }
        let prefill_tokens_max = self.past(rank).map_or(0, RankPast::prefill_room);
        RoomLimits { prefill_tokens_max, ..limits }
    }

    /// Prefixes in use on a rank; `None` only for an index past [`RANKS_MAX`].
    #[must_use]
    pub fn pinned(&self, rank: RankIndex) -> Option<&PinnedPrefixes> {
        self.ranks.prompts.get(rank.index()).map(|prompts| &prompts.pinned)
    }

    /// Prompts of a rank without a visible first token; `None`: the rank never had any.
    #[must_use]
    pub fn unstreamed(&self, rank: RankIndex) -> Option<&UnstreamedPrompts> {
        self.ranks.prompts.get(rank.index())?.unstreamed.get().map(|prompts| &**prompts)
    }

    /// Like [`unstreamed`](Self::unstreamed), but allocates if needed; `None` only for an index
    /// past [`RANKS_MAX`].
    pub fn unstreamed_made(&self, rank: RankIndex) -> Option<&UnstreamedPrompts> {
        if self.unstreamed(rank).is_none() {
            // Another shard may have allocated it meanwhile.
            let _ = self.ranks.prompts.get(rank.index())?.unstreamed.set(Box::default());
        }
        self.unstreamed(rank)
    }

    /// Marks the oldest prompts without a visible first token as computed: prompts with numbers
    /// below `end`, and at most `count_max`.
    pub fn pass_unstreamed(
        &self,
        rank: RankIndex,
        end: PromptNumber,
        count_max: u32,
    ) -> PassedPrompts {
        let (Some(cell), Some(prompts)) = (self.rank(rank), self.unstreamed(rank)) else {
            return PassedPrompts::default();
        };
        let passed = prompts.pass(end, count_max);
        if passed.count > 0 {
            cell.sub_unseen(passed.tokens);
            cell.sub_prefills(passed.count, passed.tokens);
        }
        passed
    }

    /// The cell of a queue; `None` only for an index past [`POOLS_MAX`].
    #[must_use]
    pub fn queue(&self, queue: QueueIndex) -> Option<&QueueCell> {
        self.queues.get(queue.index()).map(|cell| &**cell)
    }

    /// The turn of a shard to compare ranks.
    pub(super) fn comparison(&self) -> &ComparisonTurn {
        &self.comparison
    }

    #[must_use]
    pub const fn tenants(&self) -> &TenantBoard {
        &self.tenants
    }

    #[must_use]
    pub const fn windows(&self) -> &Windows {
        &self.windows
    }

    #[must_use]
    pub fn in_flight(&self) -> &InFlightCount {
        &self.in_flight
    }

    /// Gives a place and its tokens back, and wakes the owner of the rank's queue. `served`: the
    /// model of a request that the engine had accepted; its end proves new room. The end of a
    /// request that the engine refused, or never received, proves nothing.
    pub fn give_back(&self, rank: RankIndex, kv_tokens: u64, served: Option<ModelIndex>) {
        if let Some(cell) = self.rank(rank) {
            // Give the place back before the waiters wake: otherwise the queue's owner would find
            // no room.
            cell.release(kv_tokens);
            // A refused attempt is not counted as an end. When it was, a full pool looked fast, and
            // `Retry-After` was at its minimum.
            if let Some(model) = served {
                cell.has_ended(model);
            }
            self.room_made(rank);
        }
    }

    /// The rank may have new room: wakes the owner of its queue if requests wait there.
    pub fn room_made(&self, rank: RankIndex) {
        let queue = self.rank(rank).and_then(RankLoad::queue);
        let Some(queue) = queue else { return };
        if self.queue(queue).is_some_and(QueueCell::room_made) {
            self.wake_home(queue);
        }
    }

    /// Sets requests on the rank of that origin, and wakes waiting requests if they have become
    /// fewer. Only the control plane calls this.
    pub fn set_elsewhere(
        &self,
        rank: RankIndex,
        origin: ForeignOrigin,
        places: u32,
        kv_tokens: u64,
    ) {
        let Some(cell) = self.rank(rank) else { return };
        let Some(foreign) = self.ranks.foreign.get(rank.index()) else { return };
        let before = (cell.places_elsewhere(), cell.kv_tokens_elsewhere());
        foreign.set(origin, places, kv_tokens);
        let now = foreign.sum();
        if before == now {
            return;
        }
        cell.set_elsewhere(now.0, now.1);
        if now.0 < before.0 || now.1 < before.1 {
            self.room_made(rank);
        }
    }

    /// Stores the learned limit of a rank, and wakes the owner of its queue if the limit has risen.
    /// Only the control plane calls this.
    pub fn set_learned_places(&self, rank: RankIndex, places: Option<u32>) {
        let Some(cell) = self.rank(rank) else { return };
        let before = cell.learned_places();
        let places = places.unwrap_or(0).min(RoomLimits::PLACES_MAX);
        cell.set_learned_places(places);
        if before > 0 && (places == 0 || places > before) {
            self.room_made(rank);
        }
    }

    /// Number of the shard that owns a queue.
    #[must_use]
    pub fn home(&self, queue: QueueIndex) -> usize {
        queue.index() % self.bells.len().max(1)
    }

    /// Rings the bell of the shard that owns a queue.
    pub fn wake_home(&self, queue: QueueIndex) {
        debug_assert!(self.bells.is_empty() || self.home(queue) < self.bells.len());
        if let Some(bell) = self.bells.get(self.home(queue)) {
            bell.ring();
        }
    }
}

impl Default for LoadBoard {
    fn default() -> Self {
        Self::new()
    }
}
