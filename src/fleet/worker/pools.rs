//! Pools: sets of ranks that share models. The same ranks serve adapters and aliases of a model, so
//! their requests wait in a common queue and are refused together.

use super::fleet::{FleetSnapshot, Pool, WorkerState};
use super::kv_transfer::Role;
use super::model::Model;
use forebay_base::limits::{POOLS_MAX, RANKS_MAX};
use forebay_base::{ModelIndex, PoolIndex, RankIndex};

const _: () = assert!(POOLS_MAX >= 2 * RANKS_MAX);

/// Fills in the pools of a snapshot. A pool has the number of its first model, so the number is
/// stable while models and ranks join. The prefill ranks of a model have a separate pool, with a
/// number higher by [`RANKS_MAX`].
pub fn assign(fleet: &mut FleetSnapshot) {
    let mut pool_of_model: Vec<usize> = (0..fleet.models.len()).collect();
    // Joins models that share a rank, until nothing changes; models are few and mostly separate.
    let mut changed = true;
    while changed {
        changed = false;
        let mut pool_of_rank = vec![usize::MAX; fleet.ranks.len()];
        for (model, pool) in fleet.models.iter().zip(&pool_of_model) {
            for rank in &model.ranks {
                if let Some(least) = pool_of_rank.get_mut(rank.index()) {
                    *least = (*least).min(*pool);
                }
            }
        }
        for (model, pool) in fleet.models.iter().zip(&mut pool_of_model) {
            let least = model.ranks.iter().filter_map(|rank| pool_of_rank.get(rank.index())).min();
            if let Some(&least) = least.filter(|&&least| least < *pool) {
                *pool = least;
                changed = true;
            }
        }
    }
    let is_prefill = |fleet: &FleetSnapshot, rank: &RankIndex| {
        fleet.ranks.get(rank.index()).is_some_and(|rank| rank.role == Role::Prefill)
    };
    let mut served = fleet.models.iter().flat_map(|model| &model.ranks);
    let has_prefill = served.any(|rank| is_prefill(fleet, rank));
    let pool_count = fleet.models.len() + if has_prefill { RANKS_MAX } else { 0 };
    let mut pools = vec![Pool::default(); pool_count];
    for position in 0..fleet.models.len() {
        let (Some(model), Some(&number)) =
            (fleet.models.get(position), pool_of_model.get(position))
        else {
            continue;
        };
        let (prefill, answer): (Vec<RankIndex>, Vec<RankIndex>) =
            model.ranks.iter().partition(|rank| is_prefill(fleet, rank));
        let answers = join(fleet, &mut pools, number, &answer);
        let prefills = (!prefill.is_empty())
            .then(|| join(fleet, &mut pools, number + RANKS_MAX, &prefill))
            .flatten();
        if let (Some(model), Some(answers)) = (fleet.models.get_mut(position), answers) {
            model.pool = answers;
            model.prefill_pool = prefills;
        }
    }
    for pool in &mut pools {
        pool.ranks.sort_unstable();
        pool.ranks.dedup();
        pool.kv_tokens = capacity(fleet, &pool.ranks);
    }
    fleet.pools = pools;
}

/// Adds ranks to a pool.
fn join(
    fleet: &mut FleetSnapshot,
    pools: &mut [Pool],
    number: usize,
    ranks: &[RankIndex],
) -> Option<PoolIndex> {
    let index = PoolIndex::try_from_index(number)?;
    pools.get_mut(number)?.ranks.extend_from_slice(ranks);
    for rank in ranks {
        if let Some(rank) = fleet.ranks.get_mut(rank.index()) {
            rank.pool = index;
        }
    }
    Some(index)
}

/// Is this a pool of prefill ranks?
#[must_use]
pub fn is_prefill(pool: PoolIndex) -> bool {
    pool.index() >= RANKS_MAX
}

/// Sum of the KV capacities of the usable ranks, in tokens; 0 if any capacity is unknown.
fn capacity(fleet: &FleetSnapshot, ranks: &[RankIndex]) -> u64 {
    let usable = ranks.iter().filter_map(|&index| fleet.rank(index));
    let mut tokens =
        usable.filter(|(_, worker)| worker.state == WorkerState::Up).map(|(rank, _)| {
            u64::from(rank.kv_block_count).saturating_mul(u64::from(rank.block_size_tokens))
        });
    tokens
        .try_fold(0_u64, |sum, tokens| (tokens > 0).then(|| sum.saturating_add(tokens)))
        .unwrap_or(0)
}

