//! The fleet as the control plane knows it, and the snapshots that shards see. Sans-IO: descriptions and health in,
//! snapshots and feed plans out. Worker, rank and model indices never change their meaning.

use super::described::{Announced, DescribedRank, Description, ServedModel};
use super::kv_events::FeedNotice;
use super::load::{LoadPlan, PlannedRank, Source};
use super::model_text::FoundText;
use super::tier_numbers::GivenNumbers;
use crate::base::{DpRank, RankIndex, WorkerIndex};
use crate::block::{BlockKey, KeySeed, RootName};
use crate::config::{Config, LoadSource, WorkerUrl};
use crate::worker::{
    BlockRoot, Dialect, FleetSnapshot, GuessRoots, Model, ModelText, Rank, Role, TierRanks, Worker,
    WorkerState,
};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

/// Name of the model that stands for any name: used where a worker's models are not known.
pub const ANY_MODEL: &str = "*";
/// Most model names of one fleet; further ones are left out with a log line.
const FLEET_MODELS_MAX: usize = 1_024;

/// Everything known.
#[derive(Debug)]
pub(super) struct Fleet {
    seed: KeySeed,
    generation: u64,
    workers: Vec<KnownWorker>,
    ranks: Vec<KnownRank>,
    models: Vec<Arc<str>>,
    tier_numbers: Rc<GivenNumbers>,
}

#[derive(Debug)]
struct KnownWorker {
    shown: Worker,
    concurrency_max: u32,
    load_source: LoadSource,
    description: Option<Description>,
    /// By model name; adapters use their base model's.
    texts: BTreeMap<Arc<str>, FoundText>,
}

#[derive(Debug)]
struct KnownRank {
    worker: WorkerIndex,
    dp_rank: DpRank,
    /// From KV events; 0 while none says.
    block_size_seen: u32,
    feed_live: bool,
    tiers: TierRanks,
}

impl KnownWorker {
    /// What was believed to be in its caches is not believed any more.
    fn lose_caches(&mut self) {
        self.shown.cache_generation = self.shown.cache_generation.wrapping_add(1);
    }
}

/// What a rank's feed has to be; a feed is replaced when its plan changes.
#[derive(Clone, Debug)]
pub(super) struct FeedPlan {
    pub(super) rank: RankIndex,
    pub(super) dp_rank: DpRank,
    pub(super) worker: Arc<str>,
    /// The worker as `host:port`, whatever it is called.
    pub(super) authority: Arc<str>,
    pub(super) events: Announced,
    /// As the engine describes it; 0 while unknown.
    pub(super) block_size_tokens: u32,
    /// Name under which the rank's blocks are rooted.
    pub(super) model: Arc<str>,
    pub(super) text: Option<Arc<ModelText>>,
    /// The engine is known to use its lower tiers.
    pub(super) expects_tiers: bool,
}

impl FeedPlan {
    /// True if a feed of the other plan would do the same.
    pub(super) fn same_as(&self, other: &Self) -> bool {
        let text = |plan: &Self| plan.text.as_ref().map(Arc::as_ptr);
        self.events == other.events && self.model == other.model && text(self) == text(other)
    }
}

/// What changed with a description, for the log.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Left {
    /// Ranks that found no room.
    pub(super) ranks: usize,
    /// Model names that found no room.
    pub(super) models: usize,
}

impl Fleet {
    /// The configured workers, none of which has answered yet.
    pub(super) fn new(config: &Config, seed: KeySeed) -> Self {
        let workers = config.workers.iter().filter_map(|worker| {
            let url = WorkerUrl::parse(&worker.url).ok()?;
            let name = worker.name.clone().unwrap_or_else(|| url.authority.clone());
            let shown = Worker {
                name: name.into(),
                authority: url.authority.into(),
                address: SocketAddr::from(([0, 0, 0, 0], 0)),
                dialect: Dialect::Openai,
                state: WorkerState::Unknown,
                api_key: worker.api_key.as_deref().map(Into::into),
                cache_generation: 0,
            };
            let concurrency_max = worker.concurrency_max.unwrap_or(config.rank_concurrency_max);
            let load_source = match worker.load_source.unwrap_or(config.load.source) {
                // Without health checks nothing is asked of workers unless it is asked for.
                LoadSource::Auto if !config.health.enabled => LoadSource::Off,
                source => source,
            };
            let (description, texts) = (None, BTreeMap::new());
            Some(KnownWorker { shown, concurrency_max, load_source, description, texts })
        });
        let workers = workers.collect();
        Self {
            seed,
            generation: 0,
            workers,
            ranks: Vec::new(),
            models: Vec::new(),
            tier_numbers: Rc::default(),
        }
    }

