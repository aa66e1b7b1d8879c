//! What the requests of one shard decide with: loads and reports, the working memory of match and
//! select, the waits, and what has been learnt.

use crate::dispatch::{RetryBudget, SendPlans};
use crate::queue::WaitTable;
use forebay_base::limits::RANKS_MAX;
use forebay_base::{ModelIndex, NanosSinceStart, ShardIndex};
use forebay_config::{Config, Policy};
use forebay_fleet::admit::DrainRates;
use forebay_fleet::worker::{FleetSnapshot, LoadReports, ShardBoard};
use forebay_index::Overlap;
use forebay_select::{BYTES_PER_TOKEN_DEFAULT, Binder, Candidates, Matched, RoundRobin};
use std::time::Duration;

/// Weight of a new observation of bytes per token.
const BYTES_PER_TOKEN_STEP: f32 = 0.05;

/// What is configured of it; the same as long as the process runs.
#[derive(Clone, Copy, Debug)]
pub struct StageRules {
    /// How a rank is chosen.
    pub policy: Policy,
    /// Longest wait of a request without a deadline of its client.
    pub first_byte_max: Duration,
    /// May what a worker has read go to another worker?
    pub retries_after_send: bool,
    /// Workers that a request is sent to at most.
    pub attempts_max: u32,
}

impl StageRules {
    /// The rules of that configuration.
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

/// One per shard. Not borrowed across an await.
#[derive(Debug)]
pub struct Stages {
    /// What is configured of all that.
    pub rules: StageRules,
    /// How loaded ranks are.
    pub loads: Loads,
    /// The working memory of match and select.
    pub matching: Matching,
    /// State of the policy.
    pub turn: RoundRobin,
    /// For ties, and for whoever is refused or told when to come back by chance.
    pub random: fastrand::Rng,
    /// The requests of this shard that wait in a queue.
    pub waits: WaitTable,
    /// How fast requests of each pool end.
    pub drain_rates: DrainRates,
    /// What requests are sent with.
    pub sends: Sends,
}

/// How loaded ranks are.
#[derive(Debug)]
pub struct Loads {
    /// The loads of all ranks.
    pub board: ShardBoard,
    /// What engines report beyond it, as far as this shard has heard.
    pub reports: LoadReports,
}

/// The working memory of match and select.
#[derive(Debug)]
pub struct Matching {
    /// What ranks hold of the prompt at hand.
    pub matched: Matched,
    /// The ranks that may take the request at hand.
    pub candidates: Candidates,
    /// Bytes per token, by model.
    pub ratios: Ratios,
}

/// What requests are sent with.
#[derive(Debug)]
pub struct Sends {
    /// Where requests go, for the fleet of this moment.
    pub plans: SendPlans,
    /// Retries that are left.
    pub retry: RetryBudget,
}

impl Stages {
    /// Nothing is known, nothing waits.
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
            matching: Matching { matched: Matched::new(RANKS_MAX), candidates, ratios },
            turn: RoundRobin::default(),
            random,
            waits: WaitTable::new(shard),
            drain_rates: DrainRates::default(),
            sends: Sends { plans: SendPlans::default(), retry },
        }
    }

    /// What binds requests to ranks.
    pub fn binder<'a>(&'a mut self, fleet: &'a FleetSnapshot, now: NanosSinceStart) -> Binder<'a> {
        let Self { rules, loads: Loads { board, reports }, turn, random, .. } = self;
        Binder { fleet, board, reports, policy: rules.policy, now, turn, random }
    }
}

/// Bytes per token by model, learnt from matched blocks.
#[derive(Debug, Default)]
pub struct Ratios(Vec<f32>);

impl Ratios {
    /// Bytes per token of a model, as far as known.
    #[must_use]
    pub fn of(&self, model: ModelIndex) -> f32 {
        self.0.get(model.index()).copied().unwrap_or(BYTES_PER_TOKEN_DEFAULT)
    }

    /// Takes a matched prompt's ratio in; returns what is believed now.
    pub fn learn(
        &mut self,
        model: ModelIndex,
        overlap: Overlap,
        block_size_tokens: u32,
    ) -> Option<f32> {
        // From whole blocks that events tell of: their tokens and their bytes are both exact.
        let tokens = u64::from(overlap.blocks) * u64::from(block_size_tokens);
        if tokens == 0 {
            return None;
        }
        if self.0.len() <= model.index() {
            self.0.resize(model.index() + 1, BYTES_PER_TOKEN_DEFAULT);
        }
        #[expect(clippy::cast_precision_loss, reason = "a ratio of counts far below 2^24 blocks")]
        let seen = f64::from(overlap.bytes) / (tokens as f64);
        let ratio = self.0.get_mut(model.index())?;
        #[expect(clippy::cast_possible_truncation, reason = "a ratio between 1 and 100")]
        let seen = seen as f32;
        *ratio += (seen - *ratio) * BYTES_PER_TOKEN_STEP;
        debug_assert!(ratio.is_finite() && *ratio >= 0.0, "{ratio} bytes a token");
        Some(*ratio)
    }
}
