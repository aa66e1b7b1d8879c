//! The end of an answer that the client is slow to read.

use crate::ingress::{Conn, WriteEnd};
use crate::state::shard::Shard;
use forebay_router::dispatch::RelayError;
use forebay_router::request::Stop;

/// Waits for a client that has not taken the end of its answer; the reason if the client never
/// does. The record and the counters of the request then have that end.
pub(crate) async fn unread_reason(shard: &Shard, conn: &mut Conn) -> Option<Stop> {
    if !conn.is_behind() {
        return None;
    }
    conn.wait_at_most(shard.env.config().timeouts.write);
    match Box::pin(conn.flush()).await {
        Ok(()) => None,
        Err(WriteEnd::Gone) => Some(Stop::ClientGone),
        Err(WriteEnd::Stalled) => Some(Stop::Cut(RelayError::ClientStalled)),
    }
}
