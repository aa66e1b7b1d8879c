//! The wait for the first byte of a connection, or of the next request.

use super::env::Env;
use super::read::NoRequest;
use crate::ingress::{Conn, ReadEnd};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

/// Waits between requests; a drain ends the wait.
pub(super) async fn first_byte(env: &Env, conn: &mut Conn) -> Result<(), NoRequest> {
    let seat = env.draining.seat();
    let mut filling = pin!(conn.fill());
    let filled = poll_fn(|cx| match filling.as_mut().poll(cx) {
        Poll::Ready(result) => Poll::Ready(result),
        Poll::Pending => seat.poll(cx).map(|()| Err(ReadEnd::Closed)),
    });
    filled.await.map_err(|_| NoRequest::Silent)
}
