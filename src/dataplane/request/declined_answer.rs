//! Answers that another rank may better: kept for the client, or dropped with their connection in
//! order.

use crate::exchange::Exchange;
use crate::exchange::phase::Delivery;
use crate::ingress::Conn;
use crate::relay::gather;
use crate::send::relay_answer::UpstreamAnswer;
use crate::state::shard::SendParts;
use forebay_fleet::mailbox::EngineAnswer;
use forebay_http1::{BodyFraming, FieldKind};
use forebay_router::dispatch::{RelayError, retry_after_s};
use std::future::ready;
use std::pin::Pin;
use std::time::Duration;

/// Ends the attempt. Where the client may get the answer after all, it is kept. Boxed: each
/// connection would hold the place for that, and few answers are kept.
pub(super) fn decline<'a>(
    sending: SendParts<'a>,
    conn: &'a mut Conn,
    exchange: &'a mut Exchange<'_, Delivery>,
    answering: UpstreamAnswer,
    error: RelayError,
) -> Pin<Box<dyn Future<Output = RelayError> + 'a>> {
    match error {
        RelayError::EngineBusy => Box::pin(ready(busy(sending, exchange, answering))),
        RelayError::CallerLimited | RelayError::TrialFailed => {
            Box::pin(keep_answer(sending, conn, exchange, answering, error))
        }
        error => {
            keep_if_whole(sending, exchange, answering);
            Box::pin(ready(error))
        }
    }
}

/// A worker that is silent for so long has said what it had to say.
const KEPT_WAIT_MAX: Duration = Duration::from_secs(1);

/// Keeps an answer that another rank may better. Why the attempt ends.
async fn keep_answer(
    sending: SendParts<'_>,
    conn: &mut Conn,
    exchange: &mut Exchange<'_, Delivery>,
    UpstreamAnswer { mut upstream, sent }: UpstreamAnswer,
    error: RelayError,
) -> RelayError {
    let head = &exchange.request.answer_head;
    let value = |kind| head.value_of(kind, &upstream.input).map(<[u8]>::to_vec);
    let retry_after = value(FieldKind::RetryAfter);
    let content_type = value(FieldKind::ContentType).and_then(|kind| String::from_utf8(kind).ok());
    let gathered = match gather(conn, &mut upstream, head, KEPT_WAIT_MAX).await {
        Ok(gathered) => gathered,
        Err(error) => return error,
    };
    if gathered.upstream_reusable && sent {
        sending.io.keep(sending.env, upstream);
    }
    let status = head.status;
    let body = gathered.body;
    let answer = EngineAnswer { status, body, content_type, retry_after };
    exchange.phase.reply.answer = Some(Box::new(answer));
    error
}

/// Notes when the engine will have room.
fn busy(
    sending: SendParts<'_>,
    exchange: &mut Exchange<'_, Delivery>,
    answering: UpstreamAnswer,
) -> RelayError {
    let after =
        exchange.request.answer_head.value_of(FieldKind::RetryAfter, &answering.upstream.input);
    exchange.phase.reply.retry_after_s = after.and_then(retry_after_s);
    keep_if_whole(sending, exchange, answering);
    RelayError::EngineBusy
}

/// A refusal that has come whole leaves its connection as good as new.
fn keep_if_whole(
    sending: SendParts<'_>,
    exchange: &Exchange<'_, Delivery>,
    answering: UpstreamAnswer,
) {
    let BodyFraming::Length(bytes) = exchange.request.answer_head.body else { return };
    let UpstreamAnswer { mut upstream, sent } = answering;
    let whole = usize::try_from(bytes)
        .ok()
        .and_then(|bytes| exchange.request.answer_head.head_bytes.checked_add(bytes));
    if sent && exchange.request.answer_head.keep_alive && whole == Some(upstream.input.len()) {
        upstream.input.clear();
        sending.io.keep(sending.env, upstream);
    }
}
