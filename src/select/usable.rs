//! Whether a rank can take a leg at all.

use forebay_base::{NanosSinceStart, RankIndex};
use forebay_fleet::mailbox::Pin;
use forebay_fleet::worker::{FleetSnapshot, LoadBoard, WorkerState};

pub(super) fn is_up(fleet: &FleetSnapshot, index: RankIndex) -> bool {
    fleet.rank(index).is_some_and(|(_, worker)| worker.state == WorkerState::Up)
}

/// Is the rank one of those that the pin leaves?
pub(super) fn meets(fleet: &FleetSnapshot, index: RankIndex, pin: Pin) -> bool {
    let Some((rank, worker)) = fleet.rank(index) else { return false };
    match pin {
        Pin::Number(number) => rank.dp_rank == number,
        Pin::Engine(dialect, number) => {
            worker.dialect == dialect && number.is_none_or(|number| rank.dp_rank == number)
        }
        Pin::Beside(other) => {
            fleet.ranks.get(other.index()).is_some_and(|other| other.address == rank.address)
        }
    }
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
