//! One worker as configured. What is not given is discovered.

use super::schema::{EngineKind, LoadSource, Word};
use std::path::PathBuf;

/// One `[[worker]]` table, or one flag `--worker`, `--prefill` or `--decode`. What is not given is discovered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerConfig {
    /// `url`: `http://host:port`.
    pub url: String,
    /// `name`: shown to people; `host:port` when absent.
    pub name: Option<String>,
    /// `model_dir`: tokenizer and chat template of this worker's model.
    pub model_dir: Option<PathBuf>,
    /// `kv_events`: ZMQ endpoints, one per rank, or one base (`tcp`, port + rank) for all. A host `*` is the
    /// worker's; `bind:tcp://…` where the engine connects to the router.
    pub kv_events: Vec<String>,
    /// `replay`: ZMQ endpoints that repeat old batches, in the same form.
    pub replay: Vec<String>,
    /// `kv_topic`: prefix that the events' topic must have; empty takes all.
    pub kv_topic: String,
    /// `engine`: what this worker speaks.
    pub engine: Option<EngineKind>,
    /// `api_key`: sent as `Authorization: Bearer …` to this worker. Never printed.
    pub api_key: Option<String>,
    /// `concurrency_max`: most requests in flight on each of its ranks, instead of `rank_concurrency_max`.
    pub concurrency_max: Option<u32>,
    /// `ranks`: data-parallel ranks, where they cannot be discovered.
    pub ranks: Option<u32>,
    /// `models`: names it serves, where they cannot be discovered.
    pub models: Vec<String>,
    /// `block_size`: tokens per KV block, where it cannot be discovered.
    pub block_size_tokens: Option<u32>,
    /// `health_path`: what health checks ask for, instead of what its engine is known to answer.
    pub health_path: Option<String>,
    /// `load_source`: where its load reports come from, instead of `load.source`.
    pub load_source: Option<LoadSource>,
    /// `port_per_rank`: rank n listens on the port of `url` plus n, where it cannot be discovered.
    pub port_per_rank: Option<bool>,
    /// `role`: which legs of a disaggregated request it serves.
    pub role: WorkerRole,
    /// `topology`: label of the part of the network it is in: workers with different labels are no pair.
    pub topology: Option<String>,
    /// How others fetch the KV cache that it has computed for them.
    pub handoff: HandoffConfig,
}

/// Which legs of a disaggregated request a worker serves, as written in the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WorkerRole {
    /// `auto`: SGLang tells; all others serve whole requests.
    #[default]
    Auto,
    /// `both`: whole requests.
    Both,
    /// `prefill`: computes prompts for decode workers.
    Prefill,
    /// `decode`: takes the KV cache of prompts that a prefill worker has computed.
    Decode,
}

/// How a vLLM prefill worker hands its KV cache over, as written in the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvFlow {
    /// `two_phase`: `NixlConnector`; decode is sent what prefill has answered.
    #[default]
    TwoPhase,
    /// `push`: `NixlPushConnector`; both are sent at once.
    Push,
    /// `mooncake`: `MooncakeConnector`; both are sent at once.
    Mooncake,
}

/// What a decode worker has to be told of a prefill worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HandoffConfig {
    /// `bootstrap_host`: host of its registry (SGLang, Mooncake), as the decode workers reach it; the host of `url` when
    /// absent. An IPv6 address may stand in brackets.
    pub bootstrap_host: Option<String>,
    /// `bootstrap_port`: port of its registry; absent: what SGLang says, and 8998 for Mooncake.
    pub bootstrap_port: Option<u16>,
    /// `kv_flow`: vLLM only; two phases when absent.
    pub kv_flow: Option<KvFlow>,
    /// `kv_engine_id`: `engine_id` of its `--kv-transfer-config`, for `push`; with several ranks without the `_dpN` that
    /// vLLM adds.
    pub kv_engine_id: Option<String>,
    /// `kv_host`: host of its side channel, for `push`; the host of `url` when absent.
    pub kv_host: Option<String>,
    /// `kv_port`: port of its side channel, for `push`; rank n has this plus n. [`SIDE_CHANNEL_PORT`] when absent.
    pub kv_port: Option<u16>,
    /// `kv_tp_size`: its tensor-parallel size, for `push`; 1 when absent.
    pub kv_tp_size: Option<u32>,
    /// `kv_pp_size`: its pipeline-parallel size, for `push`; 1 when absent.
    pub kv_pp_size: Option<u32>,
}

/// Where vLLM's `NixlConnector` listens unless `VLLM_NIXL_SIDE_CHANNEL_PORT` says otherwise (vLLM 0.33, `envs.py`).
pub const SIDE_CHANNEL_PORT: u16 = 5_600;
/// Where vLLM's `MooncakeConnector` has its registry unless `VLLM_MOONCAKE_BOOTSTRAP_PORT` says otherwise (vLLM 0.33,
/// `envs.py`).
pub const MOONCAKE_PORT: u16 = 8_998;

impl Word for WorkerRole {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("auto", Self::Auto),
        ("both", Self::Both),
        ("prefill", Self::Prefill),
        ("decode", Self::Decode),
    ];
}

impl Word for KvFlow {
    const WORDS: &'static [(&'static str, Self)] =
        &[("two_phase", Self::TwoPhase), ("push", Self::Push), ("mooncake", Self::Mooncake)];
}
