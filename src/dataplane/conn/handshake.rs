//! The beginning of a connection over TLS: session, handshake, and what it comes to.

use crate::exchange::buffers::Buffers;
use crate::exchange::phase::After;
use crate::exchange::request::Request;
use crate::ingress::{Conn, ReadEnd};
use crate::reply::discard;
use crate::reply::refusal;
use crate::state::shard::Shard;
use forebay_fleet::account::Count;
use forebay_prompt::parse::{Reason, Refusal};
use forebay_tls::{HandshakeFault, Session};

/// What a client hears that speaks plain HTTP to a port of TLS.
const PLAIN: &str = "This port speaks TLS. Send the request to https://.";

/// A session with a client that has just connected.
fn session(shard: &Shard) -> Option<Session> {
    // Of this moment: a reload counts from the next connection on.
    let fleet = shard.workers.fleet();
    let session = fleet.serving.acceptor.as_ref()?.session();
    if let Err(error) = &session {
        tracing::error!(shard = shard.env.number.0, %error, "no TLS session can begin");
    }
    session.ok()
}

/// Shakes hands and counts what comes of it; true if requests may follow.
pub(crate) async fn shake(shard: &Shard, conn: &mut Conn) -> bool {
    conn.wait_at_most(shard.env.config().timeouts.handshake);
    // Who only connects costs no session.
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
        // Nothing that has come is to be taken for a request.
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

/// Ends a connection without a handshake. A client that speaks plain HTTP is told so.
pub(crate) async fn refuse(shard: &Shard, mut conn: Conn, buffers: &mut Buffers) {
    // Only bytes of plain text are in the input without a session. A letter begins a method.
    if conn.input.first().is_none_or(|first| !first.is_ascii_uppercase()) {
        return;
    }
    let refusal = Refusal::new(Reason::BadRequest).with_message(PLAIN);
    let request = Request::unread(buffers, shard.fresh_id());
    let after = refusal::and_close(&shard.env, &mut conn, &request, &refusal).await;
    if after == After::Linger {
        conn.linger(discard::bounds(&shard.env)).await;
    }
}
