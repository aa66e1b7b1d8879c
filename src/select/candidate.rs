//! Ranks that may take a leg of a request, whatever their load: role, health, breaker, place in the
//! network, not tried before.

use super::sources::Sources;
use super::usable::{UsableRank, is_up, meets};
use forebay_base::{NanosSinceStart, RankIndex};
use forebay_board::LoadBoard;
use forebay_fleet::worker::{FleetSnapshot, Leg, Model, Requester};
use forebay_mailbox::Pin;

/// Ranks that may take the request. Reused, so that its capacity stays.
#[derive(Debug, Default)]
pub struct Candidates {
    ranks: Vec<RankIndex>,
    /// All ranks that may take the request are paused, so pauses are ignored.
    pub(super) are_forced: bool,
    /// Prefill ranks that can transfer KV to the candidates of a decode leg.
    pub(super) sources: Sources,
    /// Working memory of [`Binder`](super::Binder).
    pub(super) aside: Vec<RankIndex>,
}

/// Requirements of a request for a rank.
#[derive(Clone, Copy, Debug)]
pub struct RankSearch<'a> {
    /// The caller and the model of the request: a rank may be paused for these alone.
    pub requester: Requester,
    /// The leg to serve. For a decode leg, ranks that serve whole requests only are candidates too:
    /// such a rank replaces the pair (see `select/route.rs`).
    pub leg: Leg,
    /// The rank that already serves the other leg; the candidates must be near it.
    pub near: Option<RankIndex>,
    /// Restricts the ranks that may answer; `None`: all may.
    pub pin: Option<Pin>,
    /// Ranks that failed the request; their workers are left out.
    pub tried: &'a [RankIndex],
}

/// Why no candidate is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoCandidate {
    /// No worker that serves the model is healthy, or all were tried.
    NoneHealthy,
}

/// Static requirements of a rank, apart from its state.
#[derive(Clone, Copy)]
struct Fit<'a> {
    fleet: &'a FleetSnapshot,
    seeking: &'a RankSearch<'a>,
    pin: Option<Pin>,
}

impl Fit<'_> {
    /// Does the rank match by role, place in the network, and pin?
    #[inline(always)]
    fn holds(&self, index: RankIndex, sources: &Sources) -> bool {
        let Self { fleet, seeking, pin } = *self;
        let serves = match seeking.leg {
            Leg::Decode => {
                let pairs = fleet.serves(index, Leg::Decode) && sources.reach(fleet, index);
                pairs || fleet.is_whole_only(index)
            }
            leg => fleet.serves(index, leg),
        };
        serves
            && seeking.near.is_none_or(|near| fleet.are_near(index, near))
            && pin.is_none_or(|pin| meets(fleet, index, pin))
    }

    /// Collects paused ranks, if all ranks of a model are paused.
    #[cold]
    fn collect_last_resort(
        &self,
        usable: UsableRank<'_>,
        model: &Model,
        sources: &Sources,
        ranks: &mut Vec<RankIndex>,
    ) {
        let all = model.ranks.iter().copied();
        ranks.extend(
            all.filter(|&index| self.holds(index, sources) && usable.is_last_resort(index)),
        );
    }
}

impl Candidates {
    /// Collects the eligible ranks of `model`. A decode rank is eligible if a usable prefill rank
    /// can transfer KV to it.
    ///
    /// # Errors
    /// [`NoCandidate`] if no rank is eligible.
    pub fn collect(
        &mut self,
        fleet: &FleetSnapshot,
        model: &Model,
        board: &LoadBoard,
        seeking: RankSearch<'_>,
        now: NanosSinceStart,
    ) -> Result<(), NoCandidate> {
        let Self { ranks, sources, are_forced, .. } = self;
        let RankSearch { requester, tried, .. } = seeking;
        let usable = UsableRank { fleet, board, requester, tried, now };
        ranks.clear();
        sources.clear();
        // The other leg's worker is gone or has another role now, so no pair is possible.
        if seeking.near.is_some_and(|near| !is_up(fleet, near) || !fleet.serves(near, Leg::Decode))
        {
            return Err(NoCandidate::NoneHealthy);
        }
        if seeking.leg == Leg::Decode {
            sources.collect(model, usable);
        }
        let pin = seeking.pin.filter(|_| seeking.leg != Leg::Prefill);
        let fit = Fit { fleet, seeking: &seeking, pin };
        for &index in &model.ranks {
            if fit.holds(index, sources) && usable.holds(index) {
                ranks.push(index);
            }
        }
        *are_forced = ranks.is_empty();
        if *are_forced {
            fit.collect_last_resort(usable, model, sources, ranks);
        }
        debug_assert!(ranks.is_sorted(), "ranks of a model are in index order");
        if ranks.is_empty() { Err(NoCandidate::NoneHealthy) } else { Ok(()) }
    }

    /// The ranks, in index order.
    #[must_use]
    pub fn ranks(&self) -> &[RankIndex] {
        &self.ranks
    }

    /// Removes a candidate that had no room.
    pub fn remove(&mut self, rank: RankIndex) {
        self.ranks.retain(|&candidate| candidate != rank);
    }

    pub fn retain(&mut self, mut keep: impl FnMut(RankIndex) -> bool) {
        self.ranks.retain(|&rank| keep(rank));
    }

    /// Makes the rank the only candidate.
    pub fn set_only(&mut self, rank: RankIndex) {
        self.ranks.clear();
        self.ranks.push(rank);
    }

    /// Sets all candidates aside, for [`Self::take_up`].
    pub(super) fn put_aside(&mut self) {
        std::mem::swap(&mut self.ranks, &mut self.aside);
        debug_assert!(!self.aside.is_empty(), "nothing to take up");
    }

    /// Replaces the candidates by the ranks set aside that `keep` accepts.
    pub(super) fn take_up(&mut self, keep: impl Fn(&Sources, RankIndex) -> bool) {
        let Self { ranks, sources, aside, .. } = self;
        ranks.clear();
        ranks.extend(aside.iter().copied().filter(|&rank| keep(sources, rank)));
    }
}
