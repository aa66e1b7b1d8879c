//! Facts of a received request: its model and its hints, within the caller's rights.

use super::stored_response;
use crate::exchange::phase::BodyPhase;
use crate::exchange::request::Request;
use crate::exchange::resumable::Resumable;
use crate::intake::admission::show_limits;
use crate::intake::websocket;
use crate::state::shard::Shard;
use crate::state::workers::ShardFleet;
use crate::story::quota::{self, Charge};
use forebay_base::limits::SPLIT_ITEMS_MAX;
use forebay_base::{DpRank, ModelIndex, NanosSinceStart, PoolIndex, RankIndex};
use forebay_disagg::ADDED_BYTES_PER_ROOM;
use forebay_fleet::worker::{FleetSnapshot, Leg, Model};
use forebay_mailbox::{Caller, Pin, RequestFacts};
use forebay_prompt::parse::{ApiRequest, Endpoint, PromptSource, Reason, Refusal, rank_pin};

use forebay_router::request::{no_worker, wait_deadline};
use forebay_select::{NoModel, output_tokens, reaches};
use std::net::IpAddr;

/// Times, rank and address of a request that its message does not contain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArrivalFacts {
    /// Time of the head: the client's deadline counts from here.
    pub(crate) head_at: NanosSinceStart,
    /// Time of the last byte: waits count from here.
    pub(crate) read_at: NanosSinceStart,
    /// Rank that stores the response that the request names.
    pub(crate) stored_at: Option<RankIndex>,
    pub(crate) address: IpAddr,
}

/// The requested model. Endpoints that engines serve without a model name get the first model.
///
/// # Errors
/// A refusal if no model is found, or the client's key does not cover the model.
pub(crate) fn model<'a>(
    fleet: &'a FleetSnapshot,
    endpoint: Endpoint,
    request: &Request<'_>,
) -> Result<(ModelIndex, &'a Model), Refusal> {
    let api = &*request.api;
    let found = forebay_select::model(fleet, endpoint, api);
    // Check rights first: a caller without them must not learn whether the model exists.
    let resolved = found.ok().map(|(_, model)| &*model.name);
    if !matches!(found, Err(NoModel::Missing | NoModel::NoPath)) {
        request.caller.principal.check_model(&fleet.tenants, api, resolved)?;
    }
    if endpoint == Endpoint::WebSocket
        && let Ok((_, model)) = found
        && let Some(listed) = request.caller.principal.only_models(&fleet.tenants)
    {
        websocket::check_models(fleet, model, listed)?;
    }
    found.map_err(|none| match none {
        NoModel::NoneYet => no_worker("those that may serve it have not listed it yet"),
        NoModel::Unknown if api.is_renamed() => Refusal::unserved_alias(api.asked_model()),
        NoModel::Unknown => Refusal::unknown_model(api.asked_model()),
        NoModel::Missing if endpoint == Endpoint::WebSocket => Refusal::no_model_in_query(),
        NoModel::Missing => Refusal::missing_model(),
        NoModel::NoPath => Refusal::no_path_without_model(),
    })
}

/// Bytes held for a request. A request that may be split is in memory 3 times: the original, and a
/// copy for each leg with a bootstrap room per prompt.
pub(crate) fn legs_bytes(model: &Model, request: &ApiRequest, body_bytes: usize) -> usize {
    match request.prompt {
        _ if model.prefill_pool.is_none() => body_bytes,
        PromptSource::Batch(_) => {
            // A prompt takes at least the 3 bytes `"",`.
            let prompts_max = (body_bytes / 3).min(SPLIT_ITEMS_MAX as usize);
            let rooms_bytes = prompts_max.saturating_mul(ADDED_BYTES_PER_ROOM);
            body_bytes.saturating_mul(3).saturating_add(rooms_bytes.saturating_mul(2))
        }
        _ => body_bytes.saturating_mul(3),
    }
}

