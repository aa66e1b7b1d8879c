//! Target of a request that names a stored response of an engine.

use crate::exchange::request::Request;
use crate::state::shard::Shard;
use forebay_base::RankIndex;
use forebay_fleet::worker::{FleetSnapshot, Model};
use forebay_mailbox::{Pin, ResponseId, ResponsePlace};
use forebay_prompt::parse::{Endpoint, Reason, Refusal, StoredCall};

/// Finds the rank that stores the response. Also sets the model if the request names none.
///
/// # Errors
/// [`Reason::UnknownResponse`] if no worker may be asked.
pub(crate) fn find(
    shard: &Shard,
    request: &mut Request<'_>,
    fleet: &FleetSnapshot,
    endpoint: Endpoint,
) -> Result<Option<RankIndex>, Refusal> {
    let id = match (endpoint, &request.api.previous_response) {
        (Endpoint::StoredResponse, _) => {
            StoredCall::of(request.head.path(&request.message)).map(|call| call.id)
        }
        (Endpoint::Responses, _) if request.api.sets_response_id && has_tenants(fleet) => {
            return Err(Refusal::new(Reason::BadRequest).with_param("request_id").with_message(
                "The engine keeps responses by this id, and another tenant may have it. Leave \
                 `request_id` out.",
            ));
        }
        (Endpoint::Responses | Endpoint::Other, Some(previous)) => {
            ResponseId::of(previous.as_bytes())
        }
        _ => return Ok(None),
    };
    let place = place(shard, request, fleet, id)?;
    if endpoint == Endpoint::StoredResponse {
        // With a single worker, an unknown response can only be there.
        if place.is_none() && !has_one_address(fleet) {
            return Err(unknown());
        }
        request.api.clear();
        if let Some(model) = place.and_then(|place| fleet.models.get(place.model.index())) {
            request.api.model.push_str(&model.name);
            request.api.has_model = true;
        }
    }
    Ok(place.map(|place| place.rank))
}

/// Rank of the stored response, if known. With tenants, an unknown response may belong to another
/// tenant, so it is refused.
fn place(
    shard: &Shard,
    request: &Request<'_>,
    fleet: &FleetSnapshot,
    id: Option<ResponseId>,
) -> Result<Option<ResponsePlace>, Refusal> {
    let found = id.and_then(|id| shard.routing.stored_responses.borrow().place(&id));
    let tenant = request.caller.principal.tenant;
    if let Some(place) = found.filter(|place| place.tenant == tenant) {
        return Ok(Some(place));
    }
    if found.is_some() || has_tenants(fleet) {
        return Err(unknown());
    }
    Ok(None)
}

fn has_tenants(fleet: &FleetSnapshot) -> bool {
    fleet.tenants.ask_for_keys() || !fleet.config.flow.queue.tenant_header.is_empty()
}

/// Pins the request to the rank that stores the response, whatever rank its client names.
///
/// # Errors
/// [`Reason::UnknownResponse`] if the rank no longer serves the model.
pub(crate) fn pin(stored_at: Option<RankIndex>, model: &Model) -> Result<Option<Pin>, Refusal> {
    let Some(rank) = stored_at else { return Ok(None) };
    if model.ranks.contains(&rank) {
        return Ok(Some(Pin::Beside(rank)));
    }
    Err(unknown().with_message(
        "The worker that keeps this response is gone, or does not serve the model. Make the \
         response again.",
    ))
}

fn has_one_address(fleet: &FleetSnapshot) -> bool {
    let mut ranks = fleet.models.iter().flat_map(|model| &model.ranks);
    let first = ranks.next().and_then(|rank| fleet.ranks.get(rank.index()));
    first.is_some_and(|first| {
        let at_first = |other: &RankIndex| {
            fleet.ranks.get(other.index()).is_some_and(|other| other.address == first.address)
        };
        ranks.all(at_first)
    })
}

fn unknown() -> Refusal {
    Refusal::new(Reason::UnknownResponse)
}
