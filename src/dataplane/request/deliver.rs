//! select, queue, dispatch, relay: sends the request to ranks as the state machine of
//! [`forebay_router::request`] decides. Retries as long as no byte has reached the client.

use super::attempt::{self, Attempt, PriorAttempt};
use super::{choice, pressure, queue_wait};
use crate::exchange::phase::ConnectionReuse;
use crate::exchange::phase::{AnswerPhase, Delivery, MatchPhase};
use crate::exchange::request::Request;
use crate::exchange::{Exchange, RefusedExchange};
use crate::ingress::Conn;
use crate::resume::remainder;
use crate::state::shard::Shard;
use crate::story::event;
use forebay_board::account::Stage;
use forebay_router::request::{Action, RequestEvent, RequestFlow, Scene, Stop};

/// Delivers the request until an answer or a final failure. Not an async function: that would store
/// the exchange twice in the future of each connection.
///
/// # Errors
/// The request stops with a refusal, a cut stream, or a client that has left.
pub(crate) fn deliver<'c>(
    shard: &Shard,
    conn: &mut Conn,
    exchange: Exchange<'c, MatchPhase>,
) -> impl Future<Output = Result<Exchange<'c, AnswerPhase>, RefusedExchange<'c>>> {
    let Exchange { request, phase } = exchange;
    let MatchPhase { endpoint, new_request, places, facts, delivery } = phase;
    let body_bytes = u64::try_from(request.body().len()).unwrap_or(u64::MAX);
    let mut flow = RequestFlow::new(facts, endpoint, body_bytes, new_request);
    let mut exchange = Exchange { request, phase: delivery };
    async move {
        let driven = drive(shard, conn, &mut exchange, &mut flow).await;
        drop(places);
        match driven {
            Ok(after) => Ok(exchange.next(AnswerPhase { after })),
            Err(stop) => Err(exchange.stop(stop)),
        }
    }
}

/// Performs the actions of the state machine.
async fn drive(
    shard: &Shard,
    conn: &mut Conn,
    exchange: &mut Exchange<'_, Delivery>,
    flow: &mut RequestFlow,
) -> Result<ConnectionReuse, Stop> {
    let mut event = RequestEvent::Ready;
    let mut seat = None;
    loop {
        let action = step(shard, exchange, flow, event);
        // Release the old queue place after the step. Released earlier, a new request could take
        // it, and this request would be refused.
        drop(seat.take());
        event = match action {
            Action::Wait(waiter, wanted) => {
                let joined_at = waiter.joined_at;
                let request = &mut exchange.request;
                queue_wait::drop_text(shard, request);
                let ended = queue_wait::for_verdict(shard, conn, request, waiter, wanted).await;
                exchange.request.story.queued(joined_at, shard.env.now());
                seat = ended.1;
                ended.0
            }
            Action::Send(chosen) => {
                exchange.request.end_stage().await;
                let before = PriorAttempt::of(flow);
                let predicted = choice::account(shard, &mut exchange.request, flow, &chosen);
                let endpoint = flow.endpoint();
                let facts = flow.facts();
                let attempt = Attempt { endpoint, facts, chosen, predicted, before };
                let ran = attempt::run(shard, conn, exchange, attempt).await;
                pressure::relieve(&shard.env, &shard.workers, &shard.routing, facts.model);
                let Request { buffers, story, .. } = &mut *exchange.request;
                match ran {
                    Ok(after) => {
                        story.facts.answer.status = buffers.answer_head.status;
                        return Ok(after);
                    }
                    Err(failed) => {
                        let workers = &shard.workers;
                        let now = shard.env.now();
                        story.lost(&event::AttemptLoss { workers, failed: &failed, now });
                        RequestEvent::Failed(failed)
                    }
                }
            }
            Action::End(stop) if exchange.request.early.is_interrupted() => {
                let ended = Box::pin(remainder::ended(shard, conn, exchange, stop)).await;
                return ended.inspect(|_| exchange.request.story.facts.answer.status = 200);
            }
            Action::End(stop) => return Err(stop),
        };
    }
}

/// Steps the state machine with the current fleet: returns a rank with room, a pair of ranks, or a
/// place in a queue.
fn step(
    shard: &Shard,
    exchange: &mut Exchange<'_, Delivery>,
    flow: &mut RequestFlow,
    event: RequestEvent,
) -> Action {
    let is_chosen_elsewhere = matches!(event, RequestEvent::Granted(_));
    let start = shard.env.now();
    let fleet = shard.workers.fleet();
    let Exchange { request, phase } = exchange;
    let buffers = &mut *request.buffers;
    let body = buffers.message.get(buffers.head.head_bytes..).unwrap_or_default();
    let body_bytes = u64::try_from(body.len()).unwrap_or(u64::MAX);
    let mut scene = Scene {
        fleet: &fleet,
        stages: &mut shard.routing.informed(),
        prompt: &mut buffers.prompt,
        text_bytes: buffers.api.text_bytes(body_bytes),
        body,
        split: &mut phase.split,
        count: &|count| shard.env.counters.add(count, 1),
    };
    let action = flow.step(start, event, &mut scene);
    if matches!(action, Action::Send(_)) && !is_chosen_elsewhere {
        shard.env.time(Stage::Select, start);
    }
    action
}
