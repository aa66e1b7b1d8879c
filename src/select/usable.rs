//! Whether a rank can take a leg, whatever its load.

use forebay_base::{NanosSinceStart, RankIndex};
use forebay_board::{LoadBoard, RankLoad};
use forebay_fleet::worker::{FleetSnapshot, Requester, WorkerState};
use forebay_mailbox::Pin;

pub(super) fn is_up(fleet: &FleetSnapshot, index: RankIndex) -> bool {
    fleet.rank(index).is_some_and(|(_, worker)| worker.state == WorkerState::Up)
}

/// Does the pin admit the rank?
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

/// State and history that a rank needs to take a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct UsableRank<'a> {
    pub(super) fleet: &'a FleetSnapshot,
    pub(super) board: &'a LoadBoard,
    pub(super) requester: Requester,
    /// Ranks that failed the request; their workers are left out.
    pub(super) tried: &'a [RankIndex],
    pub(super) now: NanosSinceStart,
}

impl UsableRank<'_> {
    /// May the rank take the request: up, not tried, not paused for the requester? A request that
    /// failed elsewhere is not used as a counted trial: it might fail twice.
    #[inline]
    pub(super) fn holds(&self, index: RankIndex) -> bool {
        let admits = |load: &RankLoad| {
            !load.is_open()
                || load.breaker_admits(self.now, Some(self.requester))
                    && (self.tried.is_empty() || !load.is_restricted_to(self.requester))
        };
        self.is_left(index) && self.board.rank(index).is_some_and(admits)
    }

    /// Up, and not tried.
    #[inline]
    fn is_left(&self, index: RankIndex) -> bool {
        let Some((rank, worker)) = self.fleet.rank(index) else { return false };
        // A retry goes to another worker: ranks of the same worker share its fate.
        let is_tried = |&tried: &RankIndex| {
            self.fleet.rank(tried).is_some_and(|(tried, _)| tried.worker == rank.worker)
        };
        worker.state == WorkerState::Up && !self.tried.iter().any(is_tried)
    }

    /// May the rank take the request although its breaker is open? Used when all ranks are paused:
    /// neither a model nor a retry is left without its last rank.
    pub(super) fn is_last_resort(&self, index: RankIndex) -> bool {
        self.is_left(index) && self.board.rank(index).is_some_and(|load| load.ejected().is_none())
    }
}
