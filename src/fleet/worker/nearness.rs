//! Ranks that can be a pair: by their engines, by the connectors that transfer their KV, and by
//! their parts of the network. Unknown properties exclude no pair.

use super::Dialect;
use super::FleetSnapshot;
use forebay_base::RankIndex;
use forebay_config::KvFlow;

impl FleetSnapshot {
    /// Can these ranks be a pair? Their engines are compatible, and their connectors and labels are
    /// equal where both are known.
    #[must_use]
    pub fn are_near(&self, one: RankIndex, other: RankIndex) -> bool {
        self.places([one, other]).is_some_and(|[one, other]| {
            one.is_sglang == other.is_sglang
                && !differ(one.topology, other.topology)
                && !differ(one.kv_flow, other.kv_flow)
        })
    }

    /// Is every rank that is near `other` also near `one`?
    #[must_use]
    pub fn is_at_least_as_near(&self, one: RankIndex, other: RankIndex) -> bool {
        self.places([one, other]).is_some_and(|[one, other]| {
            one.is_sglang == other.is_sglang
                && (one.topology.is_none() || one.topology == other.topology)
                && (one.kv_flow.is_none() || one.kv_flow == other.kv_flow)
        })
    }

    /// Are the same ranks near both?
    #[must_use]
    pub fn are_alike(&self, one: RankIndex, other: RankIndex) -> bool {
        self.part_of_network(one) == self.part_of_network(other)
    }

    fn places(&self, [one, other]: [RankIndex; 2]) -> Option<[NetworkPlace<'_>; 2]> {
        Some([self.part_of_network(one)?, self.part_of_network(other)?])
    }

    fn part_of_network(&self, index: RankIndex) -> Option<NetworkPlace<'_>> {
        let (rank, worker) = self.rank(index)?;
        Some(NetworkPlace {
            is_sglang: worker.dialect == Dialect::Sglang,
            kv_flow: rank.kv_flow,
            topology: rank.topology.as_deref(),
        })
    }
}

/// Properties that decide which ranks can be a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NetworkPlace<'a> {
    is_sglang: bool,
    kv_flow: Option<KvFlow>,
    topology: Option<&'a str>,
}

/// Are both known and different?
fn differ<T: PartialEq>(one: Option<T>, other: Option<T>) -> bool {
    matches!((one, other), (Some(one), Some(other)) if one != other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::{Rank, test_support};

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
}
