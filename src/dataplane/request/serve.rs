//! The path of one request, stage by stage. Each stage's module has the details.

use super::attempt::{self, Attempt, Before};
use super::pressure::Entered;
use super::{pressure, queue_wait};
use crate::exchange::labels::{AskedApi, Labels};
use crate::exchange::resumable::Keeping;
use crate::exchange::slot::{After, Slot};
use crate::ingress::Conn;
use crate::intake::body::{self, NoRequest};
use crate::intake::{client_identity, websocket};
use crate::overlap::prediction::Predicted;
use crate::overlap::prompt_match::Asked;
use crate::overlap::{prediction, prompt_match};
use crate::relay::Early;
use crate::reply::refusal;
use crate::resolve::adapter;
use crate::resolve::facts::{self, Came};
use crate::resolve::{models, naming, own_page, preflight, stored_response};
use crate::resume::remainder;
use crate::state::shard::Shard;
use crate::story::bill;
use crate::story::{access_record, note_request, quota, traces};
use forebay_base::NanosSinceStart;
use forebay_fleet::account::{Count, Stage};
use forebay_fleet::admit::Admitted;
use forebay_fleet::tenant::TenantPart;
use forebay_http1::{BodyFraming, HeadError, RequestHead, request_loop};
use forebay_prompt::parse::{ApiShape, Endpoint, Reason, Refusal, Whom, route};
use forebay_router::dispatch::RelayError;
use forebay_router::request::{
    Action, Newcomer, RequestEvent, RequestFlow, Scene, Stop, in_flight_full,
};

/// What the head of a request says.
#[derive(Clone, Copy, Debug)]
struct Asks {
    endpoint: Endpoint,
    head_at: NanosSinceStart,
}

/// Serves the request whose head stands parsed in the slot.
pub(crate) async fn serve(shard: &Shard, conn: &mut Conn, slot: &mut Slot) -> After {
    let started = shard.env.now();
    let mut labels = Labels::default();
    slot.begin(&conn.input, shard.routing.stages.borrow_mut().random.u64(..));
    client_identity::asked(shard, conn, slot);
    preflight::choose(&shard.intake.cors(), conn, slot);
    access_record::begin(&shard.env, conn, slot);
    // parse: the route.
    let routed = match request_loop(&slot.head, &conn.input, shard.links.doors.router_id) {
        Some(_) => Err(Refusal::new(Reason::RequestLoop)),
        None => route(&slot.head.method, slot.head.path(&conn.input))
            .or_else(|refusal| websocket::route(refusal, &shard.intake.cors(), conn, slot)),
    };
    let served = match routed {
        Ok(endpoint) => {
            labels.asked = Some(AskedApi { endpoint, shape: shape(endpoint, conn, slot) });
            match own_page::of(endpoint) {
                Some(page) => {
                    let env = &shard.env;
                    let fleet = shard.workers.fleet();
                    own_page::answer(env, &fleet, conn, slot, page, &mut labels).await
                }
                None => {
                    slot.told.trace = traces::begin(shard, conn, slot, endpoint, started);
                    stages(shard, conn, slot, &mut labels, Asks { endpoint, head_at: started })
                        .await
                }
            }
        }
        Err(refusal) => {
            let env = &shard.env;
            let cors = &shard.intake.cors();
            preflight::answer_or(refusal, env, cors, conn, slot, &mut labels).await
        }
    };
    let served = served.map_err(|stop| pressure::with_time(&shard.routing, stop));
    // How long a tunnel was open says nothing of the time that answers take.
    if labels.status != 101 {
        shard.env.time(Stage::Total, started);
    }
    quota::settle(shard, slot, labels.model);
    note_request::ended(shard, slot);
    access_record::note(shard, &conn.client, slot, &labels, &served, started);
    traces::end(shard, slot, &labels, &served, started);
    slot.pair.keeping = Keeping::Off;
    match served {
        Ok(after) => after,
        Err(Stop::BeforeBody(refusal)) => {
            refusal::before_body(&shard.env, conn, slot, &refusal, &labels).await
        }
        Err(Stop::InBody(refusal)) => {
            refusal::and_close(&shard.env, conn, slot, &refusal, &labels).await
        }
        Err(Stop::Refused(refusal)) => {
            refusal::request(&shard.env, conn, slot, &refusal, &labels).await
        }
        Err(Stop::Engine(answer)) => {
            refusal::by_engine(&shard.env, conn, slot, &answer, &labels).await
        }
        Err(Stop::ClientGone | Stop::Cut(RelayError::ClientGone | RelayError::ClientStalled)) => {
            shard.env.count(Count::ClientGone);
            if slot.answer.status.is_none() {
                refusal::count_gone(&shard.env, &labels);
            }
            After::Drop
        }
        Err(Stop::Cut(_)) => {
            shard.env.count(Count::CutMidStream);
            After::Drop
        }
    }
}

