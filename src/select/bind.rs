//! Binds a request to the best rank with room, by a lease. Shards run it for new requests, owners
//! of queues for waiting requests; both by the same rules.

use super::Candidates;
use super::PickRequest;
use super::Policy;
use super::RankCost;
use super::RoundRobin;
use super::lease_cost;
use super::pick::pick_by;
use super::sources::{PrefillSource, Sources};
use forebay_base::{ModelIndex, NanosSinceStart, RankIndex};
use forebay_board::account::{Lease, LeaseCost, LeaseRequest, PromptPrefixes};
use forebay_board::{LoadReports, RankLoad, ShardBoard};
use forebay_config::QueueMode;
use forebay_fleet::worker::{FleetSnapshot, Leg, Requester, RoomDemand, RoomLimits};

/// Weight of cached tokens that a change of target computes again. More than 1, because requests
/// behind them wait too, and because the least of many samples of a changing cost is always too
/// low.
const AGAIN_TIMES: u64 = 8;

/// State for binding requests at a moment.
#[derive(Debug)]
pub struct Binder<'a> {
    pub fleet: &'a FleetSnapshot,
    pub board: &'a ShardBoard,
    /// Load that engines report.
    pub reports: &'a LoadReports,
    pub policy: Policy,
    pub now: NanosSinceStart,
    /// Position of the round-robin policy.
    pub turn: &'a mut RoundRobin,
    /// Breaks ties between equal ranks.
    pub random: &'a mut fastrand::Rng,
}

