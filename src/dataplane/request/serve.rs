//! Path of a request, phase by phase. The module of each phase has the details.

use super::{phases, pressure};
use crate::exchange::buffers::Buffers;
use crate::exchange::phase::{AnswerPhase, ConnectionReuse, HeadPhase};
use crate::exchange::request::Request;
use crate::exchange::{Exchange, RefusedExchange};
use crate::ingress::Conn;
use crate::intake::{client_identity, websocket};
use crate::reply::{refusal, unread_answer};
use crate::resolve::{own_page, preflight};
use crate::state::shard::Shard;
use crate::story::facts::RequestedApi;
use forebay_http1::{RequestHead, request_loop};
use forebay_net::join_cohort;
use forebay_prompt::parse::{ApiShape, Endpoint, Reason, Refusal, route};
use forebay_router::request::Stop;

/// Serves the request whose parsed head is in the buffers.
pub(crate) async fn serve(
    shard: &Shard,
    conn: &mut Conn,
    buffers: &mut Buffers,
) -> ConnectionReuse {
    let started = shard.env.now();
    buffers.begin(Some(&conn.input), shard.fresh_id());
    let mut request = Box::new(Request::new(buffers, started));
    client_identity::find_client(shard, conn, &request.head);
    preflight::choose(&shard.intake.cors(), conn, &mut request);
    let routed = routed(shard, conn, &mut request.head);
    let endpoint = routed.as_ref().ok().copied();
    let asked = endpoint
        .map(|endpoint| RequestedApi { endpoint, shape: shape(endpoint, conn, &request.head) });
    request.begin(shard, conn, asked, endpoint.and_then(own_page::of).is_some());
    let served = match routed {
        Ok(endpoint) => {
            phases::answer(shard, conn, Exchange { request, phase: HeadPhase { endpoint } }).await
        }
        Err(refusal) => answer_preflight(shard, conn, request, refusal).await,
    };
    join_cohort().await;
    match served {
        Ok(Exchange { mut request, phase: AnswerPhase { after } }) => {
            let Some(stop) = unread_answer::unread_reason(shard, conn).await else {
                request.end(shard, &conn.client, None);
                return after;
            };
            // The client has the head of the answer, whatever it has of the rest.
            let answer = &mut request.story.facts.answer;
            answer.counted.get_or_insert(answer.status);
            request.end(shard, &conn.client, Some(&stop));
            ConnectionReuse::Drop
        }
        Err(RefusedExchange { mut request, stop }) => {
            // The record of a refusal does not cover its write.
            let stop = pressure::with_time(&shard.routing, stop);
            request.end(shard, &conn.client, Some(&stop));
            reply(shard, conn, &request, stop).await
        }
    }
}

/// Endpoint of the path.
fn routed(shard: &Shard, conn: &Conn, head: &mut RequestHead) -> Result<Endpoint, Refusal> {
    if request_loop(head, &conn.input, shard.links.control.router_id).is_some() {
        return Err(Refusal::new(Reason::RequestLoop));
    }
    route(&head.method, head.path(&conn.input))
        .or_else(|refusal| websocket::route(refusal, &shard.intake.cors(), conn, head))
}

/// A request without an endpoint: answers a CORS preflight, or refuses.
async fn answer_preflight<'c>(
    shard: &Shard,
    conn: &mut Conn,
    mut request: Box<Request<'c>>,
    refusal: Refusal,
) -> Result<Exchange<'c, AnswerPhase>, RefusedExchange<'c>> {
    let cors = shard.intake.cors();
    match preflight::answer_or(refusal, &shard.env, &cors, conn, &mut request).await {
        Ok(after) => Ok(Exchange { request, phase: AnswerPhase { after } }),
        Err(stop) => Err(RefusedExchange { request, stop }),
    }
}

/// Answer of the router to a request that has stopped.
async fn reply(
    shard: &Shard,
    conn: &mut Conn,
    request: &Request<'_>,
    stop: Stop,
) -> ConnectionReuse {
    let env = &shard.env;
    match stop {
        Stop::BeforeBody(refusal) => refusal::before_body(env, conn, request, &refusal).await,
        Stop::InBody(refusal) => refusal::and_close(env, conn, request, &refusal).await,
        Stop::Refused(refusal) => refusal::request(env, conn, request, &refusal).await,
        Stop::Engine(answer) => refusal::by_engine(env, conn, request, &answer).await,
        Stop::ClientGone | Stop::Cut(_) | Stop::Drained => ConnectionReuse::Drop,
    }
}

/// Shape of error bodies. OpenAI and Anthropic both have model endpoints; clients of Anthropic send
/// `anthropic-version`.
fn shape(endpoint: Endpoint, conn: &Conn, head: &RequestHead) -> ApiShape {
    let is_anthropic = endpoint == Endpoint::Models
        && client_identity::sent(head, &conn.input, "anthropic-version").next().is_some();
    if is_anthropic { ApiShape::Anthropic } else { endpoint.shape() }
}
