//! The facts of a request that has been read: its model, and what its client says, within what the
//! client may.

use super::stored_response;
use crate::exchange::slot::Slot;
use crate::intake::websocket;
use forebay_base::limits::SPLIT_ITEMS_MAX;
use forebay_base::{DpRank, ModelIndex, NanosSinceStart, RankIndex};
use forebay_disagg::ADDED_BYTES_PER_ROOM;
use forebay_fleet::mailbox::{Caller, Pin, RequestFacts};
use forebay_fleet::worker::{FleetSnapshot, Leg, Model};
use forebay_prompt::parse::{ApiRequest, Endpoint, PromptSource, Reason, Refusal, rank_pin};

use forebay_router::request::{no_worker, wait_deadline};
use forebay_select::{NoModel, output_tokens, reaches};
use std::net::IpAddr;

/// When the request came, and where it has to go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Came {
    /// Its head: the deadline of its client counts from here.
    pub(crate) head_at: NanosSinceStart,
    /// All of it. How long a client takes to send a body gives it no place before others.
    pub(crate) read_at: NanosSinceStart,
    /// The rank that keeps what the request is about.
    pub(crate) kept_at: Option<RankIndex>,
    /// The client's address, as far as it is known.
    pub(crate) address: IpAddr,
}

/// The model a request asks for. Endpoints that engines serve without a model name get the first
/// one.
///
/// # Errors
/// A refusal where no model is found, or the client's key is not for it.
pub(crate) fn model<'a>(
    fleet: &'a FleetSnapshot,
    endpoint: Endpoint,
    slot: &Slot,
) -> Result<(ModelIndex, &'a Model), Refusal> {
    let request = &slot.request;
    let found = forebay_select::model(fleet, endpoint, request);
    // Before anything is said of the model: who may not use it does not hear whether it is there.
    let resolved = found.ok().map(|(_, model)| &*model.name);
    if !matches!(found, Err(NoModel::Missing | NoModel::NoPath)) {
        slot.told.whom.check_model(&fleet.tenants, request, resolved)?;
    }
    if endpoint == Endpoint::WebSocket
        && let Ok((_, model)) = found
        && let Some(listed) = slot.told.whom.only_models(&fleet.tenants)
    {
        websocket::check_models(fleet, model, listed)?;
    }
    found.map_err(|none| match none {
        NoModel::NoneYet => no_worker("those that may serve it have not listed it yet"),
        NoModel::Unknown => Refusal::unknown_model(request.asked_model()),
        NoModel::Missing if endpoint == Endpoint::WebSocket => Refusal::no_model_in_query(),
        NoModel::Missing => Refusal::missing_model(),
        NoModel::NoPath => Refusal::no_path_without_model(),
    })
}

/// A request that may be split is in memory three times: as it came, and once for each leg, there
/// with a room for each prompt.
pub(crate) fn legs_bytes(model: &Model, request: &ApiRequest, body_bytes: usize) -> usize {
    match request.prompt {
        _ if model.prefill_pool.is_none() => body_bytes,
        PromptSource::Batch(_) => {
            // None is shorter than `"",`.
            let prompts_max = (body_bytes / 3).min(SPLIT_ITEMS_MAX as usize);
            let rooms_bytes = prompts_max.saturating_mul(ADDED_BYTES_PER_ROOM);
            body_bytes.saturating_mul(3).saturating_add(rooms_bytes.saturating_mul(2))
        }
        _ => body_bytes.saturating_mul(3),
    }
}

/// Reads them.
///
/// # Errors
/// A refusal when the request asks for a rank that there is not.
pub(crate) fn read(
    slot: &mut Slot,
    fleet: &FleetSnapshot,
    model_index: ModelIndex,
    came: Came,
) -> Result<RequestFacts, Refusal> {
    let pin = match fleet.models.get(model_index.index()) {
        Some(model) => match stored_response::pin(came.kept_at, model)? {
            None => pin(slot, fleet, model)?.map(Pin::Number),
            kept => kept,
        },
        None => None,
    };
    let Slot { head, message, request, told, .. } = slot;
    let rules = told.whom.rules(&fleet.tenants, &fleet.config.flow.queue);
    let hints = rules.read(head, message, request.priority);
    slot.told.priority.granted = hints.told_priority;
    let client_deadline = hints.deadline.map(|deadline| came.head_at.plus(deadline));
    let deadline = wait_deadline(fleet, came.read_at, client_deadline);
    Ok(RequestFacts {
        model: model_index,
        caller: Caller {
            session: slot.told.session,
            source: source(slot, came.address),
            ..hints.caller
        },
        arrived_at: came.read_at,
        deadline,
        client_deadline,
        pin,
        tried: Vec::new(),
        output_tokens: output_tokens(slot.request.max_tokens),
    })
}

/// A number for the tenant that a key shows, else for the client's address: for a network of 64
/// bits of IPv6, since a client has all addresses of one.
fn source(slot: &Slot, address: IpAddr) -> u32 {
    /// 2^64 divided by the golden ratio: the upper half of a product depends on all bits.
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    let whom = &slot.told.whom;
    let number = match address.to_canonical() {
        _ if whom.has_key() => u64::try_from(whom.tenant.index()).unwrap_or(0) << 32,
        IpAddr::V4(address) => u64::from(address.to_bits()),
        IpAddr::V6(address) => u64::try_from(address.to_bits() >> 64).unwrap_or(0),
    };
    u32::try_from(number.wrapping_add(1).wrapping_mul(SPREAD) >> 32).unwrap_or(0)
}

/// The rank that a request asks for.
///
/// # Errors
/// A refusal when no worker of its model has a rank of that number.
fn pin(slot: &Slot, fleet: &FleetSnapshot, model: &Model) -> Result<Option<DpRank>, Refusal> {
    let pin = rank_pin(&slot.head, &slot.message)?;
    let Some(DpRank(number)) = pin else { return Ok(None) };
    let ranks = model
        .ranks
        .iter()
        .filter(|&&rank| fleet.serves(rank, Leg::Whole) || fleet.serves(rank, Leg::Decode));
    let numbers = ranks.filter_map(|rank| Some(fleet.ranks.get(rank.index())?.dp_rank.0));
    let highest = numbers.max().unwrap_or(0);
    if number <= highest {
        // Engines that do not read the rank there ignore the client's, and so does the router.
        let is_heard = |&rank: &RankIndex| {
            slot.request.endpoint.is_none_or(|endpoint| reaches(fleet, rank, endpoint))
        };
        return Ok(pin.filter(|_| model.ranks.iter().any(is_heard)));
    }
    Err(Refusal::new(Reason::BadRequest).with_message(format!(
        "`X-Data-Parallel-Rank: {number}` is out of range: the workers of this model have ranks \
         0 to {highest}."
    )))
}
