//! The prefill ranks that can transfer KV to a decode rank, grouped by part of the network. Each
//! prefill rank is weighed once; each decode rank then compares only the parts: a single part in a
//! fleet without labels.

use super::RankCost;
use super::usable::UsableRank;
use forebay_base::RankIndex;
use forebay_config::PairObstacle;
use forebay_fleet::worker::{FleetSnapshot, Leg, Model};

/// Usable prefill ranks. Reused, so that its capacity stays.
#[derive(Debug, Default)]
pub(super) struct Sources {
    ranks: Vec<RankIndex>,
    parts: Vec<NetworkPart>,
}

/// Prefill ranks with the same neighbours.
#[derive(Clone, Copy, Debug)]
struct NetworkPart {
    /// Any rank of the part.
    of: RankIndex,
    best: PrefillSource,
}

/// The best prefill rank within reach of a decode rank. Any rank with room is better than a full
/// rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PrefillSource {
    pub(super) is_full: bool,
    pub(super) weight: RankCost,
}

impl PrefillSource {
    const UNKNOWN: Self = Self { is_full: true, weight: RankCost(u64::MAX) };
}

impl Sources {
    pub(super) fn clear(&mut self) {
        self.ranks.clear();
        self.parts.clear();
    }

    /// Collects the prefill ranks of the model that may take a leg.
    pub(super) fn collect(&mut self, model: &Model, usable: UsableRank<'_>) {
        self.clear();
        let fleet = usable.fleet;
        let all = || model.ranks.iter().copied().filter(|&rank| fleet.serves(rank, Leg::Prefill));
        self.ranks.extend(all().filter(|&rank| usable.holds(rank)));
        if self.ranks.is_empty() {
            self.ranks.extend(all().filter(|&rank| usable.is_last_resort(rank)));
        }
        for &rank in &self.ranks {
            if !self.parts.iter().any(|part| fleet.are_alike(part.of, rank)) {
                self.parts.push(NetworkPart { of: rank, best: PrefillSource::UNKNOWN });
            }
        }
    }

    pub(super) fn ranks(&self) -> &[RankIndex] {
        &self.ranks
    }

    /// Is any prefill rank near the decode rank?
    pub(super) fn reach(&self, fleet: &FleetSnapshot, decode: RankIndex) -> bool {
        self.parts.iter().any(|part| fleet.are_near(part.of, decode))
    }

    /// Why the first prefill rank cannot be a pair with the decode rank.
    pub(super) fn obstacle(
        &self,
        fleet: &FleetSnapshot,
        decode: RankIndex,
    ) -> Option<PairObstacle> {
        self.parts.iter().find_map(|part| fleet.pair_obstacle(part.of, decode))
    }

    /// Finds the best rank of each part by `measure`.
    pub(super) fn weigh(
        &mut self,
        fleet: &FleetSnapshot,
        measure: impl Fn(RankIndex) -> PrefillSource,
    ) {
        debug_assert!(self.parts.len() <= self.ranks.len(), "a part without a rank");
        for part in &mut self.parts {
            part.best = PrefillSource::UNKNOWN;
        }
        for &rank in &self.ranks {
            let source = measure(rank);
            let alike = |part: &&mut NetworkPart| fleet.are_alike(part.of, rank);
            let part = self.parts.iter_mut().find(alike);
            debug_assert!(part.is_some(), "{rank:?} is in no part");
            if let Some(part) = part {
                part.best = part.best.min(source);
            }
        }
    }

    /// The best source for a decode rank, after [`Self::weigh`]; `None` if no source is near.
    pub(super) fn best_for(
        &self,
        fleet: &FleetSnapshot,
        decode: RankIndex,
    ) -> Option<PrefillSource> {
        let near = self.parts.iter().filter(|part| fleet.are_near(part.of, decode));
        near.map(|part| part.best).min()
    }
}
