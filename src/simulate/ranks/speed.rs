//! Duration of a rank's steps, and limits of a step.
//!
//! | figure | value | source |
//! |---|---|---|
//! | arithmetic of an H100 SXM, BF16, dense | 989 TFLOP/s | NVIDIA's data sheet |
//! | memory bandwidth of an H100 SXM | 3.35 TB/s | NVIDIA's data sheet |
//! | parameters of Llama 3.1 8B | 8.03 billion | its model card |
//! | layers, hidden size, KV heads, head size | 32, 4096, 8, 128 | its `config.json` |
//! | share of the arithmetic that is reached | 0.5 | assumed |
//! | share of the bandwidth that is reached | 0.8 | assumed |
//! | memory of an H100 SXM | 80 GB | NVIDIA's data sheet |
//! | share of the memory for weights and KV | 0.9 | vLLM's documented default |
//! | bandwidth from the host, each way | 64 GB/s | PCIe 5.0 with 16 lanes |
//! | bandwidth between hosts | 400 Gbit/s | one ConnectX-7 for each GPU, NVIDIA's data sheet |
//! | tokens of a step, at most | 8,192 | vLLM's default for an H100 |
//! | sequences of a step, at most | 256 | vLLM's documented default |
//!
//! A token costs two operations for each parameter. A token attends to each token before it with
//! four operations for each layer and each hidden value. A step reads all weights once, and the KV
//! of all sequences that decode. The KV of a token takes 128 KiB, so 427,000 tokens fit beside the
//! weights. These are the defaults; a file can override them, see the page
//! `docs/benchmarks/simulator.md`.

use serde::Deserialize;

const FLOP_PER_S: f64 = 989e12 * 0.5;
const BYTES_PER_S: f64 = 3.35e12 * 0.8;
const HOST_BYTES_PER_S: f64 = 64e9 * 0.8;
const NETWORK_BYTES_PER_S: f64 = 50e9 * 0.8;
const PARAMETERS: f64 = 8.03e9;
const LAYERS: f64 = 32.0;
const HIDDEN: f64 = 4_096.0;
const KV_HEADS: f64 = 8.0;
const HEAD: f64 = 128.0;
const BF16_BYTES: f64 = 2.0;
const MEMORY_BYTES: f64 = 80e9 * 0.9;
const NS_PER_S: f64 = 1e9;
/// Longest time in a file and of a step, about a quarter of an hour: longer than any real step.
const TIME_NS_MAX: f64 = 1e12;
/// More than any engine computes in a step.
const COUNT_MAX: u32 = 1 << 20;
/// More than the memory of any engine holds.
const KV_TOKENS_MAX: u32 = 1 << 30;

/// Cost of requests and steps of a rank, and limits of a step.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelSpeed {
    /// A request's time outside of steps, before its first token.
    pub request_ns: f64,
    /// Most tokens in a step.
    pub step_tokens_max: u32,
    /// Most sequences in the batch.
    pub sequences_max: u32,
    /// Tokens of KV that fit on the device.
    pub kv_tokens: u32,
    /// The engine declares `sequences_max`. Without it the engine reports its load at the end of a
    /// step, as vLLM does, and the router learns the limit.
    pub declares_limit: bool,
    /// The engine serves waiting requests by the priority that routers set, as vLLM with
    /// `--scheduling-policy priority`.
    pub priority_scheduling: bool,
    /// Cost of a step.
    pub step: StepCost,
    /// Cost of KV transfers.
    pub transfer: TransferCost,
}

/// Cost of a step.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StepCost {
    /// Fixed time of each step.
    pub fixed_ns: f64,
    /// Arithmetic for a token, without attention.
    pub token_ns: f64,
    /// Attention of a token to each token before it.
    pub attention_ns: f64,
    /// Read of all weights, which overlaps the arithmetic.
    pub weights_ns: f64,
    /// Read of the KV of a token.
    pub kv_read_ns: f64,
}

/// Transfer time of the KV of a token.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TransferCost {
    /// From the host to the device.
    pub host_token_ns: f64,
    /// From another rank, over the network.
    pub network_token_ns: f64,
}