    /// Takes a worker's description.
    pub(super) fn describe(
        &mut self,
        worker: WorkerIndex,
        address: SocketAddr,
        description: Description,
        texts: BTreeMap<Arc<str>, FoundText>,
    ) -> Left {
        let mut left = Left::default();
        for dp_rank in 0..description.ranks.len() {
            let dp_rank = DpRank(u32::try_from(dp_rank).unwrap_or(u32::MAX));
            if self.rank_index(worker, dp_rank).is_some() {
                continue;
            }
            if self.ranks.len() >= self.tier_numbers.ranks_max() {
                left.ranks += 1;
                continue;
            }
            let tiers = TierRanks::default();
            let new = KnownRank { worker, dp_rank, block_size_seen: 0, feed_live: false, tiers };
            self.ranks.push(new);
            self.tier_numbers.set_rank_count(self.ranks.len());
        }
        for name in names(&description) {
            if self.models.contains(&name) {
                continue;
            }
            if self.models.len() >= FLEET_MODELS_MAX {
                left.models += 1;
                continue;
            }
            self.models.push(name);
        }
        if let Some(known) = self.workers.get_mut(worker.index()) {
            // Only what a restart may change and nothing else does: model cards carry the time of the question.
            let before = known.description.as_ref().map(|before| &before.ranks);
            let is_other = known.shown.address != address || before != Some(&description.ranks);
            if before.is_some() && is_other {
                known.lose_caches();
            }
            known.shown.address = address;
            known.shown.dialect = description.dialect;
            known.description = Some(description);
            known.texts = texts;
        }
        left
    }

    /// True if this is what some worker's text of that model is known by: then the log has it.
    pub(super) fn is_noted(&self, model: &str, note: &str) -> bool {
        let mut found = self.workers.iter().filter_map(|worker| worker.texts.get(model));
        found.any(|found| found.note == note)
    }

    /// Takes a worker's health; true if it changed.
    pub(super) fn set_state(&mut self, worker: WorkerIndex, state: WorkerState) -> bool {
        let Some(known) = self.workers.get_mut(worker.index()) else { return false };
        let before = std::mem::replace(&mut known.shown.state, state);
        if before == WorkerState::Up && state != WorkerState::Up {
            known.lose_caches();
        }
        before != state
    }

    /// Takes what a feed says; true if it changed.
    pub(super) fn set_feed(&mut self, notice: FeedNotice) -> bool {
        let Some(known) = self.ranks.get_mut(notice.rank.index()) else { return false };
        let before = (known.feed_live, known.block_size_seen, known.tiers);
        known.feed_live = notice.live;
        known.block_size_seen = notice.block_size_tokens;
        known.tiers = notice.tiers;
        before != (known.feed_live, known.block_size_seen, known.tiers)
    }

    /// Where feeds get numbers for their ranks' lower tiers.
    pub(super) fn tier_numbers(&self) -> Rc<GivenNumbers> {
        Rc::clone(&self.tier_numbers)
    }

    /// The feeds that should run now.
    pub(super) fn feed_plans(&self) -> Vec<FeedPlan> {
        let plan = |(index, known): (usize, &KnownRank)| {
            let rank = RankIndex::try_from_index(index)?;
            let worker = self.workers.get(known.worker.index())?;
            let description = worker.description.as_ref()?;
            let described = description.ranks.get(position(known.dp_rank))?;
            let model = root_model(description);
            Some(FeedPlan {
                rank,
                dp_rank: known.dp_rank,
                worker: Arc::clone(&worker.shown.name),
                authority: Arc::clone(&worker.shown.authority),
                block_size_tokens: described.block_size_tokens,
                events: described.events.clone()?,
                text: worker.texts.get(&model).and_then(|found| found.text.clone()),
                model,
                expects_tiers: described.expects_tiers,
            })
        };
        self.ranks.iter().enumerate().filter_map(plan).collect()
    }

    /// The load reports that should be had now.
    pub(super) fn load_plans(&self) -> Vec<LoadPlan> {
        let plan = |(index, known): (usize, &KnownWorker)| {
            let worker = WorkerIndex::try_from_index(index)?;
            let described = &known.description.as_ref()?.ranks;
            let planned = |(dp_rank, rank): (u32, &DescribedRank)| {
                let tokens = u64::from(rank.kv_block_count) * u64::from(rank.block_size_tokens);
                Some(PlannedRank {
                    rank: self.rank_index(worker, DpRank(dp_rank))?,
                    capacity_tokens: tokens,
                    publisher: rank.load.clone(),
                })
            };
            let ranks: Vec<_> = (0_u32..).zip(described).map(planned).collect();
            Some(LoadPlan {
                worker,
                name: Arc::clone(&known.shown.name),
                authority: Arc::clone(&known.shown.authority),
                api_key: known.shown.api_key.clone(),
                source: Source::resolve(known.load_source, known.shown.dialect, &ranks)?,
                ranks,
            })
        };
        self.workers.iter().enumerate().filter_map(plan).collect()
    }

