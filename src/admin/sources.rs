//! Sources of the admin API's answers: borrowed per answer, never stored.

use forebay_base::{NanosSinceStart, RankIndex, WorkerIndex};
use forebay_board::LoadBoard;
use forebay_board::account::{ShardCounters, StageHistograms, TtftHistory};
use forebay_board::admit::DrainRates;
use forebay_fleet::worker::FleetSnapshot;
use forebay_index::IndexReader;
use forebay_kv_events::{FeedCounters, FeedStatus};
use forebay_load::{LoadReporter, ReportSource};
use forebay_replicas::ReplicaFigures;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The fleet and its load.
#[derive(Clone, Copy)]
pub struct FleetView<'a> {
    /// The fleet snapshot of the shards.
    pub fleet: &'a FleetSnapshot,
    /// Load of each rank.
    pub board: &'a LoadBoard,
    /// Load reports of engines.
    pub loads: &'a LoadReporter,
    /// The configured sources of workers.
    pub sources: &'a [WorkerSource],
    /// Restarts of engines, for workers with a restart.
    pub restarts: &'a BTreeMap<WorkerIndex, u64>,
    /// Times to the first token of each rank.
    pub ttft_history: &'a TtftHistory,
    /// Time of the answer.
    pub now: NanosSinceStart,
}

/// A source of workers: a file, or a name that is resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerSource {
    /// Path or URL, as configured.
    pub name: String,
    /// Why the source cannot be read, and what to do; `None`: it was read, or is not read yet.
    pub error: Option<SourceFault>,
    /// Workers of the last list that got no place.
    pub refused: Option<SourceFault>,
}

/// A fault of a source of workers, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFault {
    /// For the log, and for callers with a token.
    pub full: String,
    /// For `/readyz`, which needs no token: names no folder.
    pub brief: String,
}

impl SourceFault {
    /// A fault with the same text for both: the text names no folder.
    #[must_use]
    pub fn of(text: &str) -> Self {
        Self { full: text.to_owned(), brief: text.to_owned() }
    }
}

impl WorkerSource {
    /// The fault of the last reading, else of the workers in the last list.
    #[must_use]
    pub fn fault(&self) -> Option<&SourceFault> {
        self.error.as_ref().or(self.refused.as_ref())
    }

    /// The fault for operators and probes, without folders.
    #[must_use]
    pub fn concern(&self) -> Option<String> {
        let name = &self.name;
        let fault = &self.fault()?.brief;
        if name.contains("://") {
            return Some(format!("`discovery.dns` {name} fails: {fault}"));
        }
        let file = Path::new(name).file_name().unwrap_or_default().display().to_string();
        Some(format!("`discovery.file` {file} fails: {fault}"))
    }
}

/// The running KV-event feeds.
pub struct FeedsView<'a> {
    /// Counters of all feeds.
    pub counters: &'a FeedCounters,
    /// Status of each rank's feed.
    pub statuses: HashMap<RankIndex, &'a FeedStatus>,
    /// The KV pools that ranks share.
    pub pools: Vec<KvPoolView<'a>>,
}

/// A KV pool that ranks share.
#[derive(Clone, Copy, Debug)]
pub struct KvPoolView<'a> {
    /// Name of the pool, as configured.
    pub name: &'a str,
    /// The model of the pool's blocks.
    pub model: &'a str,
    /// Number of the pool in the index.
    pub number: RankIndex,
    /// Blocks that the pool is predicted to hold.
    pub blocks: usize,
    /// Memory of the pool's ledger.
    pub bytes: usize,
}

/// The shards, in index order.
pub struct ShardsView<'a> {
    /// Counters of each shard.
    pub counters: &'a [Arc<ShardCounters>],
    /// Stage times of all shards.
    pub histograms: &'a StageHistograms,
    /// True for a shard without progress.
    pub stalled: Vec<bool>,
}

/// Counts of written snapshots.
pub struct SnapshotFigures {
    pub written_count: u64,
    pub failed_count: u64,
    /// The last successful snapshot.
    pub last: Option<SavedSnapshot>,
}

/// A successfully written snapshot.
#[derive(Clone, Copy, Debug, Default)]
pub struct SavedSnapshot {
    /// When the file was complete.
    pub ended_at: NanosSinceStart,
    /// Size of the file.
    pub bytes: u64,
    /// Ranks in the file.
    pub ranks: u64,
    /// Blocks of all ranks.
    pub blocks: u64,
    /// Time from the first copy to the complete file.
    pub took_ns: u64,
    /// Longest time that the copy of a single rank blocked the loop.
    pub copy_ns_max: u64,
}

