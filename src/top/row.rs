//! A row of the fleet: a rank with its figures.

use crate::clean::clean;
use crate::figures::RecentSnapshots;
use crate::snapshot::{ShownWorker, Snapshot, WholePart};
use std::collections::{BTreeMap, BTreeSet};

/// State of a rank, mildest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RowState {
    Up,
    CatchingUp,
    Registering,
    Draining,
    Unused,
    Busy,
    Failing,
    Breaker,
    Unusable,
    Unknown,
    Down,
}

impl RowState {
    /// A sign and a word, so that color is not needed.
    pub(crate) const fn words(self) -> &'static str {
        match self {
            Self::Up => "  up",
            Self::CatchingUp => "~ catching up",
            Self::Registering => "~ registering",
            Self::Draining => "- draining",
            Self::Unused => "- unused",
            Self::Busy => "! refuses",
            Self::Failing => "! fails",
            Self::Breaker => "! paused",
            Self::Unusable => "! not usable",
            Self::Unknown => "? not reached",
            Self::Down => "x down",
        }
    }
}

/// Identifies a rank: worker name and rank number.
pub(crate) type RowKey = (String, u64);

/// A rank, with sanitized names.
#[derive(Clone, Debug)]
pub(crate) struct RankRow {
    pub(crate) names: RankNames,
    pub(crate) state: RowState,
    pub(crate) waits_for: Option<String>,
    /// Why the worker is not up, or the fault of a rank that is up.
    pub(crate) error: Option<String>,
    pub(crate) load: RowLoad,
    pub(crate) feed: Option<String>,
    /// Remaining time of the rejection window of the rank's pool.
    pub(crate) window_ms: Option<u64>,
    /// All figures of the rank, by metric.
    pub(crate) figures: Vec<(String, f64)>,
}

/// Names and properties of a rank.
#[derive(Clone, Debug)]
pub(crate) struct RankNames {
    pub(crate) worker: String,
    pub(crate) dp_rank: u64,
    /// False for a worker that was never reached.
    pub(crate) has_rank: bool,
    pub(crate) url: String,
    pub(crate) engine: String,
    pub(crate) models: Vec<String>,
    pub(crate) role: String,
    /// Tokens of a KV block.
    pub(crate) block_size: Option<f64>,
}

/// Load of a rank, as far as known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowLoad {
    pub(crate) in_flight: Option<f64>,
    pub(crate) limit: Option<f64>,
    pub(crate) waiting: Option<f64>,
    pub(crate) prefill_tokens: Option<f64>,
    /// Share of the KV cache that running requests hold, as the engine reports.
    pub(crate) kv_usage: Option<f64>,
    /// Share of the KV cache with blocks in the index.
    pub(crate) cache_fill: Option<f64>,
    pub(crate) ended_per_s: Option<f64>,
    /// Mean time to the first token of the streams that ended in the last minute.
    pub(crate) ttft_mean_s: Option<f64>,
}

impl RankRow {
    pub(crate) fn key(&self) -> RowKey {
        (self.names.worker.clone(), self.names.dp_rank)
    }

    /// True if the rank gets no requests, and has none left.
    pub(crate) fn is_out_of_use(&self) -> bool {
        let is_out = matches!(
            self.state,
            RowState::Unused | RowState::Unusable | RowState::Unknown | RowState::Down
        );
        is_out && self.load.in_flight.is_none_or(|count| count <= 0.0)
    }

    /// Why the rank takes no requests, or requests fail there.
    pub(crate) fn why(&self) -> Option<&str> {
        self.error.as_deref().or(self.waits_for.as_deref())
    }

    /// True if the row contains the text. `wanted` is in lower case.
    pub(crate) fn has(&self, wanted: &str) -> bool {
        let feed = self.feed.as_deref().unwrap_or("no KV events");
        let RankNames { worker, url, engine, role, models, .. } = &self.names;
        let words = [worker, url, engine, role, self.state.words(), feed];
        let models = models.iter().map(String::as_str);
        words.into_iter().chain(models).any(|word| word.to_lowercase().contains(wanted))
    }
}

