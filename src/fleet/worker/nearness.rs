//! Ranks that can be a pair: by their engines, by the connectors that transfer their KV, by the
//! pages of their KV, and by their parts of the network. Unknown properties exclude no pair.

use super::Dialect;
use super::FleetSnapshot;
use super::Leg;
use super::Role;
use forebay_base::RankIndex;
use forebay_config::{PairObstacle, PairPlace};

impl FleetSnapshot {
    /// Can these ranks be a pair? Their engines are compatible, and their connectors, pages and
    /// labels are equal where both are known.
    #[must_use]
    pub fn are_near(&self, one: RankIndex, other: RankIndex) -> bool {
        self.places([one, other]).is_some_and(|[one, other]| one.obstacle(&other).is_none())
    }

    /// Why these ranks cannot be a pair.
    #[must_use]
    pub fn pair_obstacle(&self, one: RankIndex, other: RankIndex) -> Option<PairObstacle> {
        self.places([one, other]).and_then(|[one, other]| one.obstacle(&other))
    }

    /// Ranks of a leg that can be a pair with no rank of the other leg of their models, each with
    /// a rank of the other leg. None for a model without ranks of the other leg.
    #[must_use]
    pub fn lone_legs(&self) -> Vec<LoneLeg> {
        let mut found: Vec<LoneLeg> = Vec::new();
        for model in &self.models {
            let of = |role: Role| {
                let has_role = move |rank: &RankIndex| {
                    self.ranks.get(rank.index()).is_some_and(|rank| rank.role == role)
                };
                model.ranks.iter().copied().filter(has_role)
            };
            // A decode rank of vLLM serves whole requests too.
            let decode = of(Role::Decode).filter(|rank| !self.serves(*rank, Leg::Whole));
            let prefill = of(Role::Prefill).map(|rank| (rank, Role::Decode));
            for (rank, other) in prefill.chain(decode.map(|rank| (rank, Role::Prefill))) {
                let is_known = found.iter().any(|lone| lone.rank == rank);
                if is_known || of(other).any(|other| self.are_near(rank, other)) {
                    continue;
                }
                found.extend(of(other).find_map(|other| {
                    let obstacle = self.pair_obstacle(rank, other)?;
                    Some(LoneLeg { rank, other, obstacle })
                }));
            }
        }
        found
    }

    /// Is every rank that is near `other` also near `one`?
    #[must_use]
    pub fn is_at_least_as_near(&self, one: RankIndex, other: RankIndex) -> bool {
        self.places([one, other]).is_some_and(|[one, other]| {
            one.is_sglang == other.is_sglang
                && (one.topology.is_none() || one.topology == other.topology)
                && (one.kv_flow.is_none() || one.kv_flow == other.kv_flow)
                && (one.page_tokens.is_none() || one.page_tokens == other.page_tokens)
        })
    }

    /// Are the same ranks near both?
    #[must_use]
    pub fn are_alike(&self, one: RankIndex, other: RankIndex) -> bool {
        self.part_of_network(one) == self.part_of_network(other)
    }

    fn places(&self, [one, other]: [RankIndex; 2]) -> Option<[PairPlace<'_>; 2]> {
        Some([self.part_of_network(one)?, self.part_of_network(other)?])
    }

    fn part_of_network(&self, index: RankIndex) -> Option<PairPlace<'_>> {
        let (rank, worker) = self.rank(index)?;
        Some(PairPlace {
            is_sglang: Some(worker.dialect == Dialect::Sglang),
            kv_flow: rank.kv_flow,
            topology: rank.topology.as_deref(),
            page_tokens: rank.page_tokens,
        })
    }
}

