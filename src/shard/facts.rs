//! The facts of a request that has been read: what its client says, within what the client may.

use super::env::Env;
use super::routing::RoutingState;
use super::slot::Slot;
use forebay_base::{DpRank, ModelIndex, NanosSinceStart, RankIndex};
use forebay_fleet::mailbox::RequestFacts;
use forebay_fleet::worker::{FleetSnapshot, Leg, Model};
use forebay_prompt::parse::{Reason, Refusal, rank_pin};
use forebay_router::request::wait_deadline;
use forebay_select::{output_tokens, reaches};

/// When the request came.
#[derive(Clone, Copy, Debug)]
pub(super) struct Came {
    /// Its head: the deadline of its client counts from here.
    pub(super) head_at: NanosSinceStart,
    /// All of it. How long a client takes to send a body gives it no place before others.
    pub(super) read_at: NanosSinceStart,
}

/// Reads them.
///
/// # Errors
/// A refusal when the request asks for a rank that there is not.
pub(super) fn read(
    env: &Env,
    routing: &RoutingState,
    slot: &mut Slot,
    fleet: &FleetSnapshot,
    model_index: ModelIndex,
    came: Came,
) -> Result<RequestFacts, Refusal> {
    let pin = match fleet.models.get(model_index.index()) {
        Some(model) => pin(slot, fleet, model)?,
        None => None,
    };
    let Slot { head, message, request, .. } = slot;
    let hints = routing.hint_rules.borrow().read(head, message, request.priority);
    slot.told_priority = hints.told_priority;
    let client_deadline = hints.deadline.map(|deadline| came.head_at.plus(deadline));
    let first_byte_max = env.config.timeouts.first_byte;
    let deadline = wait_deadline(fleet, came.read_at, client_deadline, first_byte_max);
    Ok(RequestFacts {
        model: model_index,
        caller: hints.caller,
        arrived_at: came.read_at,
        deadline,
        client_deadline,
        pin,
        tried: Vec::new(),
        output_tokens: output_tokens(slot.request.max_tokens),
    })
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
