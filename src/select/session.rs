//! Policy `session`: a request goes to the anchor of its session, as long as the wait there costs
//! less than computing its prompt elsewhere.

use super::PickRequest;
use super::Policy;
use super::RankCost;
use forebay_base::RankIndex;
use forebay_fleet::worker::{FleetSnapshot, Leg, SessionKey};

/// Is the rank the nearest to the session among the counting ranks? `None` without a session.
#[must_use]
pub fn is_anchor(
    session: Option<SessionKey>,
    fleet: &FleetSnapshot,
    rank: RankIndex,
    counting: impl Iterator<Item = RankIndex>,
) -> Option<bool> {
    let session = session?;
    Some(nearest(session, fleet, counting) == Some(rank))
}

fn nearest(
    session: SessionKey,
    fleet: &FleetSnapshot,
    ranks: impl Iterator<Item = RankIndex>,
) -> Option<RankIndex> {
    ranks.min_by_key(|&rank| distance(session, fleet, rank))
}

fn distance(session: SessionKey, fleet: &FleetSnapshot, rank: RankIndex) -> u64 {
    fleet.ranks.get(rank.index()).map_or(u64::MAX, |rank| session.distance(rank.seat))
}

impl PickRequest<'_> {
    /// The anchor of the session among the ranks, under policy `session`.
    #[must_use]
    pub fn anchor_among(&self, policy: Policy, ranks: &[RankIndex]) -> Option<RankIndex> {
        let session = self.session.filter(|_| policy == Policy::Session)?;
        nearest(session, self.fleet, ranks.iter().copied())
    }

    /// Cost under policy `session`. The anchor is assumed to hold the whole prompt, and all other
    /// ranks none of it. Without a session, the load alone counts.
    pub(super) fn session_cost(&self, rank: RankIndex, most: RankCost) -> RankCost {
        if self.session.is_none() {
            return self.load_only(rank);
        }
        // A decode leg computes no prompt tokens.
        let is_cached = self.anchor == Some(rank) || self.leg == Leg::Decode;
        let tokens = if is_cached { 0 } else { self.prompt.tokens() };
        self.cost_up_to(rank, tokens, most)
    }

    /// Breaks a tie: is the session nearer to `rank` than to `other`? `None`: chance decides.
    pub(super) fn is_nearer(&self, rank: RankIndex, other: RankIndex) -> Option<bool> {
        let session = self.session?;
        Some(distance(session, self.fleet, rank) < distance(session, self.fleet, other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Prices;
    use crate::PromptSize;
    use crate::RoundRobin;
    use crate::pick;
    use forebay_base::NanosSinceStart;
    use forebay_board::{LoadBoard, LoadReports};
    use forebay_fleet::worker::test_support::REQUESTER;
    use forebay_fleet::worker::{Rank, SessionSeat, test_support};
    use forebay_index::{Overlaps, PrefixMarks};
    use std::time::Duration;

    const PROMPT_TOKENS: u64 = 1_000;
    const ALL: [RankIndex; 4] = [RankIndex(0), RankIndex(1), RankIndex(2), RankIndex(3)];

    /// Four ranks with their workers in this order.
    fn fleet(order: [u16; 4]) -> FleetSnapshot {
        let rank = |worker: u16| Rank {
            seat: SessionSeat::of(&format!("w{worker}:1"), forebay_base::DpRank(0)),
            ..test_support::rank(worker)
        };
        FleetSnapshot {
            workers: [(); 4].map(|()| test_support::worker()).to_vec(),
            ranks: order.map(rank).to_vec(),
            ..FleetSnapshot::default()
        }
    }

    fn picked(
        policy: Policy,
        fleet: &FleetSnapshot,
        board: &LoadBoard,
        session: Option<SessionKey>,
        seed: u64,
    ) -> RankIndex {
        let request = PickRequest {
            requester: REQUESTER,
            leg: Leg::Whole,
            ranks: &ALL,
            fleet,
            board,
            reports: &LoadReports::new(Duration::from_secs(5)),
            now: NanosSinceStart(0),
            overlaps: &Overlaps::new(4),
            prices: Prices::LEAST,
            prompt: PromptSize::new(PROMPT_TOKENS * 4, 4.0),
            marks: &PrefixMarks::NONE,
            session,
            anchor: None,
        };
        let request = PickRequest { anchor: request.anchor_among(policy, &ALL), ..request };
        let mut random = fastrand::Rng::with_seed(seed);
        pick(policy, &request, &mut RoundRobin::default(), &mut random).unwrap()
    }

    fn named(number: u32) -> Option<SessionKey> {
        SessionKey::of(&number.to_le_bytes())
    }

    #[test]
    fn routers_agree_on_ten_thousand_sessions() {
        let orders = [[0, 1, 2, 3], [2, 0, 3, 1]];
        let fleets = orders.map(fleet);
        let board = LoadBoard::new();
        for policy in [Policy::Session, Policy::Kv] {
            let mut counts = [0; 4];
            for session in 0..10_000 {
                let [one, other] = [0, 1].map(|at| {
                    let rank =
                        picked(policy, &fleets[at], &board, named(session), u64::from(session));
                    orders[at][rank.index()]
                });
                assert_eq!(one, other, "{policy:?}");
                counts[usize::from(one)] += 1;
            }
            assert!(counts.iter().all(|count| (2_200..2_800).contains(count)), "{counts:?}");
        }
    }

    #[test]
    fn a_session_stays_until_the_wait_costs_more_than_its_prompt_elsewhere() {
        let fleet = fleet([0, 1, 2, 3]);
        let board = LoadBoard::new();
        let at = || picked(Policy::Session, &fleet, &board, named(1), 1);
        let anchor = at();
        board.rank(anchor).unwrap().add_prefill(PROMPT_TOKENS);
        assert_eq!(at(), anchor, "as long as the prompt");
        board.rank(anchor).unwrap().add_prefill(1);
        let second = at();
        assert_ne!(second, anchor);
        // Among equal ranks, the next in the order of the session.
        assert!(
            (0..20)
                .all(|seed| { picked(Policy::Session, &fleet, &board, named(1), seed) == second })
        );
        let distances = ALL.map(|rank| distance(named(1).unwrap(), &fleet, rank));
        let mut sorted = distances;
        sorted.sort_unstable();
        assert_eq!(distances[second.index()], sorted[1]);
        for rank in ALL {
            board.rank(rank).unwrap().add_prefill(2_000);
        }
        assert_eq!(at(), second, "work on all ranks changes nothing");
    }

    #[test]
    fn without_a_session_requests_in_flight_count() {
        let fleet = fleet([0, 1, 2, 3]);
        let board = LoadBoard::new();
        for rank in &ALL[..3] {
            let room = forebay_fleet::worker::RoomDemand::default();
            assert!(board.rank(*rank).unwrap().try_acquire(fleet.room(*rank), room).is_some());
        }
        assert_eq!(picked(Policy::Session, &fleet, &board, None, 1), RankIndex(3));
    }
}