/// A rank of a leg without a partner, though its model has ranks of the other leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoneLeg {
    pub rank: RankIndex,
    /// A rank of the other leg.
    pub other: RankIndex,
    /// Why the two are no pair.
    pub obstacle: PairObstacle,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::{Rank, test_support};
    use forebay_config::KvFlow;
    use std::num::NonZeroU32;

    fn fleet(places: &[(Option<KvFlow>, Option<&str>)]) -> FleetSnapshot {
        let rank = |&(kv_flow, label): &(Option<KvFlow>, Option<&str>)| Rank {
            kv_flow,
            topology: label.map(Into::into),
            ..test_support::rank(0)
        };
        FleetSnapshot {
            workers: vec![test_support::worker()],
            ranks: places.iter().map(rank).collect(),
            ..FleetSnapshot::default()
        }
    }

    #[test]
    fn ranks_of_different_connectors_are_no_pair() {
        let pull = Some(KvFlow::TwoPhase);
        let push = Some(KvFlow::Push);
        for (one, other, wanted) in [
            ((pull, None), (pull, None), true),
            ((pull, None), (push, None), false),
            ((push, None), (Some(KvFlow::Mooncake), None), false),
            ((pull, None), (None, None), true),
            ((None, None), (None, None), true),
            ((push, Some("a")), (push, Some("b")), false),
            ((push, Some("a")), (push, None), true),
            ((push, Some("a")), (pull, Some("a")), false),
        ] {
            let fleet = fleet(&[one, other]);
            let first = RankIndex(0);
            let second = RankIndex(1);
            assert_eq!(fleet.are_near(first, second), wanted, "{one:?} {other:?}");
            assert_eq!(fleet.are_near(second, first), wanted, "{other:?} {one:?}");
            assert_eq!(fleet.are_alike(first, second), one == other);
        }
    }

    #[test]
    fn who_is_near_to_all_is_at_least_as_near() {
        let places =
            [None, Some(KvFlow::TwoPhase), Some(KvFlow::Push)].map(|kv_flow| (kv_flow, None));
        let fleet = fleet(&places);
        let all = [0, 1, 2].map(RankIndex);
        for one in all {
            for other in all {
                let fleet = &fleet;
                let near = |rank| all.into_iter().filter(move |x| fleet.are_near(*x, rank));
                let covers = near(other).all(|rank| fleet.are_near(rank, one));
                assert_eq!(fleet.is_at_least_as_near(one, other), covers, "{one:?} {other:?}");
            }
        }
    }

    /// SGLang ends a decode engine that meets pages of another size.
    #[test]
    fn ranks_with_pages_of_different_sizes_are_no_pair() {
        let mut fleet = fleet(&[(None, None); 3]);
        for (rank, tokens) in [1, 64, 0].into_iter().enumerate() {
            fleet.ranks[rank].page_tokens = NonZeroU32::new(tokens);
        }
        let all = [0, 1, 2].map(RankIndex);
        for one in all {
            for other in all {
                let is_apart = one.0.max(other.0) == 1 && one != other;
                let obstacle = is_apart.then_some(PairObstacle::Pages);
                assert_eq!(fleet.pair_obstacle(one, other), obstacle, "{one:?} {other:?}");
                let mut near = all.into_iter().filter(|rank| fleet.are_near(*rank, other));
                let covers = near.all(|rank| fleet.are_near(rank, one));
                assert_eq!(fleet.is_at_least_as_near(one, other), covers, "{one:?} {other:?}");
            }
        }
    }

    /// Issue 39: legs that can never meet were found by clients.
    #[test]
    fn a_leg_without_a_partner_is_found_with_the_reason() {
        let mut fleet = fleet(&[(None, Some("a")), (None, Some("b")), (None, None)]);
        fleet.models = vec![test_support::model("m", &[0, 1, 2])];
        for (rank, role) in [Role::Prefill, Role::Decode, Role::Both].into_iter().enumerate() {
            fleet.ranks[rank].role = role;
        }
        let lone = |obstacle| LoneLeg { rank: RankIndex(0), other: RankIndex(1), obstacle };
        assert_eq!(fleet.lone_legs(), [lone(PairObstacle::Topologies)], "decode serves whole");
        fleet.workers[0].dialect = Dialect::Sglang;
        let decode = LoneLeg { rank: RankIndex(1), other: RankIndex(0), ..fleet.lone_legs()[0] };
        assert_eq!(fleet.lone_legs(), [lone(PairObstacle::Topologies), decode]);
        fleet.workers.push(test_support::worker());
        fleet.ranks[0].worker = forebay_base::WorkerIndex(1);
        assert_eq!(fleet.lone_legs()[0], lone(PairObstacle::Engines));
        fleet.ranks[1].worker = forebay_base::WorkerIndex(1);
        fleet.ranks[1].topology = None;
        assert_eq!(fleet.lone_legs(), []);
        fleet.ranks[1].role = Role::Prefill;
        assert_eq!(
            fleet.lone_legs(),
            [],
            "no rank of the other leg at all has a finding of its own"
        );
    }
}
