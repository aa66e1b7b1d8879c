//! What a run simulates: the fleet, its load, and what chance decides.

use crate::speed::ModelSpeed;
use crate::trace::Trace;
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

/// What a run simulates.
#[derive(Clone, Debug)]
pub struct SimPlan {
    /// Ranks of the fleet; at most `RANKS_MAX`.
    pub ranks: usize,
    /// So many of these compute prompts for the others; 0: each serves whole requests.
    pub prefill_ranks: usize,
    /// Routers in front of them.
    pub replicas: usize,
    /// Prompts offered, in percent of what the fleet computes without a cache.
    pub load_percent: f64,
    /// Blocks that a rank has room for.
    pub blocks: BlockRoom,
    /// Of ties, and of arrivals that the trace gives in coarse steps.
    pub seed: u64,
    /// What the engines of the ranks are like: the ranks have them in turn. Empty: the default.
    pub engines: Vec<ModelSpeed>,
    /// What the routers are like, their policy aside.
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
    /// What the engine of that rank is like.
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

    /// Time that an idle rank takes for a whole prompt of which it holds nothing. Of ranks of
    /// unequal speed: that of a rank of mean speed, among those that compute prompts.
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

    /// Time that the rank takes for a prompt of so many tokens, in parts of the fleet's.
    pub(crate) fn slowness(&self, rank: usize, prompt_tokens: u32) -> f64 {
        self.speed(rank).prefill_ns(prompt_tokens) as f64 / self.alone_ns(prompt_tokens) as f64
    }
}