/// Models of a pool, for names in metrics and messages.
pub fn models(
    fleet: &FleetSnapshot,
    pool: PoolIndex,
) -> impl Iterator<Item = (ModelIndex, &Model)> {
    let of_pool = move |(index, model): (usize, &'_ Model)| {
        (model.pool == pool || model.prefill_pool == Some(pool))
            .then(|| ModelIndex::try_from_index(index))
            .flatten()
    };
    fleet
        .models
        .iter()
        .enumerate()
        .filter_map(move |(index, model)| of_pool((index, model)).map(|index| (index, model)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::test_support::model;
    use crate::worker::{LimitSource, Rank, RoomLimits, SessionSeat, TierRanks};
    use forebay_base::{DpRank, WorkerIndex};
    use std::net::SocketAddr;

    fn rank(worker: u16) -> Rank {
        Rank {
            worker: WorkerIndex(worker),
            dp_rank: DpRank(0),
            dp_size: 1,
            address: SocketAddr::from(([127, 0, 0, 1], 1)),
            block_size_tokens: 16,
            kv_block_count: 100,
            running_max: 0,
            limit_source: LimitSource::Declared,
            kv_feed_live: false,
            feed_suspicion: None,
            losses: None,
            role: Role::Both,
            kv_transfer: None,
            kv_flow: None,
            page_tokens: None,
            topology: None,
            room: RoomLimits::default(),
            pool: PoolIndex(0),
            tiers: TierRanks::default(),
            seat: SessionSeat::default(),
            used_as: None,
        }
    }

    #[test]
    fn models_that_share_ranks_directly_or_not_are_one_pool() {
        let mut fleet = FleetSnapshot {
            models: vec![
                model("alone", &[0]),
                model("chain-end", &[3]),
                model("base", &[1, 2]),
                model("chain", &[2, 3]),
                model("nobody", &[]),
            ],
            ranks: (0..4).map(rank).collect(),
            ..FleetSnapshot::default()
        };
        assign(&mut fleet);
        let pools: Vec<u16> = fleet.models.iter().map(|model| model.pool.0).collect();
        assert_eq!(pools, [0, 1, 1, 1, 4]);
        assert_eq!(fleet.ranks.iter().map(|rank| rank.pool.0).collect::<Vec<_>>(), [0, 1, 1, 1]);
        let members =
            |index: usize| fleet.pools[index].ranks.iter().map(|r| r.0).collect::<Vec<_>>();
        assert_eq!((members(0), members(1)), (vec![0], vec![1, 2, 3]));
        assert_eq!(fleet.used_pools().count(), 2);
        let names: Vec<_> = models(&fleet, PoolIndex(1)).map(|(_, model)| &*model.name).collect();
        assert_eq!(names, ["chain-end", "base", "chain"]);
    }

    #[test]
    fn ranks_that_prefill_have_a_pool_of_their_own() {
        let with_role = |role, worker| Rank { role, ..rank(worker) };
        let mut fleet = FleetSnapshot {
            models: vec![model("alone", &[0]), model("split", &[1, 2, 3]), model("lost", &[4])],
            ranks: vec![
                rank(0),
                with_role(Role::Prefill, 1),
                with_role(Role::Decode, 2),
                with_role(Role::Prefill, 3),
                with_role(Role::Prefill, 4),
                with_role(Role::Both, 5),
            ],
            ..FleetSnapshot::default()
        };
        assign(&mut fleet);
        let prefill = |number: usize| PoolIndex::try_from_index(number + RANKS_MAX);
        let shown: Vec<_> = fleet.models.iter().map(|m| (m.pool.0, m.prefill_pool)).collect();
        assert_eq!(shown, [(0, None), (1, prefill(1)), (2, prefill(2))]);
        let members = |pool: Option<PoolIndex>| fleet.pool(pool.unwrap()).unwrap().ranks.clone();
        assert_eq!(members(Some(PoolIndex(1))), [RankIndex(2)]);
        assert_eq!(members(prefill(1)), [RankIndex(1), RankIndex(3)]);
        assert_eq!(members(Some(PoolIndex(2))), [], "nobody answers for it");
        let of_rank: Vec<_> = fleet.ranks.iter().take(5).map(|rank| rank.pool).collect();
        let wanted = [Some(PoolIndex(0)), prefill(1), Some(PoolIndex(1)), prefill(1), prefill(2)];
        assert_eq!(of_rank.into_iter().map(Some).collect::<Vec<_>>(), wanted);
        assert_eq!(fleet.used_pools().count(), 4);
        let has: Vec<bool> = (0..7).map(|index| fleet.has(RankIndex(index))).collect();
        assert_eq!(has, [true, true, true, true, true, false, false], "the last one is gone");
        assert!(is_prefill(fleet.ranks[1].pool) && !is_prefill(fleet.ranks[2].pool));
        let names: Vec<_> = models(&fleet, of_prefill(1)).map(|(_, model)| &*model.name).collect();
        assert_eq!(names, ["split"]);
    }

    fn of_prefill(number: usize) -> PoolIndex {
        PoolIndex::try_from_index(number + RANKS_MAX).unwrap()
    }
}
