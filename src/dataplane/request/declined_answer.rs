//! Declined answers, which another rank may improve on: stored for the client, or dropped so that
//! their connection stays usable.

use crate::exchange::Exchange;
use crate::exchange::phase::Delivery;
use crate::ingress::Conn;
use crate::relay::gather;
use crate::send::relay_answer::UpstreamAnswer;
use crate::state::shard::SendParts;
use forebay_http1::{BodyFraming, FieldKind};
use forebay_mailbox::{EngineAnswer, ReceivedHead};
use forebay_router::dispatch::{RelayError, SendPlan, retry_after_s};
use std::future::ready;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// Ends the attempt. Stores the answer if the client may still get it. Boxed: few answers are
/// stored, and inline every connection's future would be as large.
pub(super) fn decline<'a>(
    sending: SendParts<'a>,
    conn: &'a mut Conn,
    exchange: &'a mut Exchange<'_, Delivery>,
    plan: &'a SendPlan,
    answering: UpstreamAnswer,
    error: RelayError,
) -> Pin<Box<dyn Future<Output = RelayError> + 'a>> {
    match error {
        RelayError::EngineBusy => Box::pin(ready(busy(sending, exchange, answering))),
        RelayError::CallerLimited | RelayError::TrialFailed => {
            Box::pin(store_answer(sending, conn, exchange, plan, answering, error))
        }
        error => {
            keep_if_whole(sending, exchange, answering);
            Box::pin(ready(error))
        }
    }
}

/// Timeout between reads of a declined answer.
const DECLINED_WAIT_MAX: Duration = Duration::from_secs(1);

/// Stores a declined answer. Returns why the attempt ends.
async fn store_answer(
    sending: SendParts<'_>,
    conn: &mut Conn,
    exchange: &mut Exchange<'_, Delivery>,
    plan: &SendPlan,
    UpstreamAnswer { mut upstream, sent }: UpstreamAnswer,
    error: RelayError,
) -> RelayError {
    let head = &exchange.request.answer_head;
    let bytes = upstream.input.get(..head.head_bytes).unwrap_or_default().to_vec();
    let received = Some(ReceivedHead { bytes, worker: Arc::clone(&plan.shown_as) });
    let gathered = match gather(conn, &mut upstream, head, DECLINED_WAIT_MAX).await {
        Ok(gathered) => gathered,
        Err(error) => return error,
    };
    if gathered.upstream_reusable && sent {
        sending.io.keep(sending.env, upstream);
    }
    let status = head.status;
    let answer = EngineAnswer { status, body: gathered.body, received };
    exchange.phase.reply.answer = Some(Box::new(answer));
    error
}

/// Stores when the engine expects to have room.
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

/// Pools the connection of a refusal that was received whole.
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
