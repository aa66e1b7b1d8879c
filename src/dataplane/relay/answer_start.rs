//! The beginning of an answer's body, before the client gets any byte. Until then the request can
//! be sent to another worker.

use super::chunk::next_chunk;
use super::{Upstream, Watch};
use forebay_http1::{BodyFraming, BodyLimits, ChunkedDecoder, ResponseHead};
use forebay_router::dispatch::RelayError;

/// Bytes of an answer that are looked at before it is passed on: `/v1/responses` repeats the
/// request's instructions and tools in its first events.
const FIRST_BYTES_MAX: usize = 256 * 1024;

/// Waits for the first bytes of the body behind the head in `upstream.input`. The bytes stay there.
/// `is_enough` gets the body so far, without framing. The deadline is that of `watch`, set when the
/// request was sent: an engine that sends only comments does not move the deadline.
///
/// # Errors
/// As [`super::send`]; and [`RelayError::ClosedBeforeBody`] when the connection ends first.
pub async fn first_bytes(
    watch: &mut impl Watch,
    upstream: &mut Upstream,
    head: &ResponseHead,
    is_enough: impl Fn(&[u8]) -> bool,
) -> Result<Vec<u8>, RelayError> {
    loop {
        let raw = upstream.input.get(head.head_bytes..).unwrap_or_default();
        let (body, is_done) = unframed(head.body, raw)?;
        if is_done || (!body.is_empty() && is_enough(&body)) || raw.len() > FIRST_BYTES_MAX {
            return Ok(body);
        }
        let chunk = next_chunk(watch, upstream).await.map_err(before_body)?;
        if chunk.is_empty() {
            // A body that ends with the connection may be short.
            let ends = head.body == BodyFraming::UntilClose && !body.is_empty();
            return if ends { Ok(body) } else { Err(RelayError::ClosedBeforeBody) };
        }
        upstream.input.extend_from_slice(&chunk);
        upstream.reader.recycle(chunk);
    }
}

/// The client has no byte so far, so the error is not the error of a stream that breaks.
const fn before_body(error: RelayError) -> RelayError {
    match error {
        RelayError::ClosedMidStream => RelayError::ClosedBeforeBody,
        RelayError::StreamIdle => RelayError::FirstByteTimedOut,
        RelayError::DownMidStream => RelayError::DownBeforeHead,
        other => other,
    }
}

/// The body so far without its framing, and whether the body is complete. Decodes from the start at
/// each chunk, which [`FIRST_BYTES_MAX`] bounds: the relay decodes the same bytes again.
fn unframed(framing: BodyFraming, raw: &[u8]) -> Result<(Vec<u8>, bool), RelayError> {
    let mut body = raw.to_vec();
    let is_done = match framing {
        BodyFraming::None => true,
        BodyFraming::Length(bytes) => u64::try_from(raw.len()).unwrap_or(u64::MAX) >= bytes,
        BodyFraming::UntilClose => false,
        BodyFraming::Chunked => {
            let mut decoder = ChunkedDecoder::new(&BodyLimits::default());
            let decoded = decoder.decode(&mut body).map_err(|_| RelayError::BodyInvalidAtOnce)?;
            body.truncate(decoded.data_bytes);
            decoded.done
        }
    };
    Ok((body, is_done))
}
