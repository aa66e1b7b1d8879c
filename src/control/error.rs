//! Errors that prevent or end the control plane.

use std::time::Duration;
use thiserror::Error;

/// Reason why the control plane cannot run, or has ended.
#[derive(Debug, Error)]
pub enum ControlError {
    /// No runtime, signal or socket.
    #[error("{0}; check the limit of open files (ulimit -n)")]
    Io(#[from] std::io::Error),
    /// Shards have ended without a drain command.
    #[error("{ended} of {shards} shards ended by a fault (this is a bug)")]
    ShardEnded { ended: usize, shards: usize },
    /// A shard has made no progress for `timeouts.stall_abort`.
    #[error(
        "shard {shard} made no progress for {patience:?} (key `timeouts.stall_abort`; {cause})"
    )]
    ShardStalled { shard: usize, patience: Duration, cause: String },
    /// Shards had not ended some seconds after the deadline of a drain.
    #[error("shards did not end in time after the drain: left without them")]
    ShardsLate,
    /// A panic; the log has its message.
    #[error("the control plane panicked (this is a bug)")]
    Panicked,
    /// The HTTP client for health checks failed to start.
    #[error("no HTTP client for health checks: {0}")]
    Client(reqwest::Error),
    /// TLS to the server of `jwt.jwks` cannot begin.
    #[error("`jwt.jwks`: {0}")]
    Jwks(forebay_tls::ConnectFault),
}
