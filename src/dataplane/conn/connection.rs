//! Lifetime of a client connection: TLS handshake if any, then the head of a request and the
//! request, repeated until either side ends it.

use super::admin_call;
use super::handshake;
use crate::exchange::buffers::Buffers;
use crate::exchange::phase::ConnectionReuse;
use crate::ingress::{Conn, NewConnection, ReadEnd};
use crate::intake::body::NoRequest;
use crate::intake::client_identity;
use crate::intake::first_byte::first_byte;
use crate::reply::discard;
use crate::reply::refusal;
use crate::request;
use crate::runtime;
use crate::state::env::Env;
use crate::state::shard::Shard;
use forebay_board::account::Count;
use forebay_http1::{HeadDue, Progress, RequestHead, parse_request};
use forebay_net::join_cohort;
use forebay_prompt::parse::{Reason, Refusal};
use futures_util::FutureExt;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;

/// Serves an accepted connection to its end. `place`: from `Intake::enter`. A panic ends this
/// connection only.
pub(crate) async fn serve(shard: Rc<Shard>, arrival: NewConnection, place: usize) {
    let served = AssertUnwindSafe(conversation(&shard, arrival)).catch_unwind();
    let number = shard.env.number;
    let least_us = shard.intake.holds_least_us;
    let served = runtime::watched(number, least_us, "connection", served).await;
    if served.is_err() {
        shard.env.panicked("a connection's task panicked; its connection was closed");
    }
    shard.intake.leave(place);
    shard.env.count(Count::ConnectionsClosed);
}

/// Not an async function: that would store the socket a second time.
fn conversation(shard: &Rc<Shard>, arrival: NewConnection) -> impl Future<Output = ()> {
    let NewConnection { socket, peer, is_tls } = arrival;
    let mut conn = Conn::new(socket, peer, shard.env.clock);
    async move {
        if !client_identity::connected(shard, &mut conn).await {
            return;
        }
        let mut buffers = Buffers::default();
        if is_tls && !handshake::shake(shard, &mut conn).await {
            return handshake::refuse(shard, conn, &mut buffers).await;
        }
        if requests(shard, &mut conn, &mut buffers).await == ConnectionReuse::Linger {
            conn.linger(discard::bounds(&shard.env)).await;
        } else {
            conn.wait_at_most(shard.env.config().timeouts.write);
            // The record of the last request has the fault of a client that takes no bytes.
            let _ = conn.flush().await;
        }
    }
}

/// Serves requests in sequence. Returns how the connection ends. Borrows its arguments, because an
/// async function stores arguments passed by value twice.
async fn requests(shard: &Rc<Shard>, conn: &mut Conn, buffers: &mut Buffers) -> ConnectionReuse {
    let mut reused = false;
    loop {
        let after = match head(&shard.env, conn, &mut buffers.head, reused).await {
            Ok(()) => match admin_call::connector(shard, conn, &buffers.head) {
                Some(connector) => {
                    Box::pin(admin_call::pass(shard, conn, buffers, connector)).await
                }
                None => {
                    join_cohort().await;
                    request::serve::serve(shard, conn, buffers).await
                }
            },
            Err(NoRequest::Silent) => {
                // Behind the bytes that a slow client has not taken.
                conn.wait_at_most(shard.env.config().timeouts.write);
                let _ = conn.flush().await;
                conn.send_close_notify();
                ConnectionReuse::Drop
            }
            Err(NoRequest::Refused(refusal)) => {
                refusal::unread(shard, conn, buffers, &refusal).await
            }
        };
        client_identity::answered(conn);
        // Before the wait for the next request: an idle connection must not hold megabytes.
        shard.io.recycle_large(&mut buffers.message);
        let text = buffers.prompt.drop_text();
        if text.capacity() > 0 {
            shard.routing.text.give(&shard.io, text);
        }
        match after {
            ConnectionReuse::KeepAlive => reused = true,
            end => {
                shard.io.recycle_large(&mut buffers.leg_body);
                shard.io.free_refused(&mut conn.input);
                shard.routing.text.give(&shard.io, buffers.prompt.end());
                return end;
            }
        }
    }
}

/// Waits for the next request's head and parses it. `reused`: the connection has served requests,
/// so its idle timeout applies.
async fn head(
    env: &Env,
    conn: &mut Conn,
    head: &mut RequestHead,
    reused: bool,
) -> Result<(), NoRequest> {
    let timeouts = env.config().timeouts;
    let limits = env.head_limits();
    // A new client should send a request soon; a reused connection may stay idle.
    conn.wait_at_most(if reused { timeouts.idle } else { timeouts.head });
    while conn.input.is_empty() {
        first_byte(env, conn).await?;
    }
    conn.wait_at_most(timeouts.head);
    let mut due = HeadDue::default();
    loop {
        if due.is_due(&conn.input, &limits) {
            match parse_request(&conn.input, &limits, head) {
                Ok(Progress::Complete) => return Ok(()),
                Ok(Progress::Partial) => {}
                Err(error) => return Err(NoRequest::Refused(error.into())),
            }
        }
        match conn.fill().await {
            Ok(()) => {}
            Err(ReadEnd::Closed) => return Err(NoRequest::Silent),
            Err(ReadEnd::TimedOut) => {
                return Err(NoRequest::Refused(Refusal::new(Reason::RequestTimeout)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::serve;
    use crate::exchange::request::Request;

    /// Size of the future that a call returns.
    const fn future_bytes<A, B, C, F>(_: &impl Fn(A, B, C) -> F) -> usize {
        size_of::<F>()
    }

    /// Each open stream holds such a future. Arguments by value, and futures passed as arguments,
    /// are stored twice: these made it 9 KB.
    #[test]
    fn a_connection_is_small() {
        let bytes = future_bytes(&serve);
        assert!(bytes <= 5_488, "the future of a connection has {bytes} bytes");
        // A request is boxed beside it.
        let boxed = size_of::<Request<'_>>();
        assert!(boxed <= 448, "a request has {boxed} bytes");
    }
}
