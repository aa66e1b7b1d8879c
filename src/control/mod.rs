//! The control plane: everything that is not the request path. One thread, one `tokio` runtime on
//! it.
//!
//! Owns the fleet and its snapshots ([`fleet`]), the KV-event feeds ([`feeds`], `kv_events`), and
//! what of them outlives a restart ([`snapshots`]). `forebay_discovery` tells what workers are,
//! `forebay_replicas` what other routers do; `forebay_admin` asks, and shows what [`run`] answers.
//! Reaches the shards through [`ports`] and nothing else: rings, a newest-wins cell, bells,
//! counters. Limits: one task per worker and per rank, 256 notices under way, every answer of a
//! worker bounded in time and bytes. Must never make a shard wait, and never count on a worker's
//! good will.

mod environment;
mod error;
mod feeds;
mod fleet;
mod lifecycle;
mod membership;
mod ports;
mod reports;
mod run;
mod setup;
mod publication;
#[cfg(test)]
mod tests;
mod tls;

pub use error::ControlError;
pub use feeds::refuse_snapshot;
pub use lifecycle::{HandoverOffer, HandoverSetup, admin_tokens};
pub use run::run;
pub use setup::ControlSetup;
pub use tls::{ServerTls, TlsSetup};
