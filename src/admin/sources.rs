//! Where the admin API reads what it shows: borrowed for one answer, never kept.

use forebay_base::{NanosSinceStart, RankIndex, WorkerIndex};
use forebay_fleet::account::{ShardCounters, StageHistograms};
use forebay_fleet::admit::DrainRates;
use forebay_fleet::worker::{FleetSnapshot, LoadBoard};
use forebay_index::IndexReader;
use forebay_kv_events::{FeedCounters, FeedStatus};
use forebay_load::{LoadReporter, ReportSource};
use forebay_replicas::ReplicaFigures;
use std::collections::HashMap;
use std::sync::Arc;

/// The fleet, and what runs on it.
#[derive(Clone, Copy)]
pub struct FleetView<'a> {
    /// The fleet that the shards have.
    pub fleet: &'a FleetSnapshot,
    /// What is in flight where.
    pub board: &'a LoadBoard,
    /// What engines report of their load.
    pub loads: &'a LoadReporter,
    /// When the question is answered.
    pub now: NanosSinceStart,
}

/// The KV-event feeds that run.
pub struct FeedsView<'a> {
    /// What all feeds have counted.
    pub counters: &'a FeedCounters,
    /// What each feed is doing, by its rank.
    pub statuses: HashMap<RankIndex, &'a FeedStatus>,
    /// The KV pools that ranks share.
    pub pools: Vec<KvPoolView<'a>>,
}

/// A KV pool that ranks share.
#[derive(Clone, Copy, Debug)]
pub struct KvPoolView<'a> {
    /// Its name, as configured.
    pub name: &'a str,
    /// The model whose blocks these are.
    pub model: &'a str,
    /// Its number in the index.
    pub number: RankIndex,
    /// Blocks that it is believed to hold.
    pub blocks: usize,
    /// Memory of what is known of it.
    pub bytes: usize,
}

/// The shards, in their order.
pub struct ShardsView<'a> {
    /// What each shard has counted.
    pub counters: &'a [Arc<ShardCounters>],
    /// Times of the stages, of all shards.
    pub histograms: &'a StageHistograms,
    /// True for shards that make no progress.
    pub stalled: Vec<bool>,
}

/// Snapshots that were written.
pub struct SnapshotFigures {
    /// Snapshots that are in their place.
    pub written_count: u64,
    /// Snapshots that could not be written.
    pub failed_count: u64,
    /// The last one that was written.
    pub last: Option<SavedSnapshot>,
}

/// A snapshot that is in its place.
#[derive(Clone, Copy, Debug, Default)]
pub struct SavedSnapshot {
    /// When the file was whole.
    pub ended_at: NanosSinceStart,
    /// Size of the file.
    pub bytes: u64,
    /// Ranks in the file.
    pub ranks: u64,
    /// Blocks of all ranks.
    pub blocks: u64,
    /// Time from the first copy to the end.
    pub took_ns: u64,
    /// Longest time that the copy of one rank kept the loop.
    pub copy_ns_max: u64,
}

/// What `/metrics` is made from.
pub struct ScrapeSources<'a> {
    /// The fleet, and what runs on it.
    pub fleet: FleetView<'a>,
    /// How fast the pools end requests.
    pub drain_rates: &'a DrainRates,
    /// The KV-event feeds that run.
    pub feeds: &'a FeedsView<'a>,
    /// The shards, in their order.
    pub shards: &'a ShardsView<'a>,
    /// The radix index.
    pub index: &'a IndexReader,
    /// `None` where no snapshots are written.
    pub snapshots: Option<SnapshotFigures>,
    /// `None` for a router that is alone.
    pub replicas: Option<ReplicaFigures>,
    /// What is told of single requests.
    pub records: RecordFigures,
}

/// What is told of single requests, and what of it was lost.
#[derive(Clone, Copy, Debug, Default)]
pub struct RecordFigures {
    /// Lines of the log that were dropped.
    pub log_dropped: u64,
    /// Spans for a collector.
    pub spans: SpanFigures,
}

/// Spans that were sent to a collector, and those that were lost.
#[derive(Clone, Copy, Debug, Default)]
pub struct SpanFigures {
    /// Taken by the collector.
    pub exported: u64,
    /// Lost because too many waited.
    pub full: u64,
    /// Lost because the collector refused them.
    pub refused: u64,
    /// Lost because the collector did not answer.
    pub unreachable: u64,
}

/// What `/workers` is made from.
pub struct WorkerSources<'a> {
    /// The fleet, and what runs on it.
    pub fleet: FleetView<'a>,
    /// The KV-event feeds that run.
    pub feeds: &'a FeedsView<'a>,
    /// What a prefill worker waits for before it takes traffic.
    pub waits_for: &'a dyn Fn(WorkerIndex) -> Option<&'a str>,
    /// How far a worker's sleep has come; `None` for one that is awake.
    pub sleep: &'a dyn Fn(WorkerIndex) -> Option<&'static str>,
    /// Name of the worker by which requests use the same engine, if they do.
    pub engine_used_by: &'a dyn Fn(WorkerIndex) -> Option<&'a str>,
    /// Where the load reports of a worker come from.
    pub load_source: &'a dyn Fn(WorkerIndex) -> Option<ReportSource>,
}

impl FeedsView<'_> {
    /// What the rank's feed is doing; `None` if it has none.
    pub(crate) fn status(&self, rank: RankIndex) -> Option<&FeedStatus> {
        self.statuses.get(&rank).copied()
    }

    /// The KV pool of that number.
    pub(crate) fn pool(&self, number: RankIndex) -> Option<&KvPoolView<'_>> {
        self.pools.iter().find(|pool| pool.number == number)
    }
}

/// Of all shards together.
pub(crate) fn total(counters: &[Arc<ShardCounters>], read: impl Fn(&ShardCounters) -> u64) -> u64 {
    counters.iter().map(|shard| read(shard)).sum()
}
