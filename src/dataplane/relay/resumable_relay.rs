//! Relays a stream that another rank may continue: event by event, without the ids that the router
//! has asked for. A stream that breaks off gets no last event here, because it may continue.

use super::chunk::{next_chunk, pass_on};
use super::pump::encode_head;
use super::{Client, CompletedAnswer, PendingAnswer, Transcript, Upstream};
use crate::ingress::Turn;
use forebay_http1::{AnswerBody, AnswerFraming, Version};
use forebay_router::dispatch::RelayError;

/// Relays the stream. `observe` gets the events as they pass, and no bytes for a read without an
/// event. `leaves` is called after each read: true if the stream continues at another rank.
///
/// # Errors
/// As [`super::relay`], but the client has whole events and no error event.
/// [`RelayError::Moved`].
pub async fn relay_resumable(
    client: &mut impl Client,
    upstream: &mut Upstream,
    answer: &PendingAnswer<'_>,
    transcript: &mut Transcript,
    mut observe: impl FnMut(&[u8]),
    mut leaves: impl FnMut(&mut Transcript) -> bool,
) -> Result<CompletedAnswer, RelayError> {
    let framing = AnswerFraming::open(answer.client_version);
    let client_reusable = answer.keep_alive && framing == AnswerFraming::Chunked;
    let mut out = client.conn().buffer_for(upstream.input.len() + 512);
    if !answer.head_sent {
        encode_head(upstream, answer, client_reusable, &mut out);
    }
    let mut chunk = std::mem::take(&mut upstream.input);
    chunk.drain(..answer.head.head_bytes.min(chunk.len()));
    // For HTTP/1.0 there is no framing.
    let mut body = AnswerBody::new(answer.head.body, Version::Http10);
    let mut body_bytes = 0;
    let mut leftover = false;
    let mut turn = Turn::default();
    loop {
        turn.spend(chunk.len()).await;
        let mut fault = None;
        if !chunk.is_empty() {
            let mut data = Vec::new();
            let mut events = Vec::new();
            match body.feed(&mut chunk, &mut data) {
                Ok((_, consumed)) => leftover = consumed < chunk.len(),
                Err(_) => fault = Some(RelayError::BodyInvalid),
            }
            upstream.reader.recycle(std::mem::take(&mut chunk));
            transcript.feed(&data, &mut events);
            if transcript.has_failed() {
                fault = Some(RelayError::FailedMidStream);
            } else if body.is_done() && transcript.is_cut_short() {
                fault = fault.or(Some(RelayError::ClosedMidStream));
            }
            let is_whole = body.is_done() && fault.is_none();
            if is_whole {
                transcript.flush(&mut events);
            }
            observe(&events);
            body_bytes += u64::try_from(events.len()).unwrap_or(0);
            framing.push(&events, &mut out);
            if is_whole {
                framing.finish(&mut out);
            }
        }
        if !out.is_empty() {
            let next = (!body.is_done() && fault.is_none()).then_some(&mut upstream.reader);
            pass_on(client.conn(), std::mem::take(&mut out), answer.write_max, next).await?;
        }
        if let Some(fault) = fault {
            return Err(fault);
        }
        if body.is_done() {
            let upstream_reusable =
                answer.head.keep_alive && !leftover && !body.ends_with_connection();
            return Ok(CompletedAnswer { body_bytes, upstream_reusable, client_reusable });
        }
        if leaves(transcript) {
            return Err(RelayError::Moved);
        }
        client.wait_at_most(answer.idle_max);
        match next_chunk(client, upstream).await {
            Ok(next)
                if next.is_empty() && body.ends_with_connection() && !transcript.is_cut_short() =>
            {
                body.finish(&mut Vec::new());
                transcript.flush(&mut out);
                framing.finish(&mut out);
            }
            Ok(next) if next.is_empty() => return Err(RelayError::ClosedMidStream),
            Ok(next) => chunk = next,
            Err(error) => return Err(error),
        }
    }
}
