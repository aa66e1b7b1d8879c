//! Input of a run: fleet, load and random seed.

use crate::ranks::speed::ModelSpeed;
use crate::traces::trace::Trace;
use forebay_config::Config;

/// Blocks that a rank, and the pool of all ranks, have room for.
#[derive(Clone, Copy, Debug, Default)]
pub struct BlockRoom {
    /// On the device; `None`: the tokens of [`ModelSpeed::kv_tokens`]. At least the longest prompt
    /// with its answer.
    pub device: Option<usize>,
    /// On the host; 0: blocks that leave the device are gone.
    pub host: usize,
    /// In the pool that all ranks write to and load from; 0: there is none.
    pub pool: usize,
}

/// Fleet, load and configuration of a run.
#[derive(Clone, Debug)]
pub struct SimPlan {
    /// Ranks of the fleet; at most `RANKS_MAX`.
    pub ranks: usize,
    /// Ranks that only prefill for the other ranks; 0: each rank serves whole requests.
    pub prefill_ranks: usize,
    /// Routers in front of the ranks.
    pub replicas: usize,
    /// Prompts offered, in percent of what the fleet computes without a cache.
    pub load_percent: f64,
    /// Blocks that a rank has room for.
    pub blocks: BlockRoom,
    /// Seed for ties, and for arrivals that the trace gives in coarse steps.
    pub seed: u64,
    /// Speeds of the engines, assigned to the ranks in turn. Empty: the default.
    pub engines: Vec<ModelSpeed>,
    /// Configuration of the routers, except the policy.
    pub config: Config,
}

impl Default for SimPlan {
    fn default() -> Self {
        Self {
            ranks: 8,
            prefill_ranks: 0,
            replicas: 1,
            load_percent: 80.0,
            blocks: BlockRoom::default(),
            seed: 1,
            engines: Vec::new(),
            config: Config::default(),
        }
    }
}

impl SimPlan {
    /// Speed of a rank's engine.
    pub(crate) fn speed(&self, rank: usize) -> ModelSpeed {
        let kind = rank.checked_rem(self.engines.len());
        kind.map_or_else(ModelSpeed::default, |kind| self.engines[kind])
    }

    /// By rank: blocks that its device has room for.
    pub(crate) fn device_blocks(&self, trace: &Trace) -> impl Fn(usize) -> usize + '_ {
        let block_tokens = trace.block_tokens.max(1);
        let longest = trace.longest_blocks();
        move |rank| {
            let of_engine = self.speed(rank).kv_tokens.div_ceil(block_tokens) as usize;
            self.blocks.device.unwrap_or(of_engine).max(longest + 1)
        }
    }

    /// Time of an idle rank for a prompt without cached tokens. With unequal ranks: the time of a
    /// rank of mean speed, among the ranks that prefill.
    pub(crate) fn alone_ns(&self, prompt_tokens: u32) -> u64 {
        let computing = if self.prefill_ranks > 0 { self.prefill_ranks } else { self.ranks };
        let computing = computing.max(1);
        let kinds = self.engines.len().clamp(1, computing);
        let rates = (0..kinds).map(|kind| {
            let ranks = (computing - kind).div_ceil(kinds);
            ranks as f64 / self.speed(kind).prefill_ns(prompt_tokens).max(1) as f64
        });
        (computing as f64 / rates.sum::<f64>()).round() as u64
    }

    /// Prefill time of the rank, in parts of the fleet's mean.
    pub(crate) fn slowness(&self, rank: usize, prompt_tokens: u32) -> f64 {
        self.speed(rank).prefill_ns(prompt_tokens) as f64 / self.alone_ns(prompt_tokens) as f64
    }
}