    /// The fleet as it is now, as a new generation.
    pub(super) fn snapshot(&mut self) -> FleetSnapshot {
        self.generation += 1;
        FleetSnapshot {
            generation: self.generation,
            workers: self.workers.iter().map(|worker| worker.shown.clone()).collect(),
            ranks: self.ranks.iter().map(|rank| self.shown_rank(rank)).collect(),
            models: self.models.iter().map(|name| self.shown_model(name)).collect(),
        }
    }

    /// Ranks that ever were.
    pub(super) fn rank_count(&self) -> usize {
        self.ranks.len()
    }

    fn rank_index(&self, worker: WorkerIndex, dp_rank: DpRank) -> Option<RankIndex> {
        let same = |rank: &KnownRank| rank.worker == worker && rank.dp_rank == dp_rank;
        RankIndex::try_from_index(self.ranks.iter().position(same)?)
    }

    fn shown_rank(&self, known: &KnownRank) -> Rank {
        let worker = self.workers.get(known.worker.index());
        let description = worker.and_then(|worker| worker.description.as_ref());
        let described = description.and_then(|all| all.ranks.get(position(known.dp_rank)));
        let mut address =
            worker.map_or_else(|| SocketAddr::from(([0, 0, 0, 0], 0)), |w| w.shown.address);
        let own_port = description.is_some_and(|description| description.port_per_rank);
        if own_port {
            let offset = u16::try_from(known.dp_rank.0).unwrap_or(u16::MAX);
            address.set_port(address.port().saturating_add(offset));
        }
        let rank_count = description.map_or(1, |description| description.ranks.len());
        let seen = known.block_size_seen;
        Rank {
            worker: known.worker,
            dp_rank: known.dp_rank,
            dp_size: if own_port { 1 } else { u32::try_from(rank_count).unwrap_or(u32::MAX) },
            address,
            block_size_tokens: if seen > 0 {
                seen
            } else {
                described.map_or(0, |rank| rank.block_size_tokens)
            },
            kv_block_count: described.map_or(0, |rank| rank.kv_block_count),
            kv_feed_live: known.feed_live,
            role: Role::Both,
            concurrency_max: worker.map_or(0, |worker| worker.concurrency_max),
            tiers: known.tiers,
        }
    }

    fn shown_model(&self, name: &Arc<str>) -> Model {
        let mut model = Model {
            name: Arc::clone(name),
            card_json: "".into(),
            ranks: Vec::new(),
            roots: Vec::new(),
            guess_roots: GuessRoots::new(self.seed, name),
            text: self.text_of(name),
            is_adapter: false,
        };
        for (index, known) in self.ranks.iter().enumerate() {
            let Some(worker) = self.workers.get(known.worker.index()) else { continue };
            let Some(description) = &worker.description else { continue };
            let Some(served) = serves(description, name) else { continue };
            if description.ranks.len() <= position(known.dp_rank) {
                continue;
            }
            model.ranks.extend(RankIndex::try_from_index(index));
            model.is_adapter |= served.is_some_and(|served| served.parent.is_some());
            if model.card_json.is_empty() {
                model.card_json = served.map_or_else(|| "".into(), |m| Arc::clone(&m.card_json));
            }
            let root = BlockRoot {
                block_size_tokens: self.shown_rank(known).block_size_tokens,
                key: self.root_key(description, served, self.shown_rank(known).block_size_tokens),
            };
            if root.block_size_tokens > 0 && !model.roots.contains(&root) {
                model.roots.push(root);
            }
        }
        model
    }

    /// The text of the first configured worker that has one for the name. Workers of different engines prepare rich
    /// chats in slightly different ways; a prompt is rendered once, before its worker is chosen, so for the others it
    /// may match less than they hold.
    fn text_of(&self, name: &str) -> Option<Arc<ModelText>> {
        self.workers.iter().find_map(|worker| {
            let served = serves(worker.description.as_ref()?, name)?;
            let base = served.map_or_else(|| ANY_MODEL.into(), base_name);
            worker.texts.get(&base)?.text.clone()
        })
    }

    fn root_key(
        &self,
        description: &Description,
        served: Option<&ServedModel>,
        block_size_tokens: u32,
    ) -> BlockKey {
        let adapter = served.filter(|served| served.parent.is_some());
        let name = RootName {
            model: &root_model(description),
            block_size_tokens,
            lora: adapter.map_or("", |served| &served.name),
            cache_salt: "",
        };
        BlockKey::root(self.seed, &name)
    }
}

