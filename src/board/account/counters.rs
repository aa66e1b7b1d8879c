//! Counters of a shard: single-writer atomics, read in place by the control plane. No locks, no
//! read-modify-write. Draining shards read each other's phase.

use super::blame_scope::BlameScope;
use super::choice_counts::ChoiceCounts;
use super::count::Count;
use super::no_continuation::NoContinuation;
use super::rows::{Rows, bump, read, zeroed};
use super::tenant_result::TenantResult;
use forebay_base::limits::{MODELS_MAX, TENANTS_MAX};
use forebay_base::{ModelIndex, TenantIndex};
use forebay_fleet::tenant::TokenUsage;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Endpoints with a counter each; `parse::Endpoint::index` stays below it.
pub(crate) const ENDPOINTS_MAX: usize = 18;
/// Index of requests that reached no endpoint.
pub const NO_ENDPOINT: usize = ENDPOINTS_MAX - 1;
/// Reasons with a counter each; `parse::Reason::index` stays below it.
pub const REASONS_MAX: usize = 40;
/// Statuses 100 to 599.
const STATUSES: usize = 500;
/// Differences of predicted and reported overlap have a bucket each from minus to plus this many
/// blocks; larger differences go to the end buckets.
pub const OVERLAP_ERROR_BLOCKS_MAX: i64 = 8;
const OVERLAP_BUCKETS: usize = 17;

/// Phase of a shard, from start to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ShardPhase {
    Starting,
    Listening,
    /// Accepts none; lets the open ones finish.
    Draining,
    /// Has no connection left and has posted its last messages to other shards. Still serves
    /// messages of other shards.
    Idle,
    /// The thread is gone.
    Ended,
}

#[derive(Debug)]
pub struct ShardCounters {
    plain: Box<[AtomicU64]>,
    by_label: LabelledCells,
    choices: ChoiceCounts,
    overlap_error: OverlapError,
    /// Bytes per token of the first models, as the bits of a float; 0 while unknown.
    bytes_per_token: Box<[AtomicU32]>,
    phase: AtomicU32,
    beats: AtomicU64,
    offloaded: AtomicU64,
}

/// Counters of requests, each with the labels of its metric.
#[derive(Debug)]
struct LabelledCells {
    requests: Box<[AtomicU64]>,
    not_continued: [AtomicU64; NoContinuation::ALL.len()],
    held_against: [AtomicU64; BlameScope::ALL.len()],
    /// A row for each reason and endpoint.
    refused: ModelRows,
    /// A row for each tenant.
    tenant_tokens: ModelRows,
    /// A row for each tenant.
    tenant_ended: Rows,
}

/// Rows of counters, [`KINDS`] for each model.
#[derive(Debug)]
struct ModelRows(Rows);

/// Differences between predicted and reported overlap.
#[derive(Debug)]
struct OverlapError {
    buckets: [AtomicU64; OVERLAP_BUCKETS],
    blocks_sum: AtomicU64,
}

impl ShardCounters {
    #[must_use]
    pub fn new() -> Self {
        Self {
            plain: zeroed(Count::ALL.len()),
            by_label: LabelledCells {
                requests: zeroed(ENDPOINTS_MAX * STATUSES),
                not_continued: std::array::from_fn(|_| AtomicU64::new(0)),
                held_against: std::array::from_fn(|_| AtomicU64::new(0)),
                refused: ModelRows::new(REASONS_MAX * ENDPOINTS_MAX),
                tenant_tokens: ModelRows::new(TENANTS_MAX),
                tenant_ended: Rows::new(TENANTS_MAX, TenantResult::ALL.len()),
            },
            choices: ChoiceCounts::new(),
            overlap_error: OverlapError {
                buckets: std::array::from_fn(|_| AtomicU64::new(0)),
                blocks_sum: AtomicU64::new(0),
            },
            bytes_per_token: (0..MODELS_MAX).map(|_| AtomicU32::new(0)).collect(),
            phase: AtomicU32::new(0),
            beats: AtomicU64::new(0),
            offloaded: AtomicU64::new(0),
        }
    }

