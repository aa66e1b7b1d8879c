//! The fleet as shards see it: a new snapshot with every change.

use super::{Fleet, KnownRank, KnownWorker, OperatorOrder};
use forebay_base::{DpRank, PoolIndex, RankIndex, WorkerIndex};
use forebay_config::Fallback;
use forebay_discovery::{DescribedRank, Description, FoundText, KvSource, ServedModel};
use forebay_fleet::worker::pools;
use forebay_fleet::worker::{
    ANY_MODEL, EngineLimits, EngineLosses, EngineTexts, FleetSnapshot, KvTransfer, Model,
    ModelKind, ModelText, PlacesLimit, Rank, Role, RoomLimits, Serving, SessionSeat, TierRanks,
};
use forebay_index::{BlockKey, BlockRoot, ModelRoots, RootName};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

/// A worker, with its description.
pub(crate) struct FoundWorker<'a> {
    pub(crate) name: &'a str,
    /// `None`: it has not answered yet.
    pub(crate) description: Option<&'a Description>,
    /// Why it is not up, after a failed check.
    pub(crate) trouble: Option<&'a str>,
    pub(crate) texts: &'a BTreeMap<Arc<str>, FoundText>,
    /// The limit of its ranks; if they differ, the first rank's limit.
    pub(crate) places: PlacesLimit,
    /// The engine of a rank announces KV events no more.
    pub(crate) has_lost_events: bool,
}

impl FoundWorker<'_> {
    /// The worker is described, by an engine and not by another server at its address.
    pub(crate) fn has_answered(&self) -> bool {
        self.description.is_some_and(|description| description.listing.unwell().is_none())
    }
}

/// A present rank, with its address.
struct ShownRank<'a> {
    worker: &'a KnownWorker,
    description: &'a Description,
    rank: &'a DescribedRank,
    position: usize,
}

impl<'a> ShownRank<'a> {
    /// `None` for a rank that its worker no longer has.
    fn of(worker: &'a KnownWorker, number: u32) -> Option<Self> {
        let description = worker.description.as_ref()?;
        let mut ranks = description.ranks.iter().enumerate();
        let (position, rank) = ranks.find(|(_, rank)| rank.number == number)?;
        Some(Self { worker, description, rank, position })
    }

    fn is_behind_one_port(&self) -> bool {
        !self.description.server.port_per_rank && self.description.ranks.len() > 1
    }

    /// Behind a port, an engine expects a position. Across ports, engines number their ranks.
    fn dp_rank(&self) -> DpRank {
        let position = u32::try_from(self.position).unwrap_or(u32::MAX);
        DpRank(if self.is_behind_one_port() { position } else { self.rank.number })
    }

    fn page_tokens(&self) -> Option<NonZeroU32> {
        NonZeroU32::new(self.description.server.page_tokens)
    }

    fn dp_size(&self) -> u32 {
        let count = u32::try_from(self.description.ranks.len()).unwrap_or(u32::MAX);
        if self.is_behind_one_port() { count } else { 1 }
    }

    fn seat(&self) -> SessionSeat {
        SessionSeat::of(&self.worker.shown.authority, self.dp_rank())
    }

    fn address(&self) -> SocketAddr {
        let mut address = self.worker.shown.address;
        if self.description.server.port_per_rank {
            let offset = u16::try_from(self.position).unwrap_or(u16::MAX);
            address.set_port(address.port().saturating_add(offset));
        }
        address
    }
}

impl Fleet {
    /// The operator's order on each worker so far, by its address.
    pub(crate) fn orders(&self) -> impl Iterator<Item = (&str, OperatorOrder)> {
        self.workers.iter().map(|known| (&*known.shown.authority, known.order))
    }

    /// Present workers, with their descriptions.
    pub(crate) fn found(&self) -> impl Iterator<Item = (WorkerIndex, FoundWorker<'_>)> {
        let present = self.workers.iter().enumerate();
        let present = present.filter(|(_, known)| known.order != OperatorOrder::Gone);
        let lost: BTreeSet<WorkerIndex> = self
            .ranks
            .iter()
            .filter(|rank| self.lost_events(rank).is_some())
            .map(|rank| rank.worker)
            .collect();
        present.filter_map(move |(index, known)| {
            let worker = WorkerIndex::try_from_index(index)?;
            let description = known.description.as_ref();
            let first = description.and_then(|description| description.ranks.first());
            let running_max = first.and_then(|rank| rank.running_max).unwrap_or(0);
            let found = FoundWorker {
                name: &known.shown.name,
                description,
                trouble: known.models.trouble.as_deref(),
                texts: &known.texts,
                places: self.places_limit(Some(known), description, running_max),
                has_lost_events: lost.contains(&worker),
            };
            Some((worker, found))
        })
    }

