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

mod drain;
mod adapter_loads;
mod adapters;
mod admin_rules;
mod ejection;
mod error;
mod feeds;
mod fleet;
mod handover;
mod kv_pools;
mod model_memory;
#[cfg(test)]
mod fleet_tests;
mod ports;
mod probes;
mod reload;
mod run;
mod setup;
mod snapshots;
mod sources;
mod start_report;
mod stop;
mod systemd;
#[cfg(test)]
mod tests;
mod text_log;
mod tier_numbers;
mod tls;
mod token_keys;
mod traces;
mod warming;
mod watchdog;
mod workers_state;

pub use admin_rules::admin_tokens;
pub use error::ControlError;
pub use handover::{HandoverOffer, HandoverSetup};
pub use run::run;
pub use setup::ControlSetup;
pub use snapshots::refuse_snapshot;
pub use tls::{ServerTls, TlsSetup};