    /// Adds to a plain counter. Only the owning shard calls it.
    pub fn add(&self, count: Count, amount: u64) {
        if let Some(cell) = self.plain.get(count as usize) {
            bump(cell, amount);
        }
    }

    /// Value of a plain counter.
    #[must_use]
    pub fn value(&self, count: Count) -> u64 {
        self.plain.get(count as usize).map_or(0, read)
    }

    /// Publishes the bytes per token that the shard has learned for a model. Only the owning shard
    /// calls this.
    pub fn set_bytes_per_token(&self, model: ModelIndex, ratio: f32) {
        if let Some(cell) = self.bytes_per_token.get(model.index()) {
            // ordering: a statistic; pairs with the load in `bytes_per_token`.
            cell.store(ratio.to_bits(), Ordering::Relaxed);
        }
    }

    /// Bytes per token of a model, if the shard has learned them; `None` for models past the first
    /// [`MODELS_MAX`].
    #[must_use]
    pub fn bytes_per_token(&self, model: ModelIndex) -> Option<f32> {
        // ordering: statistic; pairs with the store in `set_bytes_per_token`.
        let bits = self.bytes_per_token.get(model.index())?.load(Ordering::Relaxed);
        (bits != 0).then(|| f32::from_bits(bits))
    }

    #[must_use]
    pub const fn choices(&self) -> &ChoiceCounts {
        &self.choices
    }

    /// Counts an answered request.
    pub fn answered(&self, endpoint_index: usize, status: u16) {
        if let Some(cell) =
            request_slot(endpoint_index, status).and_then(|at| self.by_label.requests.get(at))
        {
            bump(cell, 1);
        }
    }

    /// Requests answered on that endpoint with that status.
    #[must_use]
    pub fn answered_count(&self, endpoint_index: usize, status: u16) -> u64 {
        request_slot(endpoint_index, status)
            .and_then(|at| self.by_label.requests.get(at))
            .map_or(0, read)
    }

    /// Counts a stream that no other worker continued.
    pub fn not_continued(&self, why: NoContinuation) {
        if let Some(cell) = self.by_label.not_continued.get(why as usize) {
            bump(cell, 1);
        }
    }

    /// Streams that no other worker continued, for that reason.
    #[must_use]
    pub fn not_continued_count(&self, why: NoContinuation) -> u64 {
        self.by_label.not_continued.get(why as usize).map_or(0, read)
    }

    /// Counts a refusal or failure of a worker.
    pub fn held(&self, against: BlameScope) {
        if let Some(cell) = self.by_label.held_against.get(against as usize) {
            bump(cell, 1);
        }
    }

    /// Refusals and failures of workers held against the caller, the model or the rank.
    #[must_use]
    pub fn held_count(&self, against: BlameScope) -> u64 {
        self.by_label.held_against.get(against as usize).map_or(0, read)
    }

    /// Counts a request that the router itself refused. `stream`: whether the request asks for a
    /// stream; `None`: the body has not been parsed.
    pub fn refused(
        &self,
        reason_index: usize,
        endpoint_index: usize,
        stream: Option<bool>,
        model_index: usize,
    ) {
        let row = refused_row(reason_index, endpoint_index);
        self.by_label.refused.add(row, model_index, kind_of(stream), 1);
    }

    /// Requests refused for that reason; models past `MODELS_MAX` share the index `MODELS_MAX`.
    #[must_use]
    pub fn refused_count(
        &self,
        reason_index: usize,
        endpoint_index: usize,
        stream: Option<bool>,
        model_index: usize,
    ) -> u64 {
        let row = refused_row(reason_index, endpoint_index);
        self.by_label.refused.count(row, model_index, kind_of(stream))
    }

    /// True if any request was refused for this reason at this endpoint. Spares a reader the cells
    /// of models and kinds, nearly all of which are 0.
    #[must_use]
    pub fn has_refused(&self, reason_index: usize, endpoint_index: usize) -> bool {
        self.by_label.refused.0.is_used(refused_row(reason_index, endpoint_index))
    }

