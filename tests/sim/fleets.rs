//! The fleet as the control plane knows it, how it changes, and the snapshots that shards get of
//! it.

use super::plan;
use fastrand::Rng;
use forebay_base::{DpRank, RankIndex};
use forebay_config::{Config, QueueMode};
use forebay_fleet::worker::{
    Bootstrap, Dialect, FleetSnapshot, KvTransfer, Model, Rank, Role, RoomLimits, Serving, Worker,
    WorkerState, pools, test_support,
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
    pub(crate) config: Arc<Config>,
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
        let is_sglang = random.bool();
        let is_mixed = random.u32(..8) == 0;
        let has_labels = random.bool();
        let has_whole = random.bool();
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
        let by_speed = RoomLimits::PREFILL_BY_SPEED;
        let prefill_tokens_max = [0, random.u64(1..2_000), by_speed][random.usize(..3)];
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
            config: Arc::new(Config { flow: plan::flow(random, mode), ..Config::default() }),
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
                    flow.queue.promote_after = self.config.flow.queue.promote_after;
                }
                self.promotes_otherwise |=
                    flow.queue.promote_after != self.config.flow.queue.promote_after;
                self.config = Arc::new(Config { flow, ..Config::default() });
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
        // Its number in its worker.
        let number = |index: usize| {
            let (worker, _) = self.ranks[index];
            let before = self.ranks[..index].iter().filter(|(other, _)| *other == worker);
            DpRank(u32::try_from(before.count()).unwrap())
        };
        let rank = |(index, &(worker, room)): (usize, &(u16, RoomLimits))| {
            let duty = self.duties[usize::from(worker)];
            Rank {
                dp_rank: number(index),
                role: duty.role,
                kv_transfer: duty.kv_transfer(),
                topology: duty.label.map(Into::into),
                room,
                // The pool holds what its caches do.
                kv_block_count: u32::try_from(room.kv_tokens_max).unwrap(),
                block_size_tokens: 1,
                ..test_support::rank(worker)
            }
        };
        let model = |ranks: &Vec<RankIndex>| Model {
            ranks: ranks.clone(),
            ..test_support::model("model", &[])
        };
        let worker = |(&up, duty): (&bool, &Duty)| Worker {
            dialect: if duty.is_sglang { Dialect::Sglang } else { Dialect::Vllm },
            state: if up { WorkerState::Up } else { WorkerState::Down },
            ..test_support::worker()
        };
        let mut fleet = FleetSnapshot {
            generation: self.generation,
            workers: self.up.iter().zip(&self.duties).map(worker).collect(),
            ranks: self.ranks.iter().enumerate().map(rank).collect(),
            models: self.models.iter().map(model).collect(),
            pools: Vec::new(),
            config: Arc::clone(&self.config),
            tenants: Arc::default(),
            serving: Serving::default(),
        };
        pools::assign(&mut fleet);
        fleet.check_invariants();
        Arc::new(fleet)
    }
}
