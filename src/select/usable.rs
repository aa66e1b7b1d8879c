//! Whether a rank can take a leg at all.

use forebay_base::{NanosSinceStart, RankIndex};
use forebay_fleet::mailbox::Pin;
use forebay_fleet::worker::{FleetSnapshot, LoadBoard, RankLoad, Requester, WorkerState};

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

/// A request that looks for a rank: what a rank must not have done to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Usable<'a> {
    pub(super) fleet: &'a FleetSnapshot,
    pub(super) board: &'a LoadBoard,
    pub(super) requester: Requester,
    /// Ranks that failed the request; their workers are left out.
    pub(super) tried: &'a [RankIndex],
    pub(super) now: NanosSinceStart,
}

impl Usable<'_> {
    /// Up, not tried, not paused for requests like this one: may the rank take the request at all?
    /// A request that has failed elsewhere is no trial: it would fail twice.
    #[inline]
    pub(super) fn holds(&self, index: RankIndex) -> bool {
        let admits = |load: &RankLoad| {
            !load.is_open()
                || load.breaker_admits(self.now, Some(self.requester))
                    && (self.tried.is_empty() || !load.is_open_for(self.requester))
        };
        self.is_left(index) && self.board.rank(index).is_some_and(admits)
    }

    /// Up, and not tried.
    #[inline]
    fn is_left(&self, index: RankIndex) -> bool {
        let Some((rank, worker)) = self.fleet.rank(index) else { return false };
        // A retry goes to another worker: the ranks of one worker share its fate.
        let is_tried = |&tried: &RankIndex| {
            self.fleet.rank(tried).is_some_and(|(tried, _)| tried.worker == rank.worker)
        };
        worker.state == WorkerState::Up && !self.tried.iter().any(is_tried)
    }

    /// May the rank take the request where all that could are paused? A model is never left without
    /// its last rank, and a request that has failed elsewhere not without the last that is left.
    pub(super) fn is_last_resort(&self, index: RankIndex) -> bool {
        self.is_left(index) && self.board.rank(index).is_some_and(|load| load.ejected().is_none())
    }
}
