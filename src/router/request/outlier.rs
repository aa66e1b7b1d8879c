//! Records the failure of a rank, to be compared with its siblings in the current fleet.

use forebay_base::{NanosSinceStart, RankIndex};
use forebay_board::{BreakerRules, FailureWeight, LoadBoard, RankFailure};
use forebay_fleet::worker::{FleetSnapshot, Requester, WorkerState};

pub fn hold_against(
    fleet: &FleetSnapshot,
    board: &LoadBoard,
    failure: RankFailure,
    rules: BreakerRules,
    now: NanosSinceStart,
) {
    let siblings = siblings(fleet, failure.rank, failure.requester);
    let weight = match failure.weight {
        FailureWeight::Refused if !fleet.is_whole_only(failure.rank) => FailureWeight::RefusedLeg,
        weight => weight,
    };
    board.hold_against(RankFailure { weight, ..failure }, siblings, rules, now);
}

/// Other ranks that could have taken the request.
fn siblings(
    fleet: &FleetSnapshot,
    rank: RankIndex,
    requester: Requester,
) -> impl Iterator<Item = RankIndex> {
    let pool = fleet.ranks.get(rank.index()).map(|rank| rank.pool);
    let model = fleet.models.get(requester.model.index());
    let ranks = model.map_or(&[][..], |model| &model.ranks).iter().copied();
    ranks.filter(move |&other| {
        fleet.rank(other).is_some_and(|(other, worker)| {
            Some(other.pool) == pool && worker.state == WorkerState::Up
        })
    })
}
