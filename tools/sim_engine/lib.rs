//! The simulated engine: a vLLM or SGLang server without a model, for the demo, for tests and for
//! trying the router at home. The engine has all features that a router can observe:
//!
//! - HTTP with streaming, in the formats of vLLM or SGLang;
//! - a real prefix cache of blocks, and its events on ZeroMQ;
//! - continuous batching in time, and data-parallel ranks;
//! - metrics;
//! - disaggregated prefill and decode, with their waits and faults.
//!
//! Answers are made-up words, the same for any split of the work.
//!
//! | file | holds |
//! |---|---|
//! | `running` | the start of an engine; open this file first |
//! | `routes` | the table of all routes |
//! | `vllm`, `sglang`, `debug` | the routes of each wire, and routes that no real engine has |
//! | `state` | the state shared by all routes |
//! | `encode`, `tokenizer` | text to token ids, on a separate thread |
//! | `ranks`, `schedule`, `prefix_cache` | a rank: its task, its batches, its blocks |
//! | `kv_publisher`, `kv_wire` | KV events, as each engine writes them |
//! | `transfer` | KV between a prefill and a decode engine |
//! | `fault`, `wire_cut` | faults on demand |
//!
//! Two threads: a single-threaded `tokio` runtime for HTTP, ranks and publishers, and a thread that
//! tokenizes. Decisions are in `prefix_cache` and `schedule`, which have neither sockets nor
//! clocks. Limits: see `config`. Unless `queued_max` is set, any number of requests may wait, as in
//! the real engines. The engine must never be on the path of the router itself.

mod aborts;
mod answer_tokens;
mod chat_text;
mod config;
mod debug;
mod encode;
mod fault;
mod events;
mod listening;
mod metrics;
mod batching;
mod prompt;
mod random_id;
mod refusal;
mod routes;
mod running;
mod sglang;
mod state;
mod tally;
mod times;
mod tokenizer;
mod transfer;
mod unix_time;
mod vllm;
mod wire_cut;

pub use batching::prefix_cache::{BlockHash, CacheEvent, LiveSequence, PrefixCache};
pub use batching::rank_stats::{RankStats, RequestCounts, RequestTimes, TokenCounts};
pub use batching::schedule::{EnginePace, LegPart, RankSchedule, RequestId, TokenStep, Work};
pub use config::{DEFAULT_MODEL, EngineConfig, EngineError, EngineRole, EngineWire};
pub use events::kv_publisher::{KvEndpoints, REPLAY_BATCHES_MAX};
pub use events::kv_wire::encode_batch;
pub use refusal::EngineRefusal;
pub use running::{Engine, EngineHandle, EngineText, run};
pub use tokenizer::{TextSegment, Tokenizer, TokenizerError};
pub use transfer::{KvConnector, SglangTransfer, TransferSettings, VllmTransfer};