/// The name under which a worker's blocks are rooted: its first base model's. Other names of the same model share
/// the engine's cache, so they share the root.
fn root_model(description: &Description) -> Arc<str> {
    let base = description.models.iter().find(|model| model.parent.is_none());
    base.map_or_else(|| ANY_MODEL.into(), |model| Arc::clone(&model.name))
}

/// The model whose text a name uses.
fn base_name(served: &ServedModel) -> Arc<str> {
    served.parent.as_deref().map_or_else(|| Arc::clone(&served.name), Into::into)
}

fn names(description: &Description) -> Vec<Arc<str>> {
    if description.models.is_empty() {
        return vec![ANY_MODEL.into()];
    }
    description.models.iter().map(|model| Arc::clone(&model.name)).collect()
}

/// Does a worker serve that name? `Some(None)`: yes, because it takes any.
fn serves<'a>(description: &'a Description, name: &str) -> Option<Option<&'a ServedModel>> {
    if description.models.is_empty() {
        return (name == ANY_MODEL).then_some(None);
    }
    description.models.iter().find(|model| &*model.name == name).map(Some)
}

fn position(dp_rank: DpRank) -> usize {
    usize::try_from(dp_rank.0).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::EngineRules;
    use crate::config::WorkerConfig;
    use crate::control::described::{DescribedRank, read_models};
    use crate::control::test_support::vocabulary;

    fn fleet() -> Fleet {
        let worker = |url: &str| WorkerConfig { url: url.into(), ..WorkerConfig::default() };
        let workers = ["http://a:1", "http://b:1"].map(worker).to_vec();
        Fleet::new(&Config { workers, ..Config::default() }, KeySeed(3))
    }

    fn describe(fleet: &mut Fleet, worker: u16, dialect: Dialect, found: FoundText) {
        let models = read_models(r#"{"data":[{"id":"m"}]}"#).unwrap().models;
        let ranks = vec![DescribedRank::default()];
        let description = Description { dialect, models, ranks, port_per_rank: false };
        let texts = BTreeMap::from([("m".into(), found)]);
        let address = SocketAddr::from(([127, 0, 0, 1], 9));
        fleet.describe(WorkerIndex(worker), address, description, texts);
    }

    fn failed(note: &str) -> FoundText {
        FoundText { text: None, note: note.into() }
    }

    fn loaded(note: &str) -> FoundText {
        let text = ModelText {
            vocabulary: Arc::new(vocabulary()),
            chat_template: None,
            rules: EngineRules::Vllm,
        };
        FoundText { text: Some(Arc::new(text)), note: note.into() }
    }

    #[test]
    fn a_model_of_two_engines_has_the_text_of_the_first_worker() {
        let mut fleet = fleet();
        let (of_first, of_second) = (loaded("n"), loaded("n"));
        let shown = |fleet: &mut Fleet| fleet.snapshot().model("m").unwrap().1.text.clone();
        let is = |shown: Option<Arc<ModelText>>, wanted: &FoundText| {
            Arc::ptr_eq(&shown.unwrap(), wanted.text.as_ref().unwrap())
        };
        describe(&mut fleet, 1, Dialect::Sglang, of_second.clone());
        assert!(is(shown(&mut fleet), &of_second), "the only one");
        describe(&mut fleet, 0, Dialect::Vllm, failed("broken"));
        assert!(is(shown(&mut fleet), &of_second), "the only one with a text");
        describe(&mut fleet, 0, Dialect::Vllm, of_first.clone());
        assert!(is(shown(&mut fleet), &of_first), "by configuration, not by who answered first");
    }

    #[test]
    fn the_log_has_a_text_once_per_change() {
        let mut fleet = fleet();
        let mut lines = Vec::new();
        for (worker, found) in [
            (0, failed("broken")),
            (1, failed("broken")),
            (0, failed("broken")),
            (0, failed("worse")),
            (1, failed("worse")),
            (1, loaded("good")),
            (0, loaded("good")),
            (1, loaded("good")),
        ] {
            if !fleet.is_noted("m", &found.note) {
                lines.push(found.note.clone());
            }
            describe(&mut fleet, worker, Dialect::Vllm, found);
        }
        assert_eq!(lines, ["broken", "worse", "good"]);
        // Directories of their own: two texts side by side are no change.
        describe(&mut fleet, 0, Dialect::Vllm, loaded("other"));
        assert!(fleet.is_noted("m", "good") && fleet.is_noted("m", "other"));
        assert!(!fleet.is_noted("n", "good"));
    }
}
