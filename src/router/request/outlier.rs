//! Failures of ranks beside their siblings, as the fleet has them at this moment.

use super::blame::Judgement;
use forebay_base::{NanosSinceStart, RankIndex};
use forebay_fleet::worker::{Asker, BreakerRules, Failure, FleetSnapshot, LoadBoard, WorkerState};

/// Holds what an attempt has shown against its rank, if that was a failure. `is_trial`: the attempt
/// tried the rank, and the rank is to blame.
pub fn hold_against(
    fleet: &FleetSnapshot,
    board: &LoadBoard,
    (rank, asker, judgement, is_trial): (RankIndex, Asker, Judgement, bool),
    rules: BreakerRules,
    now: NanosSinceStart,
) {
    if let Judgement::Failure { scope, weight, status } = judgement {
        let failure = Failure { asker, scope, weight, status };
        board.hold_against(rank, (failure, is_trial), siblings(fleet, rank, asker), rules, now);
    }
}

/// Ranks that could have taken the request in place of this one.
fn siblings(
    fleet: &FleetSnapshot,
    rank: RankIndex,
    asker: Asker,
) -> impl Iterator<Item = RankIndex> {
    let pool = fleet.ranks.get(rank.index()).map(|rank| rank.pool);
    let model = fleet.models.get(asker.model.index());
    let ranks = model.map_or(&[][..], |model| &model.ranks).iter().copied();
    ranks.filter(move |&other| {
        fleet.rank(other).is_some_and(|(other, worker)| {
            Some(other.pool) == pool && worker.state == WorkerState::Up
        })
    })
}