async fn stages(
    shard: &Shard,
    conn: &mut Conn,
    slot: &mut Slot,
    labels: &mut Labels,
    asks: Asks,
) -> Result<After, Stop> {
    let Asks { endpoint, head_at } = asks;
    // parse: who asks.
    identify(shard, conn, slot).map_err(Stop::BeforeBody)?;
    // admit: the rejection window and the exact limits, before any of the body is read.
    client_identity::admit(shard, conn, slot).map_err(Stop::BeforeBody)?;
    let mut newcomer = Newcomer::of(part(shard, slot));
    let (_entered, mut admitted) = admit(shard, slot, asks, &mut newcomer)?;
    quota::enter(shard, slot, endpoint).map_err(Stop::BeforeBody)?;
    // ingress: the whole body. parse: one scan of it.
    let body_bytes = body::body(&shard.env, conn, slot, endpoint, &mut admitted).await?;
    slot.take_message(conn, body_bytes);
    let read_at = body::parse(&shard.env, &shard.io, conn, slot, endpoint).await?;
    labels.read_ns = Some(read_at.since(head_at));
    labels.stream = Some(slot.request.stream);
    let fleet = shard.workers.fleet();
    if endpoint == Endpoint::Models
        && let Some(body) = models::body(&fleet, slot).map_err(Stop::Refused)?
    {
        labels.status = 200;
        return Ok(models::send(&shard.env, conn, slot, &body).await);
    }
    slot.note_session(&fleet.config.session);
    if !fleet.config.models.is_empty() && endpoint != Endpoint::StoredResponse {
        naming::resolve(shard, conn, slot, &fleet).await?;
    }
    let awaited = match fleet.config.adapters.is_empty() {
        true => None,
        false => adapter::awaited(&fleet, endpoint, slot),
    };
    let fleet = match awaited {
        None => fleet,
        Some(name) => Box::pin(adapter::load(shard, conn, name)).await?,
    };
    let kept_at = stored_response::find(shard, slot, &fleet, endpoint).map_err(Stop::Refused)?;
    let body_bytes = slot.body().len();
    // admit: the window of the pool, now that the model is known, and the bytes of both legs.
    let (model_index, model) = facts::model(&fleet, endpoint, slot).map_err(Stop::Refused)?;
    labels.model = Some(model_index.index());
    {
        let mut stages = shard.routing.stages.borrow_mut();
        stages
            .window_of(&fleet, model.pool, shard.env.now(), &mut newcomer)
            .map_err(Stop::Refused)?;
        // Only for requests that get past the window: refused ones earn no retries.
        stages.sends.retry.deposit();
    }
    let held_bytes = facts::legs_bytes(model, &slot.request, body_bytes);
    let full = |_| Stop::Refused(in_flight_full());
    admitted.hold_body(held_bytes).map_err(full)?;
    slot.answer.early = Early::of(&fleet.config.flow.queue, endpoint, &slot.request);
    if slot.request.stream && shard.env.config().retry.mid_stream {
        slot.pair.keeping =
            Keeping::of(endpoint, slot.body(), &mut admitted, held_bytes, model_index);
    }
    let came = Came { head_at, read_at, kept_at, address: conn.client.address };
    let facts = facts::read(slot, &fleet, model_index, came);
    let facts = facts.map_err(Stop::Refused)?;
    {
        let ratios = &shard.routing.stages.borrow().matching.ratios;
        let output_tokens = facts.output_tokens;
        quota::charge(&shard.env, slot, &fleet, ratios, model_index, output_tokens)
            .map_err(Stop::Refused)?;
    }
    // render, index: once a request.
    let asked = Asked { fleet: &fleet, model_index, model, endpoint };
    prompt_match::match_prompt(&shard.env, &shard.io, &shard.routing, conn, slot, asked).await?;
    // select, queue, dispatch, relay: again with another worker while no byte has reached the
    // client.
    let body_bytes = u64::try_from(body_bytes).unwrap_or(u64::MAX);
    let mut flow = RequestFlow::new(facts, endpoint, body_bytes, newcomer);
    drive(shard, conn, slot, labels, &mut flow).await
}