    /// What the engine of the rank had before.
    fn losses(&self, known: &KnownRank) -> Option<Arc<EngineLosses>> {
        let losses = EngineLosses {
            kv_events: self.lost_events(known).cloned(),
            models: self.dropped_models(known.worker),
        };
        (losses != EngineLosses::default()).then(|| Arc::new(losses))
    }

    /// The current fleet, as a new generation, still without the access of clients.
    pub(crate) fn snapshot(&mut self) -> FleetSnapshot {
        self.generation += 1;
        self.choose_engine_users();
        let any = self.workers_of_any();
        let mut snapshot = FleetSnapshot {
            generation: self.generation,
            workers: self.workers.iter().map(KnownWorker::shown).collect(),
            ranks: self.ranks.iter().map(|rank| self.shown_rank(rank)).collect(),
            models: self.models.names.iter().map(|name| self.shown_model(name, &any)).collect(),
            pools: Vec::new(),
            config: Arc::clone(&self.config),
            tenants: Arc::default(),
            serving: Serving {
                awaits_models: self.awaits_models(),
                is_incomplete: self.has_undescribed(),
                ..Serving::default()
            },
        };
        pools::assign(&mut snapshot);
        self.add_suspicions(&mut snapshot);
        snapshot.check_invariants();
        snapshot
    }

    fn shown_rank(&self, known: &KnownRank) -> Rank {
        let worker = self.workers.get(known.worker.index());
        let place = worker.and_then(|worker| ShownRank::of(worker, known.number));
        let described = place.as_ref().map(|place| place.rank);
        // A rank that is gone prefills and has no KV transfer, so it serves no leg.
        let role = place.as_ref().map_or(Role::Prefill, |place| place.description.role);
        let seen = known.block_size_seen;
        let described_size = described.map_or(0, |rank| rank.block_size_tokens);
        let block_size_tokens = if seen > 0 { seen } else { described_size };
        let kv_block_count = described.map_or(0, |rank| rank.kv_block_count);
        let running_max = described.and_then(|rank| rank.running_max).unwrap_or(0);
        let kv_tokens = u64::from(kv_block_count).saturating_mul(u64::from(block_size_tokens));
        let is_bound = worker.is_some_and(KnownWorker::has_bound_overlap);
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        let places =
            self.places_limit(worker, place.as_ref().map(|place| place.description), running_max);
        Rank {
            worker: known.worker,
            dp_rank: place.as_ref().map_or(DpRank(known.number), ShownRank::dp_rank),
            dp_size: place.as_ref().map_or(1, ShownRank::dp_size),
            address: place.as_ref().map_or(nowhere, ShownRank::address),
            block_size_tokens,
            kv_block_count,
            running_max,
            limit_source: places.source,
            kv_feed_live: known.feed_live,
            feed_suspicion: None,
            losses: self.losses(known),
            role,
            kv_transfer: place.as_ref().and_then(|place| self.kv_transfer(place)),
            kv_flow: worker.and_then(|worker| worker.kv_flow(role)),
            topology: worker.and_then(|worker| worker.configured.topology.clone()),
            page_tokens: place.as_ref().and_then(ShownRank::page_tokens),
            room: match worker.map(|worker| worker.order) {
                Some(OperatorOrder::Sleep(_)) => RoomLimits::CLOSED,
                _ => self.room(role, places, kv_tokens),
            },
            pool: PoolIndex(0),
            tiers: TierRanks { is_bound: known.tiers.is_bound || is_bound, ..known.tiers },
            seat: place.as_ref().map(ShownRank::seat).unwrap_or_default(),
            used_as: worker.and_then(|worker| self.used_as(worker, known.number)),
        }
    }

    /// The request limit of a rank, given the declared number.
    fn places_limit(
        &self,
        worker: Option<&KnownWorker>,
        description: Option<&Description>,
        running_max: u32,
    ) -> PlacesLimit {
        let configured = worker.map(|worker| &worker.configured);
        let reports_load = |description: &Description| {
            configured.is_some_and(|worker| description.reports_load(worker.load_source))
        };
        let engine =
            EngineLimits { running_max, reports_load: description.is_some_and(reports_load) };
        let own = configured.and_then(|worker| worker.concurrency_max);
        let role = description.map_or(Role::Prefill, |description| description.role);
        PlacesLimit::of(&self.config.flow, own, role, engine)
    }