impl Binder<'_> {
    /// Takes a lease on the best candidate with room; `None` if no candidate has room.
    /// `request.ranks` is ignored. The candidates are used up.
    ///
    /// A decode leg is weighed together with its best prefill source. It gets, in this order:
    ///
    /// 1. a decode rank with room that has a prefill rank with room
    /// 2. a rank that serves the request whole ([`FleetSnapshot::is_whole_only`])
    /// 3. a decode rank with room and a full prefill rank, unless queues are off
    #[must_use]
    pub fn bind(
        &mut self,
        request: &PickRequest<'_>,
        output_tokens: u32,
        candidates: &mut Candidates,
    ) -> Option<Lease> {
        self.place(request, output_tokens, candidates, Self::take)
    }

    /// The rank that [`Self::bind`] would take, for explanations.
    #[must_use]
    pub fn would_bind(
        &mut self,
        request: &PickRequest<'_>,
        output_tokens: u32,
        candidates: &mut Candidates,
    ) -> Option<RankIndex> {
        let choose = |binder: &mut Self, request: &PickRequest<'_>, output_tokens, all: &mut _| {
            binder.choose_with_room(request, output_tokens, all)
        };
        self.place(request, output_tokens, candidates, choose)
    }

    fn place<T>(
        &mut self,
        request: &PickRequest<'_>,
        output_tokens: u32,
        candidates: &mut Candidates,
        take: impl Fn(&mut Self, &PickRequest<'_>, u32, &mut Candidates) -> Option<T>,
    ) -> Option<T> {
        self.keep_with_room(request, output_tokens, candidates);
        if request.leg == Leg::Decode {
            return self.place_pair(request, output_tokens, candidates, take);
        }
        take(self, request, output_tokens, candidates)
    }

    fn place_pair<T>(
        &mut self,
        request: &PickRequest<'_>,
        output_tokens: u32,
        candidates: &mut Candidates,
        take: impl Fn(&mut Self, &PickRequest<'_>, u32, &mut Candidates) -> Option<T>,
    ) -> Option<T> {
        if candidates.ranks().is_empty() {
            return None;
        }
        let fleet = self.fleet;
        // Weighed once: the three choices below use the same sources.
        self.weigh(request, output_tokens, candidates);
        candidates.put_aside();
        let is_full =
            |sources: &Sources, rank| sources.best_for(fleet, rank).map(|best| best.is_full);
        candidates.take_up(|sources, rank| {
            !fleet.is_whole_only(rank) && is_full(sources, rank) == Some(false)
        });
        if let Some(placed) = take(self, request, output_tokens, candidates) {
            return Some(placed);
        }
        candidates.take_up(|_, rank| fleet.is_whole_only(rank));
        let whole = PickRequest { leg: Leg::Whole, ..*request };
        self.keep_with_room(&whole, output_tokens, candidates);
        if let Some(placed) = take(self, &whole, output_tokens, candidates) {
            return Some(placed);
        }
        // The request would have to wait for the prefill rank, and queues are off.
        if fleet.config.flow.queue.mode == QueueMode::Off {
            return None;
        }
        candidates.take_up(|sources, rank| {
            !fleet.is_whole_only(rank) && is_full(sources, rank) == Some(true)
        });
        take(self, request, output_tokens, candidates)
    }

    /// Removes the candidates without room, unless [`Self::choose_with_room`] tests for room.
    fn keep_with_room(
        &self,
        request: &PickRequest<'_>,
        output_tokens: u32,
        candidates: &mut Candidates,
    ) {
        if !self.tests_room(request) {
            candidates.retain(|rank| {
                self.has_room(rank, request.requester.model, || {
                    lease_cost(request, rank, output_tokens)
                })
            });
        }
    }

    /// Does the choice test a rank for room only when the rank would be the best? Not for policies
    /// that choose blindly, from two samples, or by a session's anchor among ranks with room. Not
    /// for the decode ranks of a pair, which are tested once for several choices.
    const fn tests_room(&self, request: &PickRequest<'_>) -> bool {
        self.policy.compares_all() && !matches!(request.leg, Leg::Decode)
    }

    /// A lease on the best candidate that grants it.
    fn take(
        &mut self,
        request: &PickRequest<'_>,
        output_tokens: u32,
        candidates: &mut Candidates,
    ) -> Option<Lease> {
        loop {
            let rank = self.choose_with_room(request, output_tokens, candidates)?;
            debug_assert!(candidates.ranks().contains(&rank), "{rank:?} is no candidate");
            let cost = lease_cost(request, rank, output_tokens);
            let is_forced = candidates.are_forced;
            let limits = self.look().limits(rank);
            let requester = Requester { is_forced, ..request.requester };
            let bytes_per_token = request.prompt.bytes_per_token();
            let prefixes = PromptPrefixes { marks: request.marks, bytes_per_token };
            let wanted = LeaseRequest { rank, requester, cost, limits, prefixes };
            if let Some(lease) = Lease::try_take(self.board, wanted, self.now) {
                debug_assert_eq!(lease.rank(), rank, "a lease of another rank");
                return Some(lease);
            }
            // Another shard was faster. Each iteration removes a candidate, so the loop ends.
            candidates.remove(rank);
        }
    }

    /// The candidate that the policy prefers, whether it has room or not.
    #[must_use]
    pub fn choose(
        &mut self,
        request: &PickRequest<'_>,
        candidates: &Candidates,
    ) -> Option<RankIndex> {
        self.choose_of(request, candidates, |_| true)
    }

    /// The candidate with room that the policy prefers. Only the few ranks that would be the best
    /// so far are tested for room.
    fn choose_with_room(
        &mut self,
        request: &PickRequest<'_>,
        output_tokens: u32,
        candidates: &Candidates,
    ) -> Option<RankIndex> {
        let looks = self.tests_room(request);
        let look = self.look();
        let model = request.requester.model;
        self.choose_of(request, candidates, |rank| {
            let wanted = || lease_cost(request, rank, output_tokens);
            !looks || look.has_room(rank, Some(model), wanted)
        })
    }

    /// The candidate with the least cost, plus `more`, with or without room. `current` stays unless
    /// another rank costs less even if the tokens that it would compute again count
    /// [`AGAIN_TIMES`] more.
    #[must_use]
    pub fn aim(
        &mut self,
        request: &PickRequest<'_>,
        candidates: &Candidates,
        current: Option<RankIndex>,
        more: impl Fn(RankIndex) -> u64,
    ) -> Option<RankIndex> {
        let ranks = candidates.ranks();
        let anchor = request.anchor_among(self.policy, ranks);
        let request = PickRequest { ranks, anchor, ..*request };
        let policy = self.policy;
        let fleet = self.fleet;
        let cost = |rank, most| {
            let own = weight(policy, fleet, &request, candidates, rank, most);
            RankCost(own.0.saturating_add(more(rank)))
        };
        let best = pick_by(policy, &request, self.turn, self.random, |rank, most| {
            Some(cost(rank, most)).filter(|cost| *cost <= most)
        })?;
        let stays = |rank: &RankIndex| {
            let other = cost(best, RankCost::MAX).0;
            let own = cost(*rank, RankCost::MAX).0;
            let again =
                request.uncached_tokens(best).saturating_sub(request.uncached_tokens(*rank));
            ranks.contains(rank) && other.saturating_add(again.saturating_mul(AGAIN_TIMES)) >= own
        };
        Some(current.filter(stays).unwrap_or(best))
    }

    fn choose_of(
        &mut self,
        request: &PickRequest<'_>,
        candidates: &Candidates,
        may_take: impl Fn(RankIndex) -> bool,
    ) -> Option<RankIndex> {
        let ranks = candidates.ranks();
        let anchor = request.anchor_among(self.policy, ranks);
        let request = PickRequest { ranks, anchor, ..*request };
        let policy = self.policy;
        let fleet = self.fleet;
        pick_by(policy, &request, self.turn, self.random, |rank, most| {
            // Until a rank may be taken, room is tested before the cost: so a full fleet is not
            // weighed at all.
            let is_first = most == RankCost::MAX;
            if is_first && !may_take(rank) {
                return None;
            }
            let weight = weight(policy, fleet, &request, candidates, rank, most);
            (weight <= most && (is_first || may_take(rank))).then_some(weight)
        })
    }

    /// Weighs the prefill sources of the candidates, for a decode leg; before [`Self::weight`] and
    /// [`Self::choose`].
    pub fn weigh(
        &self,
        request: &PickRequest<'_>,
        output_tokens: u32,
        candidates: &mut Candidates,
    ) {
        if request.leg == Leg::Decode {
            let anchor = request.anchor_among(self.policy, candidates.sources.ranks());
            let prefill = PickRequest { leg: Leg::Prefill, anchor, ..*request };
            candidates.sources.weigh(self.fleet, |rank| {
                let wanted = || lease_cost(&prefill, rank, output_tokens);
                PrefillSource {
                    is_full: self.is_waited_for(rank)
                        || !self.has_room(rank, prefill.requester.model, wanted),
                    weight: prefill.weight(self.policy, rank, RankCost::MAX),
                }
            });
        }
    }

    /// Cost of the rank under the policy. A decode rank includes its best prefill source.
    #[must_use]
    pub fn weight(
        &self,
        request: &PickRequest<'_>,
        candidates: &Candidates,
        rank: RankIndex,
    ) -> RankCost {
        weight(self.policy, self.fleet, request, candidates, rank, RankCost::MAX)
    }

    /// Removes the candidates with a cache too small for the request, if any candidate is left;
    /// true if it removed some. A request larger than all caches keeps all candidates: it needs
    /// only a free place, and the engine decides on it.
    pub fn keep_able(
        &self,
        request: &PickRequest<'_>,
        output_tokens: u32,
        candidates: &mut Candidates,
    ) -> bool {
        let is_able = |rank| {
            let most = self.fleet.room(rank).kv_tokens_max;
            most == 0 || lease_cost(request, rank, output_tokens).decode_tokens <= most
        };
        let able = candidates.ranks().iter().filter(|&&rank| is_able(rank)).count();
        // Mostly all ranks, or none for a prompt that is longer than each cache.
        let are_left_out = able > 0 && able < candidates.ranks().len();
        if are_left_out {
            candidates.retain(is_able);
            debug_assert_eq!(candidates.ranks().len(), able, "ranks that are not able");
        }
        are_left_out
    }

    /// Does any request wait in the rank's queue? A new request then waits behind it.
    #[must_use]
    pub fn is_waited_for(&self, rank: RankIndex) -> bool {
        let queue = self.fleet.queue_of(rank).and_then(|queue| self.board.queue(queue));
        queue.is_some_and(|cell| cell.waiting() > 0)
    }

    /// Does any waiting request need the rank? Ranks of a pool share a queue, and its requests may
    /// be able to use only some of them.
    #[must_use]
    pub fn is_awaited(&self, rank: RankIndex) -> bool {
        let is_spare = self.board.rank(rank).is_some_and(RankLoad::is_spare);
        !is_spare && self.is_waited_for(rank)
    }

    /// Has the rank room for a request of the model? A hint: only taking the lease decides.
    #[must_use]
    #[inline]
    pub fn has_room(
        &self,
        rank: RankIndex,
        model: ModelIndex,
        cost: impl FnOnce() -> LeaseCost,
    ) -> bool {
        self.look().has_room(rank, Some(model), cost)
    }

    /// Has the rank room for a request of any model? A refusal for a single model leaves room for
    /// other models.
    #[must_use]
    pub fn has_room_for_some(&self, rank: RankIndex, cost: impl FnOnce() -> LeaseCost) -> bool {
        let Some(load) = self.board.rank(rank) else { return false };
        if load.refuses_one_model(None, self.now) {
            return load.has_room(self.look().limits(rank), cost().room_wanted());
        }
        self.look().has_room(rank, None, cost)
    }
}

impl<'a> Binder<'a> {
    const fn look(&self) -> RoomLook<'a> {
        RoomLook { fleet: self.fleet, board: self.board, now: self.now }
    }
}

