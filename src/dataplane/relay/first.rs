//! The beginning of an answer's body, before anything of it reaches the client: while that is so,
//! another worker can still be asked.

use super::chunk::next_chunk;
use super::{Upstream, Watch};
use forebay_http1::{BodyFraming, BodyLimits, ChunkedDecoder, ResponseHead};
use forebay_router::dispatch::RelayError;

/// Bytes of an answer that are looked at before it is passed on: `/v1/responses` repeats the
/// request's instructions and tools in its first events.
const FIRST_BYTES_MAX: usize = 256 * 1024;

/// Waits for the first bytes of the body whose head is parsed from `upstream.input`; they stay
/// there. `is_enough` is asked about the body as far as it is here, without its framing. The
/// deadline is that of `watch`, set when the request was sent: an engine that sends nothing but
/// comments does not move it.
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
            // A body that its connection delimits may be as short as this.
            let ends = head.body == BodyFraming::UntilClose && !body.is_empty();
            return if ends { Ok(body) } else { Err(RelayError::ClosedBeforeBody) };
        }
        upstream.input.extend_from_slice(&chunk);
        upstream.reader.recycle(chunk);
    }
}

/// Nothing has reached the client yet, so these are not the errors of a stream that breaks.
const fn before_body(error: RelayError) -> RelayError {
    match error {
        RelayError::ClosedMidStream => RelayError::ClosedBeforeBody,
        RelayError::StreamIdle => RelayError::FirstByteTimedOut,
        RelayError::DownMidStream => RelayError::DownBeforeHead,
        other => other,
    }
}

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
