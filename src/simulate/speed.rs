//! How long the steps of a rank take, and what a step may hold.
//!
//! | figure | value | source |
//! |---|---|---|
//! | arithmetic of an H100 SXM, BF16, dense | 989 TFLOP/s | NVIDIA's data sheet |
//! | memory bandwidth of an H100 SXM | 3.35 TB/s | NVIDIA's data sheet |
//! | parameters of Llama 3.1 8B | 8.03 billion | its model card |
//! | layers, hidden size, KV heads, head size | 32, 4096, 8, 128 | its `config.json` |
//! | share of the arithmetic that is reached | 0.5 | assumed |
//! | share of the bandwidth that is reached | 0.8 | assumed |
//! | bandwidth from the host, each way | 64 GB/s | PCIe 5.0 with 16 lanes |
//! | bandwidth between hosts | 400 Gbit/s | one ConnectX-7 for each GPU, NVIDIA's data sheet |
//! | tokens of a step, at most | 8,192 | vLLM's default for an H100 |
//! | sequences of a step, at most | 256 | vLLM's documented default |
//!
//! A token costs two operations for each parameter. A token attends to each token before it with
//! four operations for each layer and each hidden value. A step reads all weights once, and the KV
//! of all sequences that decode.

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
const NS_PER_S: f64 = 1e9;

/// What the steps of one rank cost, and what a step may hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModelSpeed {
    /// Arithmetic for one token, attention aside.
    pub token_ns: f64,
    /// Arithmetic of one token for each token before it.
    pub attention_ns: f64,
    /// One read of the weights: the least time of a step.
    pub weights_ns: f64,
    /// One read of the KV of one token.
    pub kv_read_ns: f64,
    /// The KV of one token on its way from the host.
    pub token_load_ns: f64,
    /// The same from another rank.
    pub token_send_ns: f64,
    /// Tokens that a step computes at most.
    pub step_tokens_max: u32,
    /// Sequences that prefill or decode together at most.
    pub sequences_max: u32,
}

impl Default for ModelSpeed {
    fn default() -> Self {
        let kv_bytes = 2.0 * LAYERS * KV_HEADS * HEAD * BF16_BYTES;
        Self {
            token_ns: 2.0 * PARAMETERS / FLOP_PER_S * NS_PER_S,
            attention_ns: 4.0 * HIDDEN * LAYERS / FLOP_PER_S * NS_PER_S,
            weights_ns: PARAMETERS * BF16_BYTES / BYTES_PER_S * NS_PER_S,
            kv_read_ns: kv_bytes / BYTES_PER_S * NS_PER_S,
            token_load_ns: kv_bytes / HOST_BYTES_PER_S * NS_PER_S,
            token_send_ns: kv_bytes / NETWORK_BYTES_PER_S * NS_PER_S,
            step_tokens_max: 8_192,
            sequences_max: 256,
        }
    }
}

/// What one step computes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct StepWork {
    /// Tokens of prompts in it.
    pub(crate) prefill_tokens: u64,
    /// Pairs of a prompt's token and a token before it.
    pub(crate) attended: f64,
    /// Sequences that decode in it.
    pub(crate) decoding: u64,
    /// Tokens whose KV they read.
    pub(crate) context_tokens: u64,
}

impl StepWork {
    /// Adds a part of a prompt, behind so many tokens.
    pub(crate) fn add_chunk(&mut self, before: u32, tokens: u32) {
        self.prefill_tokens += u64::from(tokens);
        self.attended += f64::from(tokens) * (f64::from(before) + f64::from(tokens) / 2.0);
    }
}

impl ModelSpeed {
    /// As `forebay engine` has it: one prompt after the other at that speed, and nothing else takes
    /// time. For answers of one token.
    #[must_use]
    pub fn of_prompts(tokens_per_s: f64) -> Self {
        Self {
            token_ns: NS_PER_S / tokens_per_s,
            attention_ns: 0.0,
            weights_ns: 0.0,
            kv_read_ns: 0.0,
            // Small steps: the next prompt begins when the one before has ended.
            step_tokens_max: 16,
            ..Self::default()
        }
    }

    /// Time of one step, at least 1 ns.
    pub(crate) fn step_ns(&self, work: &StepWork) -> u64 {
        let tokens = (work.prefill_tokens + work.decoding) as f64;
        let dense = (tokens * self.token_ns).max(self.weights_ns);
        let attention = work.attended * self.attention_ns;
        let reads = work.context_tokens as f64 * self.kv_read_ns;
        ((dense + attention + reads) as u64).max(1)
    }

    /// Time in which the KV of so many tokens comes from the host.
    pub(crate) fn load_ns(&self, tokens: u32) -> u64 {
        (f64::from(tokens) * self.token_load_ns) as u64
    }

    /// Time in which the KV of so many tokens comes from another rank.
    pub(crate) fn send_ns(&self, tokens: u32) -> u64 {
        (f64::from(tokens) * self.token_send_ns) as u64
    }

    /// Time that an idle rank takes for a whole prompt of which it holds nothing.
    #[must_use]
    pub fn prefill_ns(&self, prompt_tokens: u32) -> u64 {
        let (mut done, mut all) = (0, 0);
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
