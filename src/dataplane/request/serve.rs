//! The path of a request, phase by phase. Each phase's module has the details.

use super::{deliver, pressure};
use crate::exchange::buffers::Buffers;
use crate::exchange::phase::{After, AnswerPhase, BodyPhase, HeadPhase};
use crate::exchange::request::Request;
use crate::exchange::{Exchange, RefusedExchange};
use crate::ingress::Conn;
use crate::intake::{admission, body, client_identity, websocket};
use crate::overlap::prompt_match;
use crate::reply::refusal;
use crate::resolve::{models, own_page, preflight, target};
use crate::state::shard::Shard;
use crate::story::event::{ExchangeEnd, MessageParts, RoutedHead};
use crate::story::facts::AskedApi;
use forebay_http1::{RequestHead, request_loop};
use forebay_prompt::parse::{ApiShape, Endpoint, Reason, Refusal, route};
use forebay_router::request::Stop;

/// Serves the request whose head stands parsed in the buffers.
pub(crate) async fn serve(shard: &Shard, conn: &mut Conn, buffers: &mut Buffers) -> After {
    let started = shard.env.now();
    let mut request = Box::new(Request::new(buffers, &conn.input, shard.fresh_id(), started));
    client_identity::find_client(shard, conn, &request.head);
    preflight::choose(&shard.intake.cors(), conn, &mut request);
    let routed = routed(shard, conn, &mut request.head);
    begin(shard, conn, &mut request, &routed);
    let served = match routed {
        Ok(endpoint) => {
            phases(shard, conn, Exchange { request, phase: HeadPhase { endpoint } }).await
        }
        Err(refusal) => cors_question(shard, conn, request, refusal).await,
    };
    match served {
        Ok(Exchange { mut request, phase: AnswerPhase { after } }) => {
            end(shard, conn, &mut request, None);
            after
        }
        Err(RefusedExchange { mut request, stop }) => {
            let stop = pressure::with_time(&shard.routing, stop);
            end(shard, conn, &mut request, Some(&stop));
            reply(shard, conn, &request, stop).await
        }
    }
}

/// Endpoint of the path.
fn routed(shard: &Shard, conn: &Conn, head: &mut RequestHead) -> Result<Endpoint, Refusal> {
    if request_loop(head, &conn.input, shard.links.doors.router_id).is_some() {
        return Err(Refusal::new(Reason::RequestLoop));
    }
    route(&head.method, head.path(&conn.input))
        .or_else(|refusal| websocket::route(refusal, &shard.intake.cors(), conn, head))
}

/// Begins the story of the request.
fn begin(
    shard: &Shard,
    conn: &Conn,
    request: &mut Request<'_>,
    routed: &Result<Endpoint, Refusal>,
) {
    let endpoint = routed.as_ref().ok().copied();
    let shape = |endpoint| shape(endpoint, conn, &request.head);
    let asked = endpoint.map(|endpoint| AskedApi { endpoint, shape: shape(endpoint) });
    let Request { buffers, story, .. } = request;
    let began = RoutedHead {
        shard,
        head: &buffers.head,
        input: &conn.input,
        request_id: buffers.request_id(),
        client: conn.client.address,
        endpoint: endpoint.filter(|endpoint| own_page::of(*endpoint).is_none()),
        at: story.facts.times.started,
    };
    story.began(asked, &began);
}

/// All phases of a request for an endpoint.
async fn phases<'c>(
    shard: &Shard,
    conn: &mut Conn,
    mut exchange: Exchange<'c, HeadPhase>,
) -> Result<Exchange<'c, AnswerPhase>, RefusedExchange<'c>> {
    if let Some(page) = own_page::of(exchange.phase.endpoint) {
        let fleet = shard.workers.fleet();
        let request = &mut exchange.request;
        return match own_page::answer(&shard.env, &fleet, conn, request, page).await {
            Ok(after) => Ok(exchange.next(AnswerPhase { after })),
            Err(stop) => Err(exchange.stop(stop)),
        };
    }
    let admitted = admission::admit(shard, conn, exchange)?;
    let mut received = body::receive(shard, conn, admitted).await?;
    match models_page(shard, &received) {
        Ok(None) => {}
        Ok(Some(page)) => {
            let after = models::send(&shard.env, conn, &mut received.request, &page).await;
            return Ok(received.next(AnswerPhase { after }));
        }
        Err(refusal) => return Err(received.stop(Stop::Refused(refusal))),
    }
    let targeted = target::find(shard, conn, received).await?;
    let matched = prompt_match::find(shard, conn, targeted).await?;
    deliver::deliver(shard, conn, matched).await
}

/// The page of models, where the router has it.
fn models_page(
    shard: &Shard,
    exchange: &Exchange<'_, BodyPhase>,
) -> Result<Option<Vec<u8>>, Refusal> {
    match exchange.phase.endpoint {
        Endpoint::Models => models::body(&shard.workers.fleet(), &exchange.request),
        _ => Ok(None),
    }
}

/// A path without an endpoint: a browser's question before a request, or the refusal.
async fn cors_question<'c>(
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

/// Ends the story of the request.
fn end(shard: &Shard, conn: &Conn, request: &mut Request<'_>, stop: Option<&Stop>) {
    let tenant = request.caller.whom.tenant;
    let Request { buffers, story, .. } = request;
    let message =
        MessageParts { head: &buffers.head, api: &buffers.api, request_id: buffers.request_id() };
    let client = &conn.client;
    story.ended(&ExchangeEnd { shard, client, message, tenant, stop, now: shard.env.now() });
}

/// Answer of the router to a request that has stopped.
async fn reply(shard: &Shard, conn: &mut Conn, request: &Request<'_>, stop: Stop) -> After {
    let env = &shard.env;
    match stop {
        Stop::BeforeBody(refusal) => refusal::before_body(env, conn, request, &refusal).await,
        Stop::InBody(refusal) => refusal::and_close(env, conn, request, &refusal).await,
        Stop::Refused(refusal) => refusal::request(env, conn, request, &refusal).await,
        Stop::Engine(answer) => refusal::by_engine(env, conn, request, &answer).await,
        Stop::ClientGone | Stop::Cut(_) => After::Drop,
    }
}

/// Shape of error bodies. Both vendors have calls for models, and clients of Anthropic send the
/// version of their API.
fn shape(endpoint: Endpoint, conn: &Conn, head: &RequestHead) -> ApiShape {
    let is_anthropic = endpoint == Endpoint::Models
        && client_identity::sent(head, &conn.input, "anthropic-version").next().is_some();
    if is_anthropic { ApiShape::Anthropic } else { endpoint.shape() }
}