/// Whose shape errors take. Both vendors have calls for models, and clients of Anthropic send the
/// version of their API.
fn shape(endpoint: Endpoint, conn: &Conn, slot: &Slot) -> ApiShape {
    let is_anthropic = endpoint == Endpoint::Models
        && client_identity::sent(slot, &conn.input, "anthropic-version").next().is_some();
    if is_anthropic { ApiShape::Anthropic } else { endpoint.shape() }
}

/// Notes whose request it is.
fn identify(shard: &Shard, conn: &Conn, slot: &mut Slot) -> Result<(), Refusal> {
    let fleet = shard.workers.fleet.borrow();
    let tokens = shard.intake.known_tokens();
    slot.told.whom =
        Whom::of(&fleet.tenants, &fleet.config.flow.queue, &slot.head, &conn.input, &tokens)?;
    Ok(())
}

/// What a request takes part with, where tenants share.
fn part(shard: &Shard, slot: &Slot) -> TenantPart {
    let fleet = shard.workers.fleet.borrow();
    slot.told.whom.part(&fleet.tenants, &fleet.config.flow.queue)
}

/// Admits a request on its head.
fn admit(
    shard: &Shard,
    slot: &Slot,
    asks: Asks,
    newcomer: &mut Newcomer,
) -> Result<(Entered, Admitted), Stop> {
    readable(&slot.head).map_err(|error| Stop::BeforeBody(error.into()))?;
    let entered = pressure::before_body(shard, asks.endpoint, asks.head_at, newcomer);
    let entered = entered.map_err(Stop::BeforeBody)?;
    let full = |_| Stop::BeforeBody(in_flight_full());
    Ok((entered, shard.intake.in_flight.admit(newcomer.tenant).map_err(full)?))
}

/// Only a body without a content coding can be scanned.
fn readable(head: &RequestHead) -> Result<(), HeadError> {
    let is_coded = head.is_coded && head.body != BodyFraming::None;
    if is_coded { Err(HeadError::ContentCoding) } else { Ok(()) }
}

