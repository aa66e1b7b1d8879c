//! The next bytes of an answer, from the worker and to the client. The relay, the first look at a
//! body, and the reading of a whole answer all wait here.

use super::{Upstream, Watch, WatchEnd};
use crate::ingress::Conn;
use forebay_link::LinkReader;
use forebay_router::dispatch::RelayError;
use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

/// The next chunk; empty at the end of the connection. The deadline is that of `watch`.
///
/// # Errors
/// [`RelayError::ClosedMidStream`], [`RelayError::StreamIdle`], [`RelayError::DownMidStream`],
/// [`RelayError::Stalled`], or an error of `watch`.
pub(super) async fn next_chunk(
    watch: &mut impl Watch,
    upstream: &mut Upstream,
) -> Result<Vec<u8>, RelayError> {
    poll_fn(|cx| {
        match upstream.reader.poll_chunk(cx) {
            Poll::Ready(Ok(chunk)) => return Poll::Ready(Ok(chunk)),
            // A reset is no proper end, also for a body that ends with the connection.
            Poll::Ready(Err(_)) => return Poll::Ready(Err(RelayError::ClosedMidStream)),
            Poll::Pending => {}
        }
        if let Poll::Ready(lost) = watch.poll_lost(cx) {
            return Poll::Ready(Err(lost));
        }
        watch.poll_over(cx).map(|over| {
            Err(match over {
                WatchEnd::Late => RelayError::StreamIdle,
                WatchEnd::Down => RelayError::DownMidStream,
                WatchEnd::Stalled => RelayError::Stalled,
            })
        })
    })
    .await
}

/// Writes to the client, while the next bytes of `next` may come.
pub(super) async fn pass_on(
    conn: &mut Conn,
    out: Vec<u8>,
    write_max: Duration,
    mut next: Option<&mut LinkReader>,
) -> Result<(), RelayError> {
    conn.wait_at_most(write_max);
    let written = conn.write_while(out, |cx| {
        if let Some(reader) = &mut next {
            reader.poll_ahead(cx);
        }
    });
    let written = written.await?;
    conn.recycle(written);
    Ok(())
}