/// Tests for room at a moment.
#[derive(Clone, Copy)]
struct RoomLook<'a> {
    fleet: &'a FleetSnapshot,
    board: &'a ShardBoard,
    now: NanosSinceStart,
}

impl RoomLook<'_> {
    /// Current limits of the rank.
    #[inline]
    fn limits(self, rank: RankIndex) -> RoomLimits {
        self.board.limits_now(rank, self.fleet.room(rank))
    }

    /// `model`: the model of the request, or `None` for any.
    #[inline(always)]
    fn has_room(
        self,
        rank: RankIndex,
        model: Option<ModelIndex>,
        cost: impl FnOnce() -> LeaseCost,
    ) -> bool {
        let Some(load) = self.board.rank(rank) else { return false };
        let limits = self.limits(rank);
        let now = self.now;
        // The demand costs a division for each rank, and few ranks have such a limit.
        let has_limit = limits.kv_tokens_max > 0;
        let wanted = if has_limit { cost().room_wanted() } else { RoomDemand::default() };
        if !load.has_refused() {
            return load.has_room(limits, wanted);
        }
        load.busy_until(model) <= now && load.has_room(load.room_at(limits, model, now), wanted)
    }
}

#[inline(always)]
fn weight(
    policy: Policy,
    fleet: &FleetSnapshot,
    request: &PickRequest<'_>,
    candidates: &Candidates,
    rank: RankIndex,
    most: RankCost,
) -> RankCost {
    if request.leg != Leg::Decode {
        return request.weight(policy, rank, most);
    }
    if fleet.is_whole_only(rank) {
        return PickRequest { leg: Leg::Whole, ..*request }.weight(policy, rank, most);
    }
    let own = request.weight(policy, rank, most);
    let source = candidates.sources.best_for(fleet, rank);
    source.map_or(own, |source| RankCost(own.0.saturating_add(source.weight.0)))
}
