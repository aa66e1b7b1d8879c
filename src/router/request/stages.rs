//! State of a shard that routing decisions use: loads and reports, the working memory of match
//! and select, the waits, and learned ratios and rates.

use crate::dispatch::{RetryBudget, SendPlans};
use crate::queue::WaitTable;
use forebay_base::limits::RANKS_MAX;
use forebay_base::{ModelIndex, NanosSinceStart, ShardIndex};
use forebay_board::admit::DrainRates;
use forebay_board::{LoadReports, ShardBoard};
use forebay_config::{Config, Policy};
use forebay_fleet::worker::FleetSnapshot;
use forebay_index::Overlap;
use forebay_select::{BYTES_PER_TOKEN_DEFAULT, Binder, Candidates, PromptOverlaps, RoundRobin};
use std::time::Duration;

/// Weight of a new observation of bytes per token.
const BYTES_PER_TOKEN_STEP: f32 = 0.05;

/// Configuration of routing. Constant while the process runs.
#[derive(Clone, Copy, Debug)]
pub struct StageRules {
    pub policy: Policy,
    /// Longest wait of a request without a client deadline.
    pub first_byte_max: Duration,
    /// May a request that a worker has read be retried at another worker?
    pub retries_after_send: bool,
    /// Workers that a request is sent to at most.
    pub attempts_max: u32,
}

impl StageRules {
    #[must_use]
    pub const fn of(config: &Config) -> Self {
        Self {
            policy: config.policy,
            first_byte_max: config.timeouts.first_byte,
            retries_after_send: config.retry.after_send,
            attempts_max: config.retry.attempts_max,
        }
    }
}

/// Routing state of a shard. Not borrowed across an await.
#[derive(Debug)]
pub struct Stages {
    pub rules: StageRules,
    pub loads: Loads,
    pub matching: Matching,
    /// Position of the round-robin policy.
    pub turn: RoundRobin,
    /// Breaks ties, draws the share that a window refuses, and spreads `Retry-After`.
    pub random: fastrand::Rng,
    /// The requests of this shard that wait in a queue.
    pub waits: WaitTable,
    /// Rate at which requests of each pool end.
    pub drain_rates: DrainRates,
    pub sends: Sends,
}

/// Load of the ranks.
#[derive(Debug)]
pub struct Loads {
    /// Load of all ranks, counted by this router.
    pub board: ShardBoard,
    /// Load that engines report, as received by this shard.
    pub reports: LoadReports,
}

/// The working memory of match and select.
#[derive(Debug)]
pub struct Matching {
    /// Overlaps of the current prompt.
    pub matched: PromptOverlaps,
    /// Ranks that may take the current request.
    pub candidates: Candidates,
    /// Bytes per token, by model.
    pub ratios: Ratios,
}

/// Send plans and the retry budget.
#[derive(Debug)]
pub struct Sends {
    /// Plans for the current fleet.
    pub plans: SendPlans,
    /// Retries that are left.
    pub retry: RetryBudget,
}

impl Stages {
    #[must_use]
    pub fn new(
        shard: ShardIndex,
        rules: StageRules,
        loads: Loads,
        retry: RetryBudget,
        random: fastrand::Rng,
    ) -> Self {
        let candidates = Candidates::default();
        let ratios = Ratios::default();
        Self {
            rules,
            loads,
            matching: Matching { matched: PromptOverlaps::new(RANKS_MAX), candidates, ratios },
            turn: RoundRobin::default(),
            random,
            waits: WaitTable::new(shard),
            drain_rates: DrainRates::default(),
            sends: Sends { plans: SendPlans::default(), retry },
        }
    }

    pub fn binder<'a>(&'a mut self, fleet: &'a FleetSnapshot, now: NanosSinceStart) -> Binder<'a> {
        let Self { rules, loads: Loads { board, reports }, turn, random, .. } = self;
        Binder { fleet, board, reports, policy: rules.policy, now, turn, random }
    }
}

/// Bytes per token by model, learned from matched blocks.
#[derive(Debug, Default)]
pub struct Ratios(Vec<f32>);

impl Ratios {
    /// Bytes per token of a model; the default before the first observation.
    #[must_use]
    pub fn of(&self, model: ModelIndex) -> f32 {
        self.0.get(model.index()).copied().unwrap_or(BYTES_PER_TOKEN_DEFAULT)
    }

    /// Adds the ratio of a matched prompt and returns the new mean.
    pub fn learn(
        &mut self,
        model: ModelIndex,
        overlap: Overlap,
        block_size_tokens: u32,
    ) -> Option<f32> {
        // Only whole blocks of KV events: their tokens and their bytes are both exact.
        let tokens = u64::from(overlap.blocks) * u64::from(block_size_tokens);
        if tokens == 0 {
            return None;
        }
        if self.0.len() <= model.index() {
            self.0.resize(model.index() + 1, BYTES_PER_TOKEN_DEFAULT);
        }
        #[expect(clippy::cast_precision_loss, reason = "a ratio of counts far below 2^24 blocks")]
        let observed = f64::from(overlap.bytes) / (tokens as f64);
        let ratio = self.0.get_mut(model.index())?;
        #[expect(clippy::cast_possible_truncation, reason = "a ratio between 1 and 100")]
        let observed = observed as f32;
        *ratio += (observed - *ratio) * BYTES_PER_TOKEN_STEP;
        debug_assert!(ratio.is_finite() && *ratio >= 0.0, "{ratio} bytes a token");
        Some(*ratio)
    }
}
