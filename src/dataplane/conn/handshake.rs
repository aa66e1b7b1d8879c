//! TLS handshake of a new connection.

use crate::exchange::buffers::Buffers;
use crate::exchange::phase::ConnectionReuse;
use crate::ingress::{Conn, ReadEnd};
use crate::reply::discard;
use crate::reply::refusal;
use crate::state::shard::Shard;
use forebay_board::account::Count;
use forebay_prompt::parse::{Reason, Refusal};
use forebay_tls::{HandshakeFault, Session};

/// Message for a client that sends plain HTTP to a TLS port.
const PLAIN: &str = "This port speaks TLS. Send the request to https://.";

/// TLS session for a new client.
fn session(shard: &Shard) -> Option<Session> {
    // Current configuration: a reload applies from the next connection on.
    let fleet = shard.workers.fleet();
    let session = fleet.serving.acceptor.as_ref()?.session();
    if let Err(error) = &session {
        tracing::error!(shard = shard.env.number.0, %error, "no TLS session can begin");
    }
    session.ok()
}

/// Performs the handshake and counts the outcome. True if requests may follow.
pub(crate) async fn shake(shard: &Shard, conn: &mut Conn) -> bool {
    conn.wait_at_most(shard.env.config().timeouts.handshake);
    // Wait for a byte: an idle connection must cost no session.
    if conn.input.is_empty()
        && let Err(end) = conn.fill().await
    {
        shard.env.count(match end {
            ReadEnd::Closed => Count::TlsClosed,
            ReadEnd::TimedOut => Count::TlsTimedOut,
        });
        return false;
    }
    let Some(session) = session(shard) else {
        // Received bytes must not be parsed as a request.
        conn.input.clear();
        return false;
    };
    conn.secure(session);
    let shaken = conn.shake_hands(&shard.io.handshakes.clients).await;
    let count = match &shaken {
        Ok(_) => Count::TlsHandshakes,
        Err(HandshakeFault::Closed) => Count::TlsClosed,
        Err(HandshakeFault::TimedOut) => Count::TlsTimedOut,
        Err(HandshakeFault::NotTls) => Count::TlsPlain,
        Err(HandshakeFault::Incompatible) => Count::TlsIncompatible,
        Err(HandshakeFault::Certificate(_)) => Count::TlsCertificate,
        Err(HandshakeFault::Malformed) => Count::TlsMalformed,
    };
    shard.env.count(count);
    let is_resumed = shaken.as_ref().is_ok_and(|shaken| shaken.is_resumed);
    shard.env.counters.add(Count::TlsResumed, u64::from(is_resumed));
    if let Err(fault) = &shaken {
        tracing::debug!(shard = shard.env.number.0, ?fault, "no handshake with a client");
    }
    shaken.is_ok()
}

/// Ends a connection whose handshake failed. A client that sends plain HTTP receives an answer.
pub(crate) async fn refuse(shard: &Shard, mut conn: Conn, buffers: &mut Buffers) {
    // Without a session the input holds plain text only. An upper-case letter begins a method.
    if conn.input.first().is_none_or(|first| !first.is_ascii_uppercase()) {
        return;
    }
    let refusal = Refusal::new(Reason::BadRequest).with_message(PLAIN);
    let after = refusal::unread(shard, &mut conn, buffers, &refusal).await;
    if after == ConnectionReuse::Linger {
        conn.linger(discard::bounds(&shard.env)).await;
    }
}