/// Fault in a file of engine figures.
#[derive(Debug, thiserror::Error)]
pub enum SpeedError {
    /// Not TOML, or an unknown key.
    #[error("{0}")]
    Toml(#[from] toml_edit::de::Error),
    /// A time out of range.
    #[error("{0}: give nanoseconds, 0 or more and at most 1e12")]
    Time(&'static str),
    /// A count of 0, or more than an engine can have.
    #[error("{0}: give 1 to {1}")]
    Count(&'static str, u32),
    /// Steps that take no time.
    #[error("step: fixed_ns, token_ns and weights_ns are 0. Give at least one of them")]
    NoTime,
}

const KV_BYTES: f64 = 2.0 * LAYERS * KV_HEADS * HEAD * BF16_BYTES;

/// Tokens of KV that fit beside the weights, rounded to thousands.
fn default_kv_tokens() -> u32 {
    let kv_bytes = MEMORY_BYTES - PARAMETERS * BF16_BYTES;
    (kv_bytes / KV_BYTES / 1_000.0).round() as u32 * 1_000
}

impl Default for ModelSpeed {
    fn default() -> Self {
        Self {
            request_ns: 0.0,
            step_tokens_max: 8_192,
            sequences_max: 256,
            kv_tokens: default_kv_tokens(),
            declares_limit: true,
            priority_scheduling: false,
            step: StepCost::default(),
            transfer: TransferCost::default(),
        }
    }
}

impl Default for StepCost {
    fn default() -> Self {
        Self {
            fixed_ns: 0.0,
            token_ns: 2.0 * PARAMETERS / FLOP_PER_S * NS_PER_S,
            attention_ns: 4.0 * HIDDEN * LAYERS / FLOP_PER_S * NS_PER_S,
            weights_ns: PARAMETERS * BF16_BYTES / BYTES_PER_S * NS_PER_S,
            kv_read_ns: KV_BYTES / BYTES_PER_S * NS_PER_S,
        }
    }
}

impl Default for TransferCost {
    fn default() -> Self {
        Self {
            host_token_ns: KV_BYTES / HOST_BYTES_PER_S * NS_PER_S,
            network_token_ns: KV_BYTES / NETWORK_BYTES_PER_S * NS_PER_S,
        }
    }
}

/// Work of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct StepWork {
    /// Prompt tokens in the step.
    pub(crate) prefill_tokens: u64,
    /// Pairs of a prompt's token and a token before it.
    pub(crate) attended: f64,
    /// Sequences that decode in the step.
    pub(crate) decoding: u64,
    /// Tokens of KV that the decoding sequences read.
    pub(crate) context_tokens: u64,
}

impl StepWork {
    /// Adds a chunk of a prompt, behind `before` tokens.
    pub(crate) fn add_chunk(&mut self, before: u32, tokens: u32) {
        self.prefill_tokens += u64::from(tokens);
        self.attended += f64::from(tokens) * (f64::from(before) + f64::from(tokens) / 2.0);
    }
}

impl ModelSpeed {
    /// The model of `forebay engine`: prompts in sequence at that speed, and no other cost. For
    /// answers of a single token.
    #[must_use]
    pub fn of_prompts(tokens_per_s: f64) -> Self {
        let step = StepCost {
            fixed_ns: 0.0,
            token_ns: NS_PER_S / tokens_per_s,
            attention_ns: 0.0,
            weights_ns: 0.0,
            kv_read_ns: 0.0,
        };
        // Small steps: a prompt begins when the previous prompt has ended.
        Self { step, step_tokens_max: 16, ..Self::default() }
    }

    /// Reads the figures from a file. Missing figures keep their defaults.
    ///
    /// # Errors
    /// The file is not TOML, has an unknown key, or has a figure out of range.
    pub fn from_toml(text: &str) -> Result<Self, SpeedError> {
        let speed: Self = toml_edit::de::from_str(text)?;
        speed.check()?;
        Ok(speed)
    }

    fn check(&self) -> Result<(), SpeedError> {
        let Self { request_ns, step, transfer, .. } = *self;
        let times = [
            ("request_ns", request_ns),
            ("step.fixed_ns", step.fixed_ns),
            ("step.token_ns", step.token_ns),
            ("step.attention_ns", step.attention_ns),
            ("step.weights_ns", step.weights_ns),
            ("step.kv_read_ns", step.kv_read_ns),
            ("transfer.host_token_ns", transfer.host_token_ns),
            ("transfer.network_token_ns", transfer.network_token_ns),
        ];
        if let Some((name, _)) = times.iter().find(|(_, ns)| !(0.0..=TIME_NS_MAX).contains(ns)) {
            return Err(SpeedError::Time(name));
        }
        let counts = [
            ("step_tokens_max", self.step_tokens_max, COUNT_MAX),
            ("sequences_max", self.sequences_max, COUNT_MAX),
            ("kv_tokens", self.kv_tokens, KV_TOKENS_MAX),
        ];
        let fault = counts.iter().find(|(_, count, most)| !(1..=*most).contains(count));
        if let Some(&(name, _, most)) = fault {
            return Err(SpeedError::Count(name, most));
        }
        let least_ns = step.fixed_ns + step.token_ns + step.weights_ns;
        if least_ns > 0.0 { Ok(()) } else { Err(SpeedError::NoTime) }
    }

    /// Time of a step, at least 1 ns.
    pub(crate) fn step_ns(&self, work: &StepWork) -> u64 {
        let tokens = (work.prefill_tokens + work.decoding) as f64;
        let step = &self.step;
        let dense = (tokens * step.token_ns).max(step.weights_ns);
        let attention = work.attended * step.attention_ns;
        let reads = work.context_tokens as f64 * step.kv_read_ns;
        let all = step.fixed_ns + dense + attention + reads;
        (all.min(TIME_NS_MAX) as u64).max(1)
    }

    /// Time to load the KV of so many tokens from the host.
    pub(crate) fn load_ns(&self, tokens: u32) -> u64 {
        (f64::from(tokens) * self.transfer.host_token_ns) as u64
    }

    /// Time to transfer the KV of so many tokens from another rank.
    pub(crate) fn send_ns(&self, tokens: u32) -> u64 {
        (f64::from(tokens) * self.transfer.network_token_ns) as u64
    }

    /// Time of an idle rank for a prompt without cached tokens.
    #[must_use]
    pub fn prefill_ns(&self, prompt_tokens: u32) -> u64 {
        let mut done = 0;
        let mut all = 0;
        while done < prompt_tokens {
            let chunk = self.step_tokens_max.min(prompt_tokens - done);
            let mut work = StepWork::default();
            work.add_chunk(done, chunk);
            all += self.step_ns(&work);
            done += chunk;
        }
        all
    }
}
