//! Relays an answer behind its parsed head: chunk by chunk, as the chunks come.

use super::chunk::{next_chunk, pass_on};
use super::{Client, StreamShape, Upstream, encode_cut};
use crate::ingress::{Conn, Turn};
use forebay_http1::{
    AnswerBody, AnswerFraming, BodyFraming, DownstreamHead, ResponseHead, Version, encode_response,
};
use forebay_json::EventTail;
use forebay_router::dispatch::RelayError;
use std::time::Duration;

/// Bytes that the router's fields add to a head, at a guess: a longer head grows the buffer.
const HEAD_GROWTH_BYTES: usize = 512;
/// Bytes of chunked framing around a piece.
const CHUNK_FRAME_BYTES: usize = 24;

/// The head of an answer, with the client's terms for its relay.
#[derive(Debug)]
pub struct PendingAnswer<'a> {
    /// Parsed from `upstream.input`.
    pub head: &'a ResponseHead,
    /// The client's version.
    pub client_version: Version,
    /// May the client's connection stay open?
    pub keep_alive: bool,
    /// Shape of an error in a stream.
    pub shape: StreamShape,
    /// The client has the head of a stream, and waits for the rest of the stream.
    pub head_sent: bool,
    /// Fields that the router adds.
    pub extra: &'a [(&'a str, &'a [u8])],
    /// Longest silence of the worker.
    pub idle_max: Duration,
    /// Longest time for the client to take a chunk.
    pub write_max: Duration,
}

impl PendingAnswer<'_> {
    /// The head of the client has no length of the body.
    const fn is_open(&self) -> bool {
        self.head_sent || matches!(self.head.body, BodyFraming::Chunked | BodyFraming::UntilClose)
    }
}

/// An answer that reached the client completely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletedAnswer {
    /// Body bytes without framing.
    pub body_bytes: u64,
    /// May the worker's connection be used again?
    pub upstream_reusable: bool,
    /// May the client's connection be used again?
    pub client_reusable: bool,
}

/// Relays the answer. `observe` gets every piece of the body as the piece passes.
///
/// # Errors
/// [`RelayError`], never of `before_head`: the client has seen the head, and no other rank can
/// answer. So `client` must not leave a stalled rank (`DownWatch::leaving`). A stream of events
/// that breaks gets an error event at its end, and then no clean end.
pub async fn relay(
    client: &mut impl Client,
    upstream: &mut Upstream,
    answer: &PendingAnswer<'_>,
    mut observe: impl FnMut(&[u8]),
) -> Result<CompletedAnswer, RelayError> {
    // A client that cannot be sent chunks sees the end of such a body in the end of the connection.
    let is_unframed = AnswerFraming::open(answer.client_version) == AnswerFraming::Plain;
    let client_reusable = answer.keep_alive && !(answer.is_open() && is_unframed);
    let mut out = client.conn().buffer_for(upstream.input.len() + HEAD_GROWTH_BYTES);
    if !answer.head_sent {
        encode_head(upstream, answer, client_reusable, &mut out);
    }
    let mut chunk = std::mem::take(&mut upstream.input);
    chunk.drain(..answer.head.head_bytes.min(chunk.len()));
    let mut body = match answer.head_sent {
        true => AnswerBody::continued(answer.head.body, answer.client_version),
        false => AnswerBody::new(answer.head.body, answer.client_version),
    };
    // An empty body would get no last chunk, since its end comes behind its data.
    // `OpenEventStream::goes_on_with` excludes a continued body of length 0.
    debug_assert!(!answer.head_sent || !body.is_done(), "a continued body without bytes");
    let mut tail = (answer.head.is_event_stream() && answer.is_open()).then(EventTail::default);
    let mut body_bytes = 0;
    let mut leftover = false;
    let mut turn = Turn::default();
    loop {
        // Worker and client may both be ready at each poll: the budget of the turn lets other tasks
        // run.
        turn.spend(chunk.len()).await;
        if !chunk.is_empty() {
            let Ok((data_bytes, consumed)) = body.decode(&mut chunk) else {
                let error = RelayError::BodyInvalid;
                return Err(cut(client.conn(), answer, &body, tail, out, error).await);
            };
            let data = chunk.get(..data_bytes).unwrap_or_default();
            let (held, whole) =
                tail.as_mut().map_or_else(|| (Vec::new(), data), |tail| tail.pass(data));
            body.framing().push_both(&held, whole, &mut out);
            if body.is_done() {
                finish_body(&mut body, &mut tail, &mut out);
            }
            observe(data);
            body_bytes += u64::try_from(data_bytes).unwrap_or(0);
            leftover = consumed < chunk.len();
            // A stream that waits for its next event holds no buffer.
            upstream.reader.recycle(std::mem::take(&mut chunk));
        }
        if !out.is_empty() {
            let next = (!body.is_done()).then_some(&mut upstream.reader);
            pass_on(client.conn(), std::mem::take(&mut out), answer.write_max, next).await?;
        }
        if body.is_done() {
            break;
        }
        client.wait_at_most(answer.idle_max);
        let error = match next_chunk(client, upstream).await {
            Ok(next) if next.is_empty() && body.ends_with_connection() => {
                finish_body(&mut body, &mut tail, &mut out);
                continue;
            }
            Ok(next) if next.is_empty() => RelayError::ClosedMidStream,
            Ok(next) => {
                out = client.conn().buffer_for(next.len() + CHUNK_FRAME_BYTES);
                chunk = next;
                continue;
            }
            Err(error) if error.blames_worker() => error,
            Err(error) => {
                debug_assert!(!error.before_head(), "{error:?} behind the head");
                return Err(error);
            }
        };
        debug_assert!(!error.before_head(), "{error:?} behind the head");
        return Err(cut(client.conn(), answer, &body, tail, Vec::new(), error).await);
    }
    let upstream_reusable = answer.head.keep_alive && !leftover && !body.ends_with_connection();
    Ok(CompletedAnswer { body_bytes, upstream_reusable, client_reusable })
}