/// All ranks in fleet order. `whole` and `snapshot` must have the same generation.
pub(crate) fn rows(
    whole: &WholePart,
    snapshot: &Snapshot,
    recent: &RecentSnapshots,
) -> Vec<RankRow> {
    let workers: BTreeMap<u64, &ShownWorker> =
        whole.workers.iter().map(|worker| (worker.index, worker)).collect();
    let windows: BTreeMap<u64, u64> = snapshot
        .pools
        .iter()
        .filter(|pool| pool.open)
        .map(|pool| (pool.pool, pool.open_ms))
        .collect();
    let row = |(place, index): (usize, &u64)| {
        let worker = workers.get(index)?;
        let pool = whole.ranks.pool.get(place);
        let window_ms = pool.and_then(|pool| windows.get(pool)).copied();
        let row = RankRow { window_ms, ..row(worker, whole, snapshot, place) };
        let load = RowLoad { ended_per_s: recent.ended_per_s(place), ..row.load };
        Some(RankRow { load, ..row })
    };
    let ranks = whole.ranks.worker.iter().enumerate().filter_map(row);
    // A worker that was never reached has no rank yet, and is no less of a problem.
    let with_ranks: BTreeSet<u64> = whole.ranks.worker.iter().copied().collect();
    let others = whole.workers.iter().filter(|worker| !with_ranks.contains(&worker.index));
    let others = others.map(|worker| self::row(worker, whole, snapshot, usize::MAX));
    ranks.chain(others).collect()
}

fn row(worker: &ShownWorker, whole: &WholePart, snapshot: &Snapshot, place: usize) -> RankRow {
    let places = &whole.ranks;
    let positive =
        |column: &[Option<f64>]| column.get(place).copied().flatten().filter(|value| *value > 0.0);
    let at = |name| snapshot.figure(name, place);
    let blocks_max = positive(&places.kv_blocks);
    let limit = at("rank_places_max").filter(|limit| *limit > 0.0);
    let figures = snapshot
        .ranks
        .iter()
        .filter_map(|(name, column)| Some((clean(name), column.get(place)?.as_f64()?)));
    RankRow {
        names: RankNames {
            worker: clean(&worker.name),
            dp_rank: places.dp_rank.get(place).copied().unwrap_or_default(),
            has_rank: place < places.worker.len(),
            url: clean(&worker.url),
            engine: clean(&worker.engine),
            models: worker.models.iter().map(|model| clean(model)).collect(),
            role: places.role.get(place).map_or_else(String::new, |role| clean(role)),
            block_size: positive(&places.block_size),
        },
        state: state(worker, &at),
        waits_for: worker.reasons.waits_for.as_deref().map(clean),
        error: worker.reasons.in_words().or(snapshot.word("fault", place).map(clean)),
        load: RowLoad {
            in_flight: at("in_flight"),
            limit: limit.or_else(|| positive(&places.running_max)),
            waiting: at("reported_waiting"),
            prefill_tokens: at("prefill_tokens"),
            kv_usage: at("reported_kv_usage"),
            cache_fill: at("kv_rank_blocks")
                .zip(blocks_max)
                .map(|(held, all)| (held / all).min(1.0)),
            ended_per_s: None,
            ttft_mean_s: at("ttft_1m_mean_seconds"),
        },
        feed: snapshot.word("feed", place).map(clean),
        window_ms: None,
        figures: figures.collect(),
    }
}

fn state(worker: &ShownWorker, at: &impl Fn(&'static str) -> Option<f64>) -> RowState {
    let is = |name| at(name).is_some_and(|value| value > 0.0);
    match worker.state.as_str() {
        // An operator's order hides every other state.
        _ if worker.draining => RowState::Draining,
        "up" if worker.reasons.waits_for.is_some() => RowState::Registering,
        "up" if is("breaker_open") => RowState::Breaker,
        "up" if is("rank_failing") => RowState::Failing,
        "up" if is("rank_busy") => RowState::Busy,
        "up" => RowState::Up,
        "replaying" => RowState::CatchingUp,
        "registering" => RowState::Registering,
        "unused" => RowState::Unused,
        "down" => RowState::Down,
        _ if worker.reasons.answers == Some(true) => RowState::Unusable,
        _ => RowState::Unknown,
    }
}
