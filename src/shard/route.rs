//! select for one request of a model whose ranks have roles: does one rank serve it, or two?

use super::slot::Slot;
use super::state::{Scratch, Shard};
use super::target::{Target, pick_request};
use crate::base::RankIndex;
use crate::handoff::Obstacle;
use crate::parse::Refusal;
use crate::request;
use crate::select::{self, NoPair, Route, RouteRequest, RouteRules, WholeBecause};
use crate::worker::{Handoff, Leg};

/// One rank or two?
pub(super) fn route(
    shard: &Shard,
    slot: &mut Slot,
    target: &Target<'_>,
    scratch: &mut Scratch,
) -> Result<Route, Refusal> {
    let has_no_roles = |&rank: &RankIndex| target.fleet.is_whole_only(rank);
    if target.model.ranks.iter().all(has_no_roles) {
        return Ok(Route::Whole(WholeBecause::NoRoles));
    }
    slot.look_for_handoff(target.endpoint);
    let mut reported = shard.reported.borrow_mut();
    reported.receive();
    let ratio = scratch.bytes_per_token(target.model_index);
    let Scratch { matched, candidates, .. } = scratch;
    let asked = RouteRequest {
        fleet: target.fleet,
        model: target.model,
        request: pick_request(shard, slot, matched, &reported.reports, (shard.now(), ratio)),
        pin: target.journey.pin,
        tried: &target.journey.tried,
        rules: RouteRules::of(&target.fleet.flow.disaggregation),
    };
    let can_hand_off =
        |handoff: &Handoff| slot.handoff.as_ref().is_some_and(|w| w.can_hand_off(handoff));
    select::route(&asked, candidates, can_hand_off).map_err(|none| match none {
        NoPair::CannotHandOff if could_be_whole(target) => {
            request::no_worker("the workers that serve it in one piece are down, or failed it")
        }
        NoPair::CannotHandOff => request::cannot_hand_off(obstacle(slot, target)),
        none => request::no_worker(none.why()),
    })
}

/// Has the model ranks that serve whole requests, whatever their state?
fn could_be_whole(target: &Target<'_>) -> bool {
    target.model.ranks.iter().any(|&rank| target.fleet.serves(rank, Leg::Whole))
}

/// What keeps the request from being split.
fn obstacle(slot: &Slot, target: &Target<'_>) -> Option<Obstacle> {
    let handoff = |rank: &RankIndex| target.fleet.ranks.get(rank.index())?.handoff.as_ref();
    let mut handoffs = target.model.ranks.iter().filter_map(handoff);
    handoffs.find_map(|handoff| slot.handoff.as_ref()?.obstacle(handoff))
}