pub(super) fn encode_head(
    upstream: &Upstream,
    answer: &PendingAnswer<'_>,
    keep_alive: bool,
    out: &mut Vec<u8>,
) {
    let framing = match (answer.head.body, answer.client_version) {
        (BodyFraming::UntilClose, Version::Http11) => BodyFraming::Chunked,
        (BodyFraming::Chunked, Version::Http10) => BodyFraming::UntilClose,
        (framing, _) => framing,
    };
    let head = DownstreamHead {
        framing,
        keep_alive,
        client_version: answer.client_version,
        extra: answer.extra,
    };
    encode_response(answer.head, &upstream.input, &head, out);
}

/// Appends the held bytes and the end of the framing. The body is then done.
fn finish_body(body: &mut AnswerBody, tail: &mut Option<EventTail>, out: &mut Vec<u8>) {
    let held = tail.as_mut().map(EventTail::flush).unwrap_or_default();
    body.emit(&held, out);
    body.finish(out);
}

/// The worker broke its answer off. Whole events are sent; a stream of events gets a last event
/// with the reason; then the connection is closed without the body's proper end, so that no client
/// takes the body for complete. In the middle of an event no event follows: a client would read the
/// last event as the rest of the open event.
async fn cut(
    conn: &mut Conn,
    answer: &PendingAnswer<'_>,
    body: &AnswerBody,
    tail: Option<EventTail>,
    mut out: Vec<u8>,
    error: RelayError,
) -> RelayError {
    if let Some(tail) = tail {
        let is_between_events = tail.is_between_events();
        // For HTTP/1.0 the end of the connection is a proper end.
        if is_between_events || body.framing() == AnswerFraming::Plain {
            let mut event = Vec::new();
            encode_cut(answer.shape, error.describe(), is_between_events, &mut event);
            body.emit(&event, &mut out);
        }
    }
    conn.wait_at_most(answer.write_max);
    if out.is_empty() || conn.write(out).await.is_ok() { error } else { RelayError::ClientGone }
}