    /// Counts the tokens of an answered request.
    pub fn tokens_used(&self, tenant: TenantIndex, model_index: usize, usage: TokenUsage) {
        let TokenUsage { prompt, cached, output } = usage;
        for (kind, tokens) in [prompt, cached, output].into_iter().enumerate() {
            self.by_label.tenant_tokens.add(tenant.index(), model_index, kind, tokens);
        }
    }

    /// Tokens that a tenant has used of a model; models past `MODELS_MAX` share the index
    /// `MODELS_MAX`.
    #[must_use]
    pub fn tokens_used_count(&self, tenant: TenantIndex, model_index: usize) -> TokenUsage {
        let value = |kind| self.by_label.tenant_tokens.count(tenant.index(), model_index, kind);
        TokenUsage { prompt: value(0), cached: value(1), output: value(2) }
    }

    /// Counts the end of a request of a tenant. Only the owning shard calls it.
    pub fn ended(&self, tenant: TenantIndex, result: TenantResult) {
        self.by_label.tenant_ended.add(tenant.index(), result as usize, 1);
    }

    /// Requests of a tenant with this result.
    #[must_use]
    pub fn ended_count(&self, tenant: TenantIndex, result: TenantResult) -> u64 {
        self.by_label.tenant_ended.count(tenant.index(), result as usize)
    }

    /// Counts a comparison of predicted overlap with the overlap that the engine reported, in
    /// blocks.
    pub fn overlap_error(&self, predicted_minus_reported_blocks: i64) {
        let clamped = predicted_minus_reported_blocks
            .clamp(-OVERLAP_ERROR_BLOCKS_MAX, OVERLAP_ERROR_BLOCKS_MAX);
        let bucket = usize::try_from(clamped + OVERLAP_ERROR_BLOCKS_MAX).unwrap_or(0);
        if let Some(cell) = self.overlap_error.buckets.get(bucket) {
            bump(cell, 1);
        }
        bump(&self.overlap_error.blocks_sum, predicted_minus_reported_blocks.unsigned_abs());
    }