/// Reads the facts of a request.
///
/// # Errors
/// A refusal if the request names a rank that does not exist.
pub(crate) fn read(
    request: &mut Request<'_>,
    fleet: &FleetSnapshot,
    model_index: ModelIndex,
    arrival: ArrivalFacts,
) -> Result<RequestFacts, Refusal> {
    let pin = match fleet.models.get(model_index.index()) {
        Some(model) => match stored_response::pin(arrival.stored_at, model)? {
            None => pin(request, fleet, model)?.map(Pin::Number),
            pin => pin,
        },
        None => None,
    };
    let rules = request.caller.principal.rules(&fleet.tenants, &fleet.config.flow.queue);
    let hints = rules.read(&request.head, &request.message, request.api.priority);
    request.caller.priority.granted = hints.upstream_priority;
    let client_deadline = hints.deadline.map(|deadline| arrival.head_at.plus(deadline));
    let deadline = wait_deadline(fleet, arrival.read_at, client_deadline);
    Ok(RequestFacts {
        model: model_index,
        caller: Caller {
            session: request.caller.session,
            source: source(request, arrival.address),
            ..hints.caller
        },
        arrived_at: arrival.read_at,
        deadline,
        client_deadline,
        pin,
        tried: Vec::new(),
        output_tokens: output_tokens(request.api.max_tokens),
    })
}

/// Number of the key's tenant, else of the client's address. An IPv6 client owns a whole /64, so
/// only the network counts.
fn source(request: &Request<'_>, address: IpAddr) -> u32 {
    /// 2^64 divided by the golden ratio: the upper half of a product depends on all bits.
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    let principal = &request.caller.principal;
    let number = match address.to_canonical() {
        _ if principal.has_key() => u64::try_from(principal.tenant.index()).unwrap_or(0) << 32,
        IpAddr::V4(address) => u64::from(address.to_bits()),
        IpAddr::V6(address) => u64::try_from(address.to_bits() >> 64).unwrap_or(0),
    };
    u32::try_from(number.wrapping_add(1).wrapping_mul(SPREAD) >> 32).unwrap_or(0)
}

/// Rank that the request names in `X-Data-Parallel-Rank`.
///
/// # Errors
/// A refusal if no worker of the model has a rank of that number.
fn pin(
    request: &Request<'_>,
    fleet: &FleetSnapshot,
    model: &Model,
) -> Result<Option<DpRank>, Refusal> {
    let pin = rank_pin(&request.head, &request.message)?;
    let Some(DpRank(number)) = pin else { return Ok(None) };
    let ranks = model
        .ranks
        .iter()
        .filter(|&&rank| fleet.serves(rank, Leg::Whole) || fleet.serves(rank, Leg::Decode));
    let numbers = ranks.filter_map(|rank| Some(fleet.ranks.get(rank.index())?.dp_rank.0));
    let highest = numbers.max().unwrap_or(0);
    if number <= highest {
        // On endpoints where the engines ignore the header, the router ignores it too.
        let reads_pin = |&rank: &RankIndex| {
            request.api.endpoint.is_none_or(|endpoint| reaches(fleet, rank, endpoint))
        };
        return Ok(pin.filter(|_| model.ranks.iter().any(reads_pin)));
    }
    Err(Refusal::new(Reason::BadRequest).with_message(format!(
        "`X-Data-Parallel-Rank: {number}` is out of range: the workers of this model have ranks \
         0 to {highest}."
    )))
}

/// The window of the model's pool.
pub(super) fn pass_window(
    shard: &Shard,
    fleet: &ShardFleet,
    phase: &mut BodyPhase,
    pool: PoolIndex,
) -> Result<(), Refusal> {
    let mut stages = shard.routing.stages.borrow_mut();
    stages.window_of(fleet, pool, shard.env.turn_began_at(), &mut phase.new_request)
}

pub(super) fn resumable(
    shard: &Shard,
    request: &Request<'_>,
    phase: &mut BodyPhase,
    held_bytes: usize,
    model: ModelIndex,
) -> Resumable {
    if !request.api.stream || !shard.env.config().retry.mid_stream {
        return Resumable::Off;
    }
    let place = &mut phase.places.shard;
    Resumable::of(phase.endpoint, request.body(), place, held_bytes, model)
}

/// Charges the tokens that the request is expected to need.
pub(super) fn charge(
    shard: &Shard,
    request: &mut Request<'_>,
    fleet: &ShardFleet,
    endpoint: Endpoint,
    facts: &RequestFacts,
) -> Result<(), Refusal> {
    let bytes_per_token = shard.routing.stages.borrow().matching.ratios.of(facts.model);
    let body_bytes = u64::try_from(request.body().len()).unwrap_or(u64::MAX);
    let tenant = request.caller.principal.tenant;
    let output_tokens = facts.output_tokens;
    let Request { buffers, story, .. } = request;
    let api = &buffers.api;
    let charge = Charge { tenant, endpoint, api, body_bytes, bytes_per_token, output_tokens };
    let check = quota::charge(&shard.env, story.bill_mut(), fleet, &charge);
    show_limits(request, check)
}
