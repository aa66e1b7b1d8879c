//! The fleet as the control plane knows it, how it changes, and the snapshots that shards get of
//! it.

use super::plan::{self, NO_POOL};
use fastrand::Rng;
use forebay_base::limits::RANKS_MAX;
use forebay_base::{DpRank, PoolIndex, RankIndex};
use forebay_config::{FlowConfig, QueueMode};
use forebay_fleet::worker::{
    Bootstrap, Dialect, FleetSnapshot, KvTransfer, Model, Pool, Rank, Role, RoomLimits, Worker,
    WorkerState, test_support,
};
use std::sync::Arc;

pub(crate) struct Truth {
    pub(crate) generation: u64,
    pub(crate) up: Vec<bool>,
    /// What the workers do.
    duties: Vec<Duty>,
    /// Chance of a worker to serve each of the models beside its first, one in so many.
    spread: u32,
    /// Worker and limits, by rank.
    pub(crate) ranks: Vec<(u16, RoomLimits)>,
    /// Ranks, by model.
    pub(crate) models: Vec<Vec<RankIndex>>,
    pub(crate) mode: QueueMode,
    pub(crate) flow: Arc<FlowConfig>,
    /// Has `promote_after` ever changed? Who has risen by the old one does not fall again.
    pub(crate) promotes_otherwise: bool,
    prefill_tokens_max: u64,
}

/// What a worker does.
#[derive(Clone, Copy)]
struct Duty {
    role: Role,
    is_sglang: bool,
    label: Option<&'static str>,
    is_registered: bool,
}

impl Duty {
    const WHOLE: Self =
        Self { role: Role::Both, is_sglang: false, label: None, is_registered: false };

    /// Those of a fleet: half of them without roles.
    fn draw_all(random: &mut Rng, workers: usize) -> Vec<Self> {
        if random.bool() {
            return vec![Self::WHOLE; workers];
        }
        let (is_sglang, is_mixed) = (random.bool(), random.u32(..8) == 0);
        let (has_labels, has_whole) = (random.bool(), random.bool());
        let draw = |_| Self {
            role: Self::draw_role(random, has_whole),
            is_sglang: if is_mixed { random.bool() } else { is_sglang },
            label: [None, Some("x"), Some("y")][if has_labels { random.usize(..3) } else { 0 }],
            is_registered: random.u32(..8) > 0,
        };
        let mut all: Vec<Self> = (0..workers).map(draw).collect();
        // Mostly there is a pair.
        for (duty, role) in all.iter_mut().zip([Role::Prefill, Role::Decode]) {
            duty.role = role;
        }
        all
    }

    fn draw_role(random: &mut Rng, has_whole: bool) -> Role {
        match random.u32(..if has_whole { 6 } else { 5 }) {
            0 | 1 => Role::Prefill,
            5 => Role::Both,
            _ => Role::Decode,
        }
    }

    fn kv_transfer(self) -> Option<KvTransfer> {
        let bootstrap = Bootstrap { host: "p".into(), port: None, dp_size: 1, follows_room: false };
        let kv_transfer =
            if self.is_sglang { KvTransfer::Bootstrap(bootstrap) } else { KvTransfer::TwoPhase };
        (self.role == Role::Prefill && self.is_registered).then_some(kv_transfer)
    }
}

impl Truth {
    pub(crate) fn draw(random: &mut Rng) -> Self {
        let mode = plan::mode(random);
        let prefill_tokens_max = if random.bool() { 0 } else { random.u64(1..2_000) };
        let workers = random.u16(1..=7);
        let duties = Duty::draw_all(random, usize::from(workers));
        let mut ranks = Vec::new();
        for worker in 0..workers {
            for _ in 0..[1, 1, 1, 2, 3][random.usize(..5)] {
                ranks.push((worker, plan::room(random, prefill_tokens_max)));
            }
        }
        let models = random.usize(1..=3);
        let has_roles = duties.iter().any(|duty| duty.role != Role::Both);
        let mut truth = Self {
            generation: 0,
            up: vec![true; usize::from(workers)],
            duties,
            spread: if has_roles { 1 } else { 3 },
            ranks,
            models: vec![Vec::new(); models],
            mode,
            flow: Arc::new(plan::flow(random, mode)),
            promotes_otherwise: false,
            prefill_tokens_max,
        };
        truth.spread(random);
        truth
    }

    pub(crate) fn is_up(&self, rank: RankIndex) -> bool {
        self.up[usize::from(self.ranks[rank.index()].0)]
    }

    /// Deals the ranks out to the models: each worker serves some of them.
    fn spread(&mut self, random: &mut Rng) {
        for ranks in &mut self.models {
            ranks.clear();
        }
        for worker in 0..self.up.len() {
            let first = random.usize(..self.models.len());
            for (model, ranks) in self.models.iter_mut().enumerate() {
                if model == first || random.u32(..self.spread) == 0 {
                    let own = (0..).zip(&self.ranks).filter(|(_, of)| usize::from(of.0) == worker);
                    ranks.extend(own.map(|(rank, _)| RankIndex(rank)));
                }
            }
        }
    }

