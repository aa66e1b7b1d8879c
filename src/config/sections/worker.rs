//! The table of keys, workers: the `[[worker]]` tables. Missing keys are discovered.

use crate::keys::key::Form;
use crate::keys::table::{table, words};
use crate::values::engine::{EngineKind, LoadSource};
use forebay_base::limits::RANKS_MAX;
use std::path::PathBuf;

table! {
    /// One table per worker. What is left out is discovered.
    pub struct WorkerConfig in "worker." {
        /// `http://host:port`, or `https://host:port` for TLS.
        url: String = String::new(), { absent: "required" };
        /// Shown in headers, logs and metrics.
        name: Option<String> = None, { absent: "`host:port`", reloadable: false };
        /// Folder with the tokenizer and chat template of this worker's model.
        model_dir: Option<PathBuf> = None, { absent: "top-level `model_dir`" };
        /// ZMQ endpoints of KV events: one per rank, or one for all, counting ports up.
        /// `bind:tcp://…` where the engine connects to the router.
        kv_events: Vec<String> = Vec::new(), { absent: "discovered" };
        /// ZMQ endpoints that repeat old batches, in the same form.
        replay: Vec<String> = Vec::new(), { absent: "discovered" };
        /// Prefix that the events' topic must have. Empty takes all.
        kv_topic: String = String::new();
        /// What this worker speaks.
        engine: Option<EngineKind> = None, { absent: "top-level `engine`" };
        /// Sent to this worker as `Authorization: Bearer …`. Never printed.
        api_key: Option<String> = None, { absent: "`worker_defaults.api_key`", form: Form::Secret };
        /// File with that key. Read again at each reload.
        api_key_file: Option<PathBuf> = None, { absent: "`worker_defaults.api_key_file`" };
        /// Most requests in flight on each of its ranks. 0 means no limit.
        concurrency_max: Option<u32> = None, { absent: "`rank_concurrency_max`" };
        /// Data-parallel ranks, where they cannot be discovered.
        ranks: Option<u32> = None, { absent: "discovered", range: 1..=RANKS_MAX as u64 };
        /// Models that it serves, where they cannot be discovered. `*` takes any model that no
        /// worker lists.
        models: Vec<String> = Vec::new(), { absent: "discovered" };
        /// Tokens per KV block, where it cannot be discovered.
        block_size_tokens: Option<u32> = None,
            { path: "worker.block_size", absent: "discovered", range: 1..=u64::MAX };
        /// Path of health checks, where the engine's usual path does work. LiteLLM calls its
        /// models at `/health`.
        health_path: Option<String> = None, { absent: "by engine" };
        /// Where its load reports come from.
        load_source: Option<LoadSource> = None, { absent: "`load.source`" };
        /// Rank n listens on the port of `url` plus n. For vLLM's
        /// `--data-parallel-multi-port-external-lb`; SGLang's Rust server tells by itself.
        port_per_rank: Option<bool> = None, { absent: "discovered" };
        /// Which legs of a disaggregated request it serves.
        role: WorkerRole = WorkerRole::Auto, { reloadable: false };
        /// Pool that its engine shares with others (Mooncake store, HiCache L3, LMCache). What one
        /// of them stores there, all of them can load.
        kv_pool: Option<String> = None, { absent: "none" };
        /// Label of its part of the network. Workers with different labels are no pair.
        topology: Option<String> = None, { absent: "near to all" };
    }
    sections {
        /// Parameters by which other workers fetch the KV cache that this worker has computed.
        kv_transfer: KvTransferConfig,
        /// TLS to this worker, where it differs from `[upstream_tls]`.
        tls: WorkerTlsConfig,
    }
}

table! {
    /// TLS to a worker with `https://`.
    pub struct WorkerTlsConfig in "worker." {
        /// PEM file with the authorities that sign this worker's certificate.
        tls_ca: Option<PathBuf> = None, { absent: "`upstream_tls.ca`" };
        /// PEM file with the certificate that this worker is shown.
        tls_cert: Option<PathBuf> = None, { absent: "`upstream_tls.cert`" };
        /// PEM file with its private key.
        tls_key: Option<PathBuf> = None, { absent: "`upstream_tls.key`" };
        /// Host name that the worker's certificate has to be for.
        tls_name: Option<String> = None, { absent: "host of `url`" };
    }
}

impl WorkerTlsConfig {
    /// True if it names its own files.
    #[must_use]
    pub const fn has_files(&self) -> bool {
        self.tls_ca.is_some() || self.tls_cert.is_some() || self.tls_key.is_some()
    }
}

words! {
    /// Which legs of a disaggregated request a worker serves, as written in the file.
    pub enum WorkerRole {
        /// SGLang tells. All others serve whole requests.
        Auto = "auto",
        /// Whole requests.
        Both = "both",
        /// Computes prompts for decode workers.
        Prefill = "prefill",
        /// Takes the KV cache of prompts that a prefill worker has computed.
        Decode = "decode",
    }
}

words! {
    /// How KV moves between vLLM's prefill and decode workers, as written in the file.
    pub enum KvFlow {
        /// `NixlConnector`: decode is sent what prefill has answered, and pulls.
        TwoPhase = "two_phase",
        /// `NixlPushConnector`: both are sent at once.
        Push = "push",
        /// `MooncakeConnector`: both are sent at once.
        Mooncake = "mooncake",
    }
}

table! {
    /// What a decode worker has to be told of a prefill worker.
    pub struct KvTransferConfig in "worker." {
        /// Host of the prefill registry (SGLang, Mooncake), as decode workers reach it.
        bootstrap_host: Option<String> = None, { absent: "host of `url`" };
        /// Port of the prefill registry.
        bootstrap_port: Option<u16> = None,
            { absent: "what SGLang says; 8998 for Mooncake", range: 1..=65_535 };
        /// How a vLLM prefill worker hands its KV cache over, or a decode worker takes it.
        /// Workers with different ones are no pair.
        kv_flow: Option<KvFlow> = None, { absent: "`two_phase`; decode: not known" };
        /// `engine_id` of its `--kv-transfer-config`, for `push`. With several ranks, without the
        /// `_dpN` that vLLM adds.
        kv_engine_id: Option<String> = None, { absent: "none" };
        /// Host of its side channel, for `push`.
        kv_host: Option<String> = None, { absent: "host of `url`" };
        /// Port of its side channel, for `push`. Rank n has this port plus n.
        kv_port: Option<u16> = None, { absent: "5600", range: 1..=65_535 };
        /// Its tensor-parallel size, for `push`.
        kv_tp_size: Option<u32> = None, { absent: "1", range: 1..=u64::MAX };
        /// Its pipeline-parallel size, for `push`.
        kv_pp_size: Option<u32> = None, { absent: "1", range: 1..=u64::MAX };
    }
}

/// Default of `VLLM_NIXL_SIDE_CHANNEL_PORT`, the port of vLLM's `NixlConnector` (vLLM 0.33,
/// `envs.py`).
pub const SIDE_CHANNEL_PORT: u16 = 5_600;
/// Default of `VLLM_MOONCAKE_BOOTSTRAP_PORT`, the registry port of vLLM's `MooncakeConnector` (vLLM
/// 0.33, `envs.py`).
pub const MOONCAKE_PORT: u16 = 8_998;