    /// Comparisons by error in blocks, from `-OVERLAP_ERROR_BLOCKS_MAX` up.
    pub fn overlap_errors(&self) -> impl Iterator<Item = (i64, u64)> + '_ {
        (-OVERLAP_ERROR_BLOCKS_MAX..).zip(self.overlap_error.buckets.iter().map(read))
    }

    /// Sum of the absolute errors, in blocks.
    #[must_use]
    pub fn overlap_error_blocks_sum(&self) -> u64 {
        read(&self.overlap_error.blocks_sum)
    }

    /// Signals that the shard makes progress. Only the owning shard calls this.
    pub fn beat(&self) {
        bump(&self.beats, 1);
    }

    /// Changes at least every [`SHARD_BEAT_PERIOD`](forebay_base::limits::SHARD_BEAT_PERIOD) while
    /// the shard makes progress.
    #[must_use]
    pub fn beats(&self) -> u64 {
        read(&self.beats)
    }

    /// Sets how many jobs the offload thread has. Only the owning shard calls this.
    pub fn set_offloaded(&self, count: usize) {
        // ordering: Relaxed; a figure for people, it orders nothing.
        self.offloaded.store(count.try_into().unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Jobs of the offload thread, at the last beat or just after.
    #[must_use]
    pub fn offloaded(&self) -> u64 {
        read(&self.offloaded)
    }

    pub fn set_phase(&self, phase: ShardPhase) {
        // ordering: Release; pairs with the Acquire load in `phase`. A reader of `Listening`,
        // `Idle` or `Ended` also sees the shard's earlier writes and posts.
        self.phase.store(phase as u32, Ordering::Release);
    }

    #[must_use]
    pub fn phase(&self) -> ShardPhase {
        // ordering: Acquire; pairs with the Release store in `set_phase`.
        match self.phase.load(Ordering::Acquire) {
            0 => ShardPhase::Starting,
            1 => ShardPhase::Listening,
            2 => ShardPhase::Draining,
            3 => ShardPhase::Idle,
            _ => ShardPhase::Ended,
        }
    }
}

impl Default for ShardCounters {
    fn default() -> Self {
        Self::new()
    }
}

fn request_slot(endpoint_index: usize, status: u16) -> Option<usize> {
    let status = usize::from(status).checked_sub(100).filter(|&at| at < STATUSES)?;
    (endpoint_index < ENDPOINTS_MAX).then_some(endpoint_index * STATUSES + status)
}

/// Kinds of refused requests: unary, stream, and unknown before the body is parsed. Kinds of
/// tokens: prompt, cached, output.
const KINDS: usize = 3;

impl ModelRows {
    fn new(rows: usize) -> Self {
        Self(Rows::new(rows, KINDS * (MODELS_MAX + 1)))
    }

    fn add(&self, row: usize, model: usize, kind: usize, amount: u64) {
        self.0.add(row, Self::place(model, kind), amount);
    }

    fn count(&self, row: usize, model: usize, kind: usize) -> u64 {
        self.0.count(row, Self::place(model, kind))
    }

    fn place(model: usize, kind: usize) -> usize {
        model.min(MODELS_MAX) * KINDS + kind
    }
}

fn refused_row(reason: usize, endpoint: usize) -> usize {
    reason.min(REASONS_MAX - 1) * ENDPOINTS_MAX + endpoint.min(ENDPOINTS_MAX - 1)
}

fn kind_of(stream: Option<bool>) -> usize {
    stream.map_or(KINDS - 1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_at_their_index() {
        for (index, (count, _)) in Count::ALL.iter().enumerate() {
            assert_eq!(*count as usize, index);
        }
    }

    #[test]
    fn every_label_has_its_own_cell() {
        let counters = ShardCounters::new();
        counters.refused(3, 2, Some(true), 5);
        counters.refused(3, 2, Some(true), 9_999);
        counters.answered(2, 200);
        counters.answered(2, 99);
        assert_eq!(counters.refused_count(3, 2, Some(true), 5), 1);
        assert_eq!(counters.refused_count(3, 2, Some(true), MODELS_MAX), 1);
        assert_eq!(counters.refused_count(3, 2, Some(false), 5), 0);
        assert_eq!(counters.answered_count(2, 200), 1);
    }

    #[test]
    fn tokens_are_counted_by_tenant_and_model() {
        let counters = ShardCounters::new();
        let usage = TokenUsage { prompt: 10, cached: 4, output: 3 };
        let last = TENANTS_MAX - 1;
        let past = MODELS_MAX + 9;
        let last = TenantIndex::try_from_index(last).unwrap();
        counters.tokens_used(TenantIndex(1), 0, usage);
        counters.tokens_used(TenantIndex(1), 0, usage);
        counters.tokens_used(last, past, usage);
        let twice = TokenUsage { prompt: 20, cached: 8, output: 6 };
        assert_eq!(counters.tokens_used_count(TenantIndex(1), 0), twice);
        assert_eq!(counters.tokens_used_count(last, MODELS_MAX), usage);
        assert_eq!(counters.tokens_used_count(TenantIndex(0), 0), TokenUsage::default());
        assert_eq!(counters.tokens_used_count(TenantIndex(1), 1), TokenUsage::default());
    }

    #[test]
    fn overlap_errors_beyond_the_range_fall_into_the_end_buckets() {
        let counters = ShardCounters::new();
        for error in [-100, -1, 0, 0, 100] {
            counters.overlap_error(error);
        }
        let seen: Vec<_> = counters.overlap_errors().filter(|&(_, count)| count > 0).collect();
        assert_eq!(seen, [(-8, 1), (-1, 1), (0, 2), (8, 1)]);
        assert_eq!(counters.overlap_error_blocks_sum(), 201);
    }
}
