//! The control plane: everything beside the request path. A single thread with a `tokio` runtime.
//!
//! Five owners hold the state: [`feeds`] KV events, load reports and calls of engines,
//! [`membership`] the workers and their [`fleet`], [`reports`] traces, notes and ejection,
//! [`lifecycle`] drain, reload and handover, [`publication`] the published fleet and the answers of
//! the admin API. The loop in [`run`] gives events to the owners, and passes on the work that an
//! owner returns for another. An owner uses only owners before it in this list.
//!
//! Reaches the shards through [`ports`] and nothing else: rings, a newest-wins cell, bells,
//! counters. Limits: a task per worker and per rank, 256 notices under way, every answer of a
//! worker bounded in time and bytes. Must never make a shard wait, and never trust data from a
//! worker.

mod error;
#[cfg(test)]
mod test_config;
mod tls;
mod ports;
mod environment;
mod file_faults;
mod fleet;
mod feeds;
mod membership;
mod reports;
mod lifecycle;
mod publication;
mod setup;
mod run;
#[cfg(test)]
mod tests;

pub use error::ControlError;
pub use feeds::refuse_snapshot;
pub use lifecycle::{HandoverOffer, HandoverSetup, admin_tokens};
pub use run::run;
pub use setup::ControlSetup;
pub use tls::{ServerTls, TlsSetup};
