//! Wait for the first byte of a connection, or of the next request.

use super::body::NoRequest;
use crate::ingress::{Conn, ReadEnd};
use crate::state::env::Env;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

/// Waits for the first byte. A drain shortens the wait but does not end it, because the client may
/// have sent its request already.
pub(crate) async fn first_byte(env: &Env, conn: &mut Conn) -> Result<(), NoRequest> {
    let filled = match before_a_drain(env, conn).await {
        Some(filled) => filled,
        None => {
            if let Some(order) = env.leaving.order.get() {
                conn.wait_no_longer_than(order.silent_until);
            }
            conn.fill().await
        }
    };
    filled.map_err(|_| NoRequest::Silent)
}

/// `None`: a drain began before a byte arrived.
async fn before_a_drain(env: &Env, conn: &mut Conn) -> Option<Result<(), ReadEnd>> {
    let seat = env.draining.seat();
    let mut filling = pin!(conn.fill());
    poll_fn(|cx| match filling.as_mut().poll(cx) {
        Poll::Ready(filled) => Poll::Ready(Some(filled)),
        Poll::Pending => seat.poll(cx).map(|()| None),
    })
    .await
}