    fn kv_transfer(&self, place: &ShownRank<'_>) -> Option<KvTransfer> {
        let is_unknown = matches!(place.description.source, Some(KvSource::PushUnknown(_)));
        if is_unknown && self.config.flow.disaggregation.fallback == Fallback::TwoPhase {
            // Answers of a push connector can be passed on like a pull connector's (vLLM 0.32,
            // `push_scheduler.py`).
            return Some(KvTransfer::TwoPhase);
        }
        place.worker.registration.ranks.get(place.position)?.clone()
    }

    /// Room of a rank. The limit of an engine that declares nothing is learned from its load
    /// reports; an engine without reports queues by itself, as it does without a router.
    fn room(&self, role: Role, places: PlacesLimit, kv_tokens: u64) -> RoomLimits {
        let queue = &self.config.flow.queue;
        let split = &self.config.flow.disaggregation;
        let (prefill_tokens, kv_use_percent) = match role {
            Role::Both => (None, None),
            Role::Prefill => (split.prefill_tokens_max, split.prefill_kv_use_percent),
            Role::Decode => (None, split.decode_kv_use_percent),
        };
        let percent = u64::from(kv_use_percent.unwrap_or(queue.kv_use_percent));
        RoomLimits {
            places_max: places.places_max,
            kv_tokens_max: kv_tokens.saturating_mul(percent) / 100,
            prefill_tokens_max: RoomLimits::prefill_tokens_max(
                prefill_tokens.or(queue.prefill_tokens_max),
                queue.mode,
            ),
        }
    }

    /// `any`: workers that take any model.
    fn shown_model(&self, name: &Arc<str>, any: &[WorkerIndex]) -> Model {
        let mut model = Model {
            name: Arc::clone(name),
            card_json: self.card_of(name),
            ranks: Vec::new(),
            pool: PoolIndex(0),
            prefill_pool: None,
            roots: ModelRoots::new(self.seed, name),
            text: EngineTexts::from_list(self.texts_of(name, any)),
            kind: ModelKind::Base,
        };
        for (index, known) in self.ranks.iter().enumerate() {
            let Some(worker) = self.workers.get(known.worker.index()) else { continue };
            let Some(description) = &worker.description else { continue };
            let takes_any = any.contains(&known.worker);
            let Some(served) = worker.serves(name, takes_any) else { continue };
            if ShownRank::of(worker, known.number).is_none() {
                continue;
            }
            let Some(rank) = RankIndex::try_from_index(index) else { continue };
            model.ranks.push(rank);
            model.roots.windowed.extend(known.tiers.windowed(rank));
            if served.is_some_and(|served| served.parent.is_some()) {
                model.kind = ModelKind::Adapter;
            }
            let root = BlockRoot {
                block_size_tokens: self.shown_rank(known).block_size_tokens,
                key: self.root_key(description, served, self.shown_rank(known).block_size_tokens),
            };
            if root.block_size_tokens > 0 && !model.roots.blocks.contains(&root) {
                model.roots.blocks.push(root);
            }
        }
        if model.ranks.is_empty() {
            model.kind = self.kind_without_ranks(name, any);
        }
        model
    }

    fn kind_without_ranks(&self, name: &str, any: &[WorkerIndex]) -> ModelKind {
        if self.workers.iter().any(|worker| worker.is_to_serve(name)) {
            return ModelKind::Expected;
        }
        let is_renamed = self.config.models.iter().any(|table| table.name == name);
        let dropped_by = self.dropped_by(name).filter(|_| any.is_empty() && !is_renamed);
        dropped_by.map_or(ModelKind::Base, ModelKind::Dropped)
    }

    /// The texts of the workers that have a text for the name: that of the first configured worker
    /// first, and then the first text of each other engine's rules.
    fn texts_of(&self, name: &str, any: &[WorkerIndex]) -> Vec<Arc<ModelText>> {
        let found = self.workers.iter().enumerate().filter_map(|(index, worker)| {
            let takes_any = any.iter().any(|one| one.index() == index);
            let served = worker.serves(name, takes_any)?;
            let base = served.map_or_else(|| ANY_MODEL.into(), ServedModel::base_name);
            worker.texts.get(&base)?.text.as_ref()
        });
        let mut texts: Vec<Arc<ModelText>> = Vec::new();
        for text in found {
            if texts.iter().all(|known| known.rules != text.rules) {
                texts.push(Arc::clone(text));
            }
        }
        texts
    }

    fn root_key(
        &self,
        description: &Description,
        served: Option<&ServedModel>,
        block_size_tokens: u32,
    ) -> BlockKey {
        let adapter = served.filter(|served| served.parent.is_some());
        let name = RootName {
            model: &description.root_model(),
            block_size_tokens,
            lora: adapter.map_or("", |served| &served.name),
            cache_salt: "",
        };
        BlockKey::root(self.seed, &name)
    }
}