pub struct ScrapeSources<'a> {
    /// The fleet and its load.
    pub fleet: FleetView<'a>,
    /// Requests that each pool ends per second.
    pub drain_rates: &'a DrainRates,
    /// The running KV-event feeds.
    pub feeds: &'a FeedsView<'a>,
    /// The shards, in index order.
    pub shards: &'a ShardsView<'a>,
    pub index: &'a IndexReader,
    /// `None` if snapshots are off.
    pub snapshots: Option<SnapshotFigures>,
    /// `None` for a router without replicas.
    pub replicas: Option<ReplicaFigures>,
    /// Log, spans and configuration of the process.
    pub process: ProcessFigures,
}

/// Lost log lines, exported and lost spans, and the last reload.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessFigures {
    /// Log lines that were dropped.
    pub log_dropped: u64,
    /// Spans for the trace collector.
    pub spans: SpanFigures,
    /// Reloads of the configuration.
    pub reload: ReloadFigures,
    /// `None` for a router without `workers_state`.
    pub state_file: Option<StateFileFigures>,
}

/// Writes of the file of operators' orders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateFileFigures {
    pub written_count: u64,
    pub failed_count: u64,
}

/// Whether the router runs the configuration that it last read. The start counts as a reload.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReloadFigures {
    /// The last reload was refused: the router runs the configuration of before.
    pub is_refused: bool,
    /// Time of the last good reload since 1970.
    pub succeeded_at: Duration,
}

/// Spans that were exported or lost.
#[derive(Clone, Copy, Debug, Default)]
pub struct SpanFigures {
    /// Accepted by the collector.
    pub exported: u64,
    /// Dropped because the queue was full.
    pub full: u64,
    /// Lost because the collector refused them.
    pub refused: u64,
    /// Lost because the collector did not respond.
    pub unreachable: u64,
}

/// Why a worker is not up, or fails its health checks while it is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerTrouble<'a> {
    pub reason: &'a str,
    /// What an operator does about the reason.
    pub help: &'static str,
    /// A server answers at the address, and is not usable.
    pub is_answer: bool,
}

pub struct WorkerSources<'a> {
    /// The fleet and its load.
    pub fleet: FleetView<'a>,
    /// The running KV-event feeds.
    pub feeds: &'a FeedsView<'a>,
    /// Condition that a prefill worker waits for before it takes traffic.
    pub waits_for: &'a dyn Fn(WorkerIndex) -> Option<&'a str>,
    /// Why a worker is not up; `None` if it is.
    pub trouble: &'a dyn Fn(WorkerIndex) -> Option<WorkerTrouble<'a>>,
    /// Progress of a worker's sleep; `None` if it is awake.
    pub sleep: &'a dyn Fn(WorkerIndex) -> Option<&'static str>,
    /// Name of the worker through which requests use the same engine, if there is such a worker.
    pub engine_used_by: &'a dyn Fn(WorkerIndex) -> Option<&'a str>,
    /// Source of a worker's load reports.
    pub load_source: &'a dyn Fn(WorkerIndex) -> Option<ReportSource>,
}

impl ScrapeSources<'_> {
    /// The last successful snapshot.
    pub(crate) fn last_snapshot(&self) -> Option<SavedSnapshot> {
        self.snapshots.as_ref()?.last
    }
}

impl FleetView<'_> {
    /// Restarts of a worker's engine that the router has seen.
    pub(crate) fn restart_count(&self, worker: WorkerIndex) -> u64 {
        self.restarts.get(&worker).copied().unwrap_or_default()
    }
}

impl FeedsView<'_> {
    /// Status of the rank's feed; `None` without a feed.
    pub(crate) fn status(&self, rank: RankIndex) -> Option<&FeedStatus> {
        self.statuses.get(&rank).copied()
    }

    /// The KV pool with that number.
    pub(crate) fn pool(&self, number: RankIndex) -> Option<&KvPoolView<'_>> {
        self.pools.iter().find(|pool| pool.number == number)
    }
}

/// Sum over all shards.
pub(crate) fn total(counters: &[Arc<ShardCounters>], read: impl Fn(&ShardCounters) -> u64) -> u64 {
    counters.iter().map(|shard| read(shard)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_concern_names_the_source_without_its_folder() {
        let source = |name: &str, error: Option<&str>| {
            let fault =
                |brief: &str| SourceFault { full: format!("/etc/{brief}"), brief: brief.into() };
            WorkerSource { name: name.to_owned(), error: error.map(fault), refused: None }.concern()
        };
        assert_eq!(source("/etc/w.toml", None), None);
        let faulty = source("/etc/w.toml", Some("w.toml:2:1: unknown key `a`"));
        assert_eq!(faulty.unwrap(), "`discovery.file` w.toml fails: w.toml:2:1: unknown key `a`");
        let name = source("http://gpu:80", Some("no address"));
        assert_eq!(name.unwrap(), "`discovery.dns` http://gpu:80 fails: no address");
    }
}
