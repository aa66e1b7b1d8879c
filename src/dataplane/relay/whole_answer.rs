//! Reads a whole answer instead of relaying it: an error of an engine, for clients that already
//! have the head of a stream, and the answer of a prefill leg.

use super::chunk::next_chunk;
use super::{Upstream, Watch};
use crate::ingress::Turn;
use forebay_base::limits::ENGINE_ERROR_BYTES_MAX;
use forebay_http1::{AnswerBody, ResponseHead, Version};
use forebay_router::dispatch::RelayError;
use std::time::Duration;

/// The body of an answer.
#[derive(Debug)]
pub struct WholeAnswer {
    /// Without framing, at most [`ENGINE_ERROR_BYTES_MAX`]. If the worker broke off, the body is
    /// incomplete.
    pub body: Vec<u8>,
    /// May the worker's connection be used again?
    pub upstream_reusable: bool,
}

/// Reads the answer behind the head in `upstream.input`. `idle_max`: longest silence of the worker.
///
/// # Errors
/// An error of `watch`. An answer that the worker broke off is no error.
pub async fn gather(
    watch: &mut impl Watch,
    upstream: &mut Upstream,
    head: &ResponseHead,
    idle_max: Duration,
) -> Result<WholeAnswer, RelayError> {
    let mut body = Vec::new();
    let drained = drain(watch, upstream, head, idle_max, |data| {
        let room = ENGINE_ERROR_BYTES_MAX.saturating_sub(body.len());
        body.extend_from_slice(data.get(..room.min(data.len())).unwrap_or_default());
        if data.len() > room { Err(RelayError::BodyInvalid) } else { Ok(()) }
    });
    let upstream_reusable = match drained.await {
        Ok(reusable) => reusable,
        Err(error) if error.blames_worker() => false,
        Err(error) => return Err(error),
    };
    Ok(WholeAnswer { body, upstream_reusable })
}

/// Reads the answer behind the head in `upstream.input` to its end. `observe` gets every piece as
/// the piece comes, and may end the reading. True if the worker's connection may be used again.
///
/// # Errors
/// An error of `watch` or `observe`, or [`RelayError::ClosedMidStream`],
/// [`RelayError::StreamIdle`], [`RelayError::BodyInvalid`].
pub async fn drain(
    watch: &mut impl Watch,
    upstream: &mut Upstream,
    head: &ResponseHead,
    idle_max: Duration,
    mut observe: impl FnMut(&[u8]) -> Result<(), RelayError>,
) -> Result<bool, RelayError> {
    // For HTTP/1.0 there is no framing.
    let mut framed = AnswerBody::new(head.body, Version::Http10);
    let mut chunk = std::mem::take(&mut upstream.input);
    chunk.drain(..head.head_bytes.min(chunk.len()));
    let mut data = Vec::new();
    let mut leftover = false;
    let mut turn = Turn::default();
    loop {
        turn.spend(chunk.len()).await;
        if !chunk.is_empty() {
            let (_, consumed) =
                framed.feed(&mut chunk, &mut data).map_err(|_| RelayError::BodyInvalid)?;
            leftover = consumed < chunk.len();
            observe(&data)?;
            data.clear();
        }
        if framed.is_done() {
            return Ok(head.keep_alive && !leftover);
        }
        watch.wait_at_most(idle_max);
        match next_chunk(watch, upstream).await? {
            next if next.is_empty() && framed.ends_with_connection() => return Ok(false),
            next if next.is_empty() => return Err(RelayError::ClosedMidStream),
            next => upstream.reader.recycle(std::mem::replace(&mut chunk, next)),
        }
    }
}
