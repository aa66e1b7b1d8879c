//! Connections to workers: in plain text, or over TLS with the worker's name checked.

use super::shard::SendParts;
use crate::relay::{Upstream, UpstreamKey, Watch, while_wanted};
use forebay_base::WorkerIndex;
use forebay_board::account::Count;
use forebay_router::dispatch::RelayError;
use forebay_tls::{HandshakeFault, Session};
use std::pin::pin;
use std::time::Duration;

/// Target of a connection.
#[derive(Clone, Copy)]
pub(crate) struct ConnectTarget {
    pub(crate) worker: WorkerIndex,
    pub(crate) key: UpstreamKey,
    /// Covers connect and handshake together.
    pub(crate) timeout: Duration,
    /// For requests that may be long, see [`Upstream`].
    pub(crate) is_for_long: bool,
}

/// Connects, unless the watch ends the wait.
pub(crate) async fn connect(
    sending: SendParts<'_>,
    watch: &mut impl Watch,
    to: ConnectTarget,
) -> Result<Box<Upstream>, RelayError> {
    sending.env.count(Count::UpstreamConnects);
    while_wanted(watch, pin!(open(sending, to))).await
}

/// Connects without a watch.
pub(crate) async fn open(
    sending: SendParts<'_>,
    to: ConnectTarget,
) -> Result<Box<Upstream>, RelayError> {
    let env = sending.env;
    let start = env.now();
    let session = session(sending, to.worker)?;
    // The fleet may have changed since the worker was chosen. A request for TLS must not leave in
    // plain text, and a TLS session must not be pooled as plain text.
    if session.is_some() != to.key.secured_for.is_some() {
        return Err(RelayError::ConnectFailed);
    }
    let mut upstream = Upstream::connect(to.key, to.timeout, to.is_for_long).await?;
    let Some(session) = session else { return Ok(upstream) };
    let left = to.timeout.saturating_sub(Duration::from_nanos(env.now().since(start)));
    match upstream.shake_hands(session, left, &sending.io.handshakes.workers).await {
        Ok(shaken) => {
            env.count(Count::UpstreamHandshakes);
            env.counters.add(Count::UpstreamResumed, u64::from(shaken.is_resumed));
            Ok(upstream)
        }
        Err(fault) => {
            env.count(Count::UpstreamHandshakesFailed);
            tracing::debug!(shard = env.number.0, ?fault, "no handshake with a worker");
            Err(match fault {
                HandshakeFault::TimedOut => RelayError::ConnectTimedOut,
                HandshakeFault::Certificate(refusal) => RelayError::CertificateRefused(refusal),
                _ => RelayError::HandshakeFailed,
            })
        }
    }
}

/// TLS session for a new connection; `None` for plain text.
fn session(sending: SendParts<'_>, worker: WorkerIndex) -> Result<Option<Session>, RelayError> {
    let fleet = sending.workers.fleet();
    let worker_state = fleet.workers.get(worker.index());
    let connector = worker_state.and_then(|worker| worker.connector.as_ref());
    connector.map(|connector| sending.io.session(worker, connector)).transpose()
}
