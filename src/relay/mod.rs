//! Upstream connections and the streaming of answers. Runs on the shard's thread, called by `shard::request`.
//! Owns the idle connections to workers. Holds at most two read buffers per stream: a client that does not read
//! stops the worker from being read. Never retries and never chooses: it reports what happened.

mod body;
mod error;
mod exchange;
mod pool;
mod pump;
mod upstream;
mod usage;

pub use body::{AnswerBody, AnswerFraming};
pub use error::RelayError;
pub use exchange::{Outbound, send};
pub use pool::UpstreamPool;
pub use pump::{Answer, Relayed, relay};
pub use upstream::Upstream;
pub use usage::CachedTokens;
