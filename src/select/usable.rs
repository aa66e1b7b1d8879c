//! Whether a rank can take a leg at all.

use forebay_base::{DpRank, NanosSinceStart, RankIndex};
use forebay_fleet::worker::{FleetSnapshot, LoadBoard, WorkerState};

pub(super) fn is_up(fleet: &FleetSnapshot, index: RankIndex) -> bool {
    fleet.rank(index).is_some_and(|(_, worker)| worker.state == WorkerState::Up)
}

/// Has the rank the number in its worker that the request asks for, if it does?
pub(super) fn has_number(fleet: &FleetSnapshot, index: RankIndex, pin: Option<DpRank>) -> bool {
    pin.is_none_or(|pin| fleet.ranks.get(index.index()).is_some_and(|rank| rank.dp_rank == pin))
}

/// Up, not tried, its breaker not open: may the rank take anything at all?
pub(super) fn is_usable(
    fleet: &FleetSnapshot,
    board: &LoadBoard,
    index: RankIndex,
    tried: &[RankIndex],
    now: NanosSinceStart,
) -> bool {
    let Some((rank, worker)) = fleet.rank(index) else { return false };
    // A retry goes to another worker: the ranks of one worker share its fate.
    let tried_worker =
        tried.iter().any(|&t| fleet.rank(t).is_some_and(|(r, _)| r.worker == rank.worker));
    worker.state == WorkerState::Up
        && !tried_worker
        && board.rank(index).is_some_and(|load| load.breaker_admits(now))
}
