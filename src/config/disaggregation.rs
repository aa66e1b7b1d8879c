//! Prefill and decode on different workers: when a request is split, and how much each side is given. Part of what may
//! change while the router runs.

use super::schema::Word;
use std::time::Duration;

/// `[disaggregation]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DisaggregationConfig {
    /// `disaggregation.fallback`: what becomes of a request while no prefill worker can be used.
    pub fallback: Fallback,
    /// `disaggregation.uncached_tokens_min`: prompts of which a worker that also computes prompts itself would have to
    /// compute fewer tokens than this go there whole; 0: no prompt does.
    pub uncached_tokens_min: u32,
    /// `disaggregation.prefill_timeout`: for a prefill leg, from its departure to the end of its answer; absent:
    /// `timeouts.first_byte`.
    pub prefill_timeout: Option<Duration>,
    /// `disaggregation.prefill_concurrency_max`: instead of `rank_concurrency_max` for ranks that prefill for others.
    pub prefill_concurrency_max: Option<u32>,
    /// `disaggregation.decode_concurrency_max`: instead of `rank_concurrency_max` for ranks that decode.
    pub decode_concurrency_max: Option<u32>,
    /// `disaggregation.prefill_tokens_max`: instead of `queue.prefill_tokens_max` for ranks that prefill for others.
    pub prefill_tokens_max: Option<u32>,
    /// `disaggregation.prefill_kv_use_percent`: instead of `queue.kv_use_percent` for ranks that prefill for others.
    pub prefill_kv_use_percent: Option<u32>,
    /// `disaggregation.decode_kv_use_percent`: instead of `queue.kv_use_percent` for ranks that decode.
    pub decode_kv_use_percent: Option<u32>,
}

/// What becomes of a request that wants a prefill worker while none can be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fallback {
    /// `decode_only`: a worker that also computes prompts itself takes it whole; without any it is refused.
    #[default]
    DecodeOnly,
    /// `two_phase`: as `decode_only`; and a vLLM prefill worker whose `push` source is not known yet is used in two phases.
    TwoPhase,
    /// `reject`: it is refused.
    Reject,
}

impl Word for Fallback {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("decode_only", Self::DecodeOnly),
        ("two_phase", Self::TwoPhase),
        ("reject", Self::Reject),
    ];
}
