//! The simulated engine: a vLLM or SGLang server without a model, for the demo, for tests and for
//! trying the router at home. It has what a router can observe: HTTP with streaming, a real
//! block-level prefix cache, continuous batching in time, data-parallel ranks, KV events on ZeroMQ,
//! metrics, prefill and decode apart from each other with the waiting, holding and failing that
//! comes with it. Its answers are made-up words, the same however the work was split.
//!
//! Threads: one for HTTP, ranks and publishers (a `tokio` runtime of one thread) and one that
//! tokenizes. Decisions are in `prefix_cache` and `schedule`, which know neither sockets nor
//! clocks. Limits: see `config`; requests wait without limit of number, as they do in the real
//! engine, unless `queued_max` is set. It must never be on the path of the router itself.

mod aborts;
mod answer_tokens;
mod chat_text;
mod config;
mod encode;
mod fault;
mod http;
mod kv_publisher;
mod kv_wire;
mod kv_wire_sglang;
mod listening;
mod prefix_cache;
mod prompt;
mod random_id;
mod rank_stats;
mod rank_time;
mod ranks;
mod refusal;
mod running;
mod schedule;
mod sglang;
mod state;
mod tally;
mod times;
mod tokenizer;
mod transfer;
mod unix_time;
mod wire_cut;

pub use config::{DEFAULT_MODEL, EngineConfig, EngineError, EngineRole, EngineWire};
pub use kv_publisher::{KvEndpoints, REPLAY_BATCHES_MAX};
pub use kv_wire::encode_batch;
pub use prefix_cache::{BlockHash, CacheEvent, LiveSequence, PrefixCache};
pub use rank_stats::{RankStats, RequestCounts, TokenCounts};
pub use refusal::EngineRefusal;
pub use running::{Engine, EngineHandle, EngineText, run};
pub use schedule::{EnginePace, LegPart, RankSchedule, RequestId, TokenStep, Work};
pub use tokenizer::{TextSegment, Tokenizer, TokenizerError};
pub use transfer::{KvConnector, SglangTransfer, TransferSettings, VllmTransfer};
