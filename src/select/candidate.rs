//! Which ranks may take a leg of a request at all: role, health, breaker, place in the network, not
//! tried before.

use super::sources::Sources;
use super::usable::{Usable, is_up, meets};
use forebay_base::{NanosSinceStart, RankIndex};
use forebay_fleet::mailbox::Pin;
use forebay_fleet::worker::{FleetSnapshot, Leg, LoadBoard, Model, Requester};

/// Ranks that may take the request; reused, keeps its capacity.
#[derive(Debug, Default)]
pub struct Candidates {
    ranks: Vec<RankIndex>,
    /// All ranks that may take the request are paused: the pauses do not count.
    pub(super) are_forced: bool,
    /// Where the decode ranks among them can be handed KV from.
    pub(super) sources: Sources,
    /// Working memory of a binding.
    pub(super) aside: Vec<RankIndex>,
}

/// What a rank is sought for.
#[derive(Clone, Copy, Debug)]
pub struct Seeking<'a> {
    /// The caller and the model of the request: pauses of ranks may speak of these alone.
    pub requester: Requester,
    /// What it has to do. A rank that is sought for a decode leg may also be one that serves whole
    /// requests only: it then takes the pair's place (`select/route.rs` says when).
    pub leg: Leg,
    /// The rank that the other leg has, if it has one: the two must be near each other.
    pub near: Option<RankIndex>,
    /// The ranks that may answer it, where not all may.
    pub pin: Option<Pin>,
    /// Ranks that failed the request; their workers are left out.
    pub tried: &'a [RankIndex],
}

/// Why nothing is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoCandidate {
    /// No worker that serves the model is healthy, or all were tried.
    NoneHealthy,
}

/// What a rank has to be, whatever its state.
#[derive(Clone, Copy)]
struct Fit<'a> {
    fleet: &'a FleetSnapshot,
    seeking: &'a Seeking<'a>,
    /// The ranks that may answer, where not all may.
    pin: Option<Pin>,
}

impl Fit<'_> {
    /// Role, place in the network, pin.
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

    /// The ranks of a model of which all are paused.
    #[cold]
    fn collect_last_resort(
        &self,
        usable: Usable<'_>,
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
    /// Collects the eligible ranks of `model`: of decode ranks those that some usable prefill rank
    /// can hand KV to.
    ///
    /// # Errors
    /// [`NoCandidate`] when none is left.
    pub fn collect(
        &mut self,
        fleet: &FleetSnapshot,
        model: &Model,
        board: &LoadBoard,
        seeking: Seeking<'_>,
        now: NanosSinceStart,
    ) -> Result<(), NoCandidate> {
        let Self { ranks, sources, are_forced, .. } = self;
        let Seeking { requester, tried, .. } = seeking;
        let usable = Usable { fleet, board, requester, tried, now };
        ranks.clear();
        sources.clear();
        // Half of a pair on a worker that is gone, or that has another role now, is none.
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

    /// Takes one out: it had no room.
    pub fn remove(&mut self, rank: RankIndex) {
        self.ranks.retain(|&candidate| candidate != rank);
    }

    /// Keeps those for which `keep` holds.
    pub fn retain(&mut self, mut keep: impl FnMut(RankIndex) -> bool) {
        self.ranks.retain(|&rank| keep(rank));
    }

    /// The only one is this.
    pub fn set_only(&mut self, rank: RankIndex) {
        self.ranks.clear();
        self.ranks.push(rank);
    }

    /// Puts all aside, for [`Self::take_up`].
    pub(super) fn put_aside(&mut self) {
        std::mem::swap(&mut self.ranks, &mut self.aside);
        debug_assert!(!self.aside.is_empty(), "nothing to take up");
    }

    /// Of what lies aside, those for which `keep` holds.
    pub(super) fn take_up(&mut self, keep: impl Fn(&Sources, RankIndex) -> bool) {
        let Self { ranks, sources, aside, .. } = self;
        ranks.clear();
        ranks.extend(aside.iter().copied().filter(|&rank| keep(sources, rank)));
    }
}
