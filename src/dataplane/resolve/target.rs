//! Target of a request: session, names of `[[model]]`, adapters, stored responses, the model with
//! its window, and the facts that ranks are chosen by.

use super::facts::{self, ArrivalFacts};
use super::{adapter, naming, stored_response};
use crate::exchange::phase::{BodyPhase, TargetPhase};
use crate::exchange::resumable::Resumable;
use crate::exchange::{Exchange, RefusedExchange};
use crate::ingress::Conn;
use crate::relay::EarlyPart;
use crate::state::shard::Shard;
use crate::state::workers::ShardFleet;
use forebay_mailbox::RequestFacts;
use forebay_prompt::parse::Endpoint;
use forebay_router::request::{Stop, in_flight_full};
use std::rc::Rc;

/// Finds the target of a received request.
///
/// # Errors
/// The request stops with the refusal of a model, a limit or a window, or because its client has
/// left.
pub(crate) async fn find<'c>(
    shard: &Shard,
    conn: &mut Conn,
    mut exchange: Exchange<'c, BodyPhase>,
) -> Result<Exchange<'c, TargetPhase>, RefusedExchange<'c>> {
    let found = of_request(shard, conn, &mut exchange).await;
    match found {
        Ok(TargetFacts { fleet, facts, resumable }) => {
            let Exchange { request, phase: BodyPhase { endpoint, new_request, places, .. } } =
                exchange;
            let phase = TargetPhase { endpoint, new_request, places, fleet, facts, resumable };
            Ok(Exchange { request, phase })
        }
        Err(stop) => Err(exchange.stop(stop)),
    }
}

struct TargetFacts {
    fleet: Rc<ShardFleet>,
    facts: RequestFacts,
    resumable: Resumable,
}

async fn of_request(
    shard: &Shard,
    conn: &mut Conn,
    exchange: &mut Exchange<'_, BodyPhase>,
) -> Result<TargetFacts, Stop> {
    let Exchange { request, phase } = exchange;
    let endpoint = phase.endpoint;
    let mut fleet = shard.workers.fleet();
    request.read_session(&fleet.config.session);
    if !fleet.config.models.is_empty() && endpoint != Endpoint::StoredResponse {
        naming::resolve(shard, conn, request, &fleet).await?;
    }
    if !fleet.config.adapters.is_empty()
        && let Some(name) = adapter::awaited(&fleet, endpoint, request)
    {
        fleet = Box::pin(adapter::load(shard, conn, name)).await?;
    }
    let stored_at =
        stored_response::find(shard, request, &fleet, endpoint).map_err(Stop::Refused)?;
    let (model_index, model) = facts::model(&fleet, endpoint, request).map_err(Stop::Refused)?;
    request.story.facts.model = Some(model_index.index());
    facts::pass_window(shard, &fleet, phase, model.pool).map_err(Stop::Refused)?;
    let held_bytes = facts::legs_bytes(model, &request.api, request.body().len());
    let full = |_| Stop::Refused(in_flight_full());
    phase.places.shard.hold_body(held_bytes).map_err(full)?;
    request.early = EarlyPart::of(&fleet.config.flow.queue, endpoint, &request.api);
    let resumable = facts::resumable(shard, request, phase, held_bytes, model_index);
    let head_at = request.story.facts.times.started;
    let address = conn.client.address;
    let arrival = ArrivalFacts { head_at, read_at: phase.read_at, stored_at, address };
    let facts = facts::read(request, &fleet, model_index, arrival).map_err(Stop::Refused)?;
    facts::charge(shard, request, &fleet, endpoint, &facts).map_err(Stop::Refused)?;
    // Only admitted requests earn retries.
    shard.routing.stages.borrow_mut().sends.retry.deposit(facts.caller.source);
    Ok(TargetFacts { fleet, facts, resumable })
}