/// Does what the machine says, until there is an answer or an end.
async fn drive(
    shard: &Shard,
    conn: &mut Conn,
    slot: &mut Slot,
    labels: &mut Labels,
    flow: &mut RequestFlow,
) -> Result<After, Stop> {
    let mut event = RequestEvent::Ready;
    let mut seat = None;
    loop {
        // select: a rank with room, or a pair of ranks, or a place in a queue.
        let action = select(shard, slot, flow, event);
        // It has another place in a queue, or needs none. Dropped before the step, the old place
        // could go to a newcomer, and who has waited would be refused.
        drop(seat.take());
        event = match action {
            // queue
            Action::Wait(waiter, wanted) => {
                let joined_at = waiter.joined_at;
                queue_wait::drop_text(shard, slot);
                let (next, place) =
                    queue_wait::for_verdict(shard, conn, slot, waiter, wanted).await;
                let now = shard.env.now();
                labels.queued_ns += now.since(joined_at);
                if let Some(trace) = &mut slot.told.trace {
                    trace.queued(joined_at, now);
                }
                seat = place;
                next
            }
            // dispatch, relay
            Action::Send(chosen) => {
                labels.rank = Some(chosen.lease.rank());
                let before = Before::of(flow);
                let facts = flow.facts();
                let endpoint = flow.endpoint();
                bill::begin(&shard.env, slot, endpoint, &chosen);
                let predicted = {
                    let fleet = shard.workers.fleet();
                    let model_index = facts.model;
                    let rank = chosen.prefill_rank();
                    let Shard { env, routing, links, .. } = shard;
                    fleet.models.get(model_index.index()).and_then(|model| {
                        let asked = Asked { fleet: &fleet, model_index, model, endpoint };
                        let predicted = prediction::account(env, routing, links, slot, asked, rank);
                        let session = facts.caller.session;
                        note_request::sent(shard, slot, asked, facts.arrived_at, rank);
                        labels.because =
                            Some(prediction::account_choice(env, routing, asked, session, rank));
                        predicted
                    })
                };
                if let Some(trace) = &mut slot.told.trace
                    && trace.is_recorded()
                {
                    let rank = chosen.prefill_rank();
                    let bytes = prediction::held_bytes(&shard.routing, rank);
                    trace.held(bytes, predicted.map(Predicted::tokens));
                }
                shard.routing.text.give(&shard.io, slot.prompt.let_go());
                let attempt = Attempt { endpoint, facts, chosen, predicted, before };
                let ran = attempt::run(shard, conn, slot, attempt).await;
                pressure::relieve(&shard.env, &shard.workers, &shard.routing, facts.model);
                match ran {
                    Ok(after) => {
                        labels.status = slot.answer.head.status;
                        return Ok(after);
                    }
                    Err(failed) => {
                        bill::lost(shard, slot, endpoint, &failed);
                        RequestEvent::Failed(failed)
                    }
                }
            }
            Action::End(stop) if slot.answer.early.is_broken() => {
                let ended = Box::pin(remainder::ended(shard, conn, slot, stop)).await;
                return ended.inspect(|_| labels.status = 200);
            }
            Action::End(stop) => return Err(stop),
        };
    }
}

/// One step of the machine, with the fleet of this moment.
fn select(shard: &Shard, slot: &mut Slot, flow: &mut RequestFlow, event: RequestEvent) -> Action {
    let is_chosen_elsewhere = matches!(event, RequestEvent::Granted(_));
    let start = shard.env.now();
    let fleet = shard.workers.fleet();
    let Slot { prompt, pair, message, head, request, .. } = slot;
    let body = message.get(head.head_bytes..).unwrap_or_default();
    let body_bytes = u64::try_from(body.len()).unwrap_or(u64::MAX);
    let mut scene = Scene {
        fleet: &fleet,
        stages: &mut shard.routing.informed(),
        prompt,
        text_bytes: request.text_bytes(body_bytes),
        body,
        split: &mut pair.split,
        count: &|count| shard.env.counters.add(count, 1),
    };
    let action = flow.step(start, event, &mut scene);
    if matches!(action, Action::Send(_)) && !is_chosen_elsewhere {
        shard.env.time(Stage::Select, start);
    }
    action
}

impl From<NoRequest> for Stop {
    fn from(none: NoRequest) -> Self {
        match none {
            NoRequest::Silent => Self::ClientGone,
            NoRequest::Refused(refusal) => Self::InBody(refusal),
        }
    }
}