    /// Something changes.
    pub(crate) fn change(&mut self, random: &mut Rng) -> &'static str {
        match random.u32(..6) {
            0 | 1 => {
                let worker = random.usize(..self.up.len());
                self.up[worker] = !self.up[worker];
                "worker up or down"
            }
            5 => {
                let worker = random.usize(..self.up.len());
                let duty = &mut self.duties[worker];
                if duty.role == Role::Prefill && random.bool() {
                    duty.is_registered = !duty.is_registered;
                } else if self.spread == 1 {
                    duty.role = Duty::draw_role(random, true);
                }
                "role or registration of a worker"
            }
            2 => {
                let rank = random.usize(..self.ranks.len());
                self.ranks[rank].1 = plan::room(random, self.prefill_tokens_max);
                "limits of a rank"
            }
            3 => {
                let mut flow = plan::flow(random, self.mode);
                if random.bool() {
                    flow.queue.promote_after = self.flow.queue.promote_after;
                }
                self.promotes_otherwise |=
                    flow.queue.promote_after != self.flow.queue.promote_after;
                self.flow = Arc::new(flow);
                "flow"
            }
            _ => {
                self.spread(random);
                "models"
            }
        }
    }

    pub(crate) fn snapshot(&mut self) -> Arc<FleetSnapshot> {
        self.generation += 1;
        let pool_of = self.pools();
        // Its number in its worker.
        let number = |index: usize| {
            let (worker, _) = self.ranks[index];
            let before = self.ranks[..index].iter().filter(|(other, _)| *other == worker);
            DpRank(u32::try_from(before.count()).unwrap())
        };
        let rank = |(index, &(worker, room)): (usize, &(u16, RoomLimits))| {
            let serves = |ranks: &Vec<RankIndex>| ranks.iter().any(|rank| rank.index() == index);
            let model = self.models.iter().position(serves);
            let duty = self.duties[usize::from(worker)];
            Rank {
                dp_rank: number(index),
                role: duty.role,
                kv_transfer: duty.kv_transfer(),
                topology: duty.label.map(Into::into),
                room,
                pool: model.map_or(NO_POOL, |model| of_role(pool_of[model], duty.role)),
                ..test_support::rank(worker)
            }
        };
        let ranks: Vec<Rank> = self.ranks.iter().enumerate().map(rank).collect();
        let pools = self.all_pools(&ranks);
        let model = |(index, ranks): (usize, &Vec<RankIndex>)| Model {
            ranks: ranks.clone(),
            pool: pool_of[index],
            prefill_pool: self.any_prefills(ranks).then(|| of_role(pool_of[index], Role::Prefill)),
            ..test_support::model("model", &[])
        };
        let worker = |(&up, duty): (&bool, &Duty)| Worker {
            dialect: if duty.is_sglang { Dialect::Sglang } else { Dialect::Vllm },
            state: if up { WorkerState::Up } else { WorkerState::Down },
            ..test_support::worker()
        };
        Arc::new(FleetSnapshot {
            generation: self.generation,
            workers: self.up.iter().zip(&self.duties).map(worker).collect(),
            ranks,
            models: self.models.iter().enumerate().map(model).collect(),
            pools,
            flow: Arc::clone(&self.flow),
        })
    }

    fn any_prefills(&self, ranks: &[RankIndex]) -> bool {
        let role = |rank: &RankIndex| self.duties[usize::from(self.ranks[rank.index()].0)].role;
        ranks.iter().any(|rank| role(rank) == Role::Prefill)
    }

    fn all_pools(&self, ranks: &[Rank]) -> Vec<Pool> {
        let any_prefills = self.models.iter().any(|ranks| self.any_prefills(ranks));
        let mut pools = vec![Pool::default(); self.models.len()];
        if any_prefills {
            pools.resize(RANKS_MAX + self.models.len(), Pool::default());
        }
        for model in 0..self.models.len() {
            for number in [model, model + RANKS_MAX] {
                if let Some(pool) = pools.get_mut(number) {
                    *pool = self.pool(ranks, number);
                }
            }
        }
        pools
    }

    fn pool(&self, ranks: &[Rank], pool: usize) -> Pool {
        let served = |rank: &RankIndex| self.models.iter().any(|of| of.contains(rank));
        let here = |rank: &RankIndex| ranks[rank.index()].pool.index() == pool && served(rank);
        let all = (0..ranks.len()).filter_map(RankIndex::try_from_index);
        let members: Vec<_> = all.filter(here).collect();
        let tokens = members.iter().map(|rank| ranks[rank.index()].room.kv_tokens_max);
        let unknown = tokens.clone().any(|tokens| tokens == 0);
        Pool { kv_tokens: if unknown { 0 } else { tokens.sum() }, ranks: members }
    }

    /// Models that share ranks, directly or through others, are one pool.
    fn pools(&self) -> Vec<PoolIndex> {
        let mut pool: Vec<usize> = (0..self.models.len()).collect();
        for _ in 0..self.models.len() {
            for a in 0..self.models.len() {
                for b in 0..self.models.len() {
                    if self.models[a].iter().any(|rank| self.models[b].contains(rank)) {
                        pool[a] = pool[a].min(pool[b]);
                    }
                }
            }
        }
        pool.into_iter().map(|index| PoolIndex::try_from_index(index).unwrap()).collect()
    }
}

fn of_role(pool: PoolIndex, role: Role) -> PoolIndex {
    let prefill = PoolIndex::try_from_index(pool.index() + RANKS_MAX).unwrap();
    if role == Role::Prefill { prefill } else { pool }
}
