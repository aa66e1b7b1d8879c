//! Plans for tasks that depend on the fleet: a feed for each rank with KV events, load reports for
//! each worker. Notices of the feeds about their ranks.

use super::feed_findings::FeedFindings;
use super::{Fleet, KnownRank, KnownWorker};
use forebay_base::{DpRank, RankIndex, WorkerIndex};
use forebay_discovery::{DescribedRank, Description, EventAnnouncement};
use forebay_fleet::worker::{ModelText, TierRanks};
use forebay_kv_events::FeedNotice;
use forebay_load::{LoadPlan, PlannedRank, ReportSource};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

/// Plan of a rank's feed; a feed is replaced when its plan changes.
#[derive(Clone, Debug)]
pub(crate) struct FeedPlan {
    pub(crate) rank: RankIndex,
    pub(crate) dp_rank: DpRank,
    pub(crate) worker: Arc<str>,
    /// Address of the worker as `host:port`, independent of its name.
    pub(crate) authority: Arc<str>,
    /// Where the worker is. A feed that follows a name has to connect anew when the name moves.
    pub(crate) address: SocketAddr,
    pub(crate) events: EventAnnouncement,
    /// Ranks of other numbers have the endpoint too.
    pub(crate) shares_endpoint: bool,
    /// Block size from the engine's description; 0 while unknown.
    pub(crate) block_size_tokens: u32,
    /// Name under which the rank's blocks are rooted.
    pub(crate) model: Arc<str>,
    pub(crate) text: Option<Arc<ModelText>>,
    pub(crate) text_dir: Option<Arc<Path>>,
    /// The engine is known to use its lower tiers.
    pub(crate) expects_tiers: bool,
    /// Name of the KV pool that the engine shares with other engines.
    pub(crate) kv_pool: Option<Arc<str>>,
}

impl FeedPlan {
    /// True if a feed of the other plan would do the same.
    pub(crate) fn same_as(&self, other: &Self) -> bool {
        let text = |plan: &Self| plan.text.as_ref().map(Arc::as_ptr);
        self.events == other.events
            && self.shares_endpoint == other.shares_endpoint
            && self.address == other.address
            && self.model == other.model
            && self.kv_pool == other.kv_pool
            && text(self) == text(other)
    }
}

impl KnownRank {
    pub(super) fn new(worker: WorkerIndex, number: u32) -> Self {
        Self {
            worker,
            number,
            block_size_seen: 0,
            feed_live: false,
            announced: None,
            findings: FeedFindings::default(),
            tiers: TierRanks::default(),
        }
    }

    /// The rank has no feed any more.
    pub(super) fn lose_feed(&mut self) {
        self.feed_live = false;
        self.findings = FeedFindings::default();
        self.block_size_seen = 0;
        self.tiers = TierRanks::default();
    }
}

impl Fleet {
    /// True while a feed should follow the rank: the last notice of an ended feed may come late.
    fn is_fed(&self, known: &KnownRank) -> bool {
        let find = || {
            let description = self.workers.get(known.worker.index())?.description.as_ref()?;
            description.ranks.iter().find(|rank| rank.number == known.number)
        };
        find().is_some_and(|rank| rank.events.is_some())
    }

    /// Endpoint of KV events that the engine announced before; `None` while the rank has events.
    pub(super) fn lost_events<'a>(&self, known: &'a KnownRank) -> Option<&'a Arc<str>> {
        known.announced.as_ref().filter(|_| !self.is_fed(known))
    }

    /// Takes the KV events of the ranks of a description.
    pub(super) fn take_events(&mut self, worker: WorkerIndex, description: &Description) {
        let settings = self.workers.get(worker.index()).map(|known| &known.configured);
        let has_own_key = settings.is_some_and(|settings| settings.has_kv_events);
        for known in self.ranks.iter_mut().filter(|known| known.worker == worker) {
            let rank = description.ranks.iter().find(|rank| rank.number == known.number);
            let events = rank.and_then(|rank| rank.events.as_ref());
            if events.is_none() {
                known.lose_feed();
            }
            match events {
                // A removal of the key by an operator is no loss.
                Some(_) if has_own_key => known.announced = None,
                Some(events) => known.announced = Some(events.endpoint.to_string().into()),
                None if rank.is_none() => known.announced = None,
                None => {}
            }
        }
    }

    /// Takes the notice of a feed; true if it changed.
    pub(crate) fn set_feed(&mut self, notice: FeedNotice) -> bool {
        let is_fed = self.ranks.get(notice.rank.index()).is_some_and(|known| self.is_fed(known));
        let Some(known) = self.ranks.get_mut(notice.rank.index()).filter(|_| is_fed) else {
            return false;
        };
        let FeedNotice { live, block_size_tokens, has_foreign_replay, tiers, .. } = notice;
        let foreign_before = known.findings.has_foreign_replay;
        let before = (known.feed_live, known.block_size_seen, foreign_before);
        let tiers_before = std::mem::replace(&mut known.tiers, tiers);
        known.feed_live = live;
        known.block_size_seen = block_size_tokens;
        known.findings.has_foreign_replay = has_foreign_replay;
        before != (live, block_size_tokens, has_foreign_replay) || tiers_before != tiers
    }

    /// The feeds that should run now.
    pub(crate) fn feed_plans(&self) -> Vec<FeedPlan> {
        let shared = self.shared_endpoints();
        let plan = |(index, known): (usize, &KnownRank)| {
            let rank = RankIndex::try_from_index(index)?;
            let worker = self.workers.get(known.worker.index())?;
            let description = worker.description.as_ref()?;
            let described = description.ranks.iter().find(|rank| rank.number == known.number)?;
            let model = description.root_model();
            let found = worker.texts.get(&model);
            Some(FeedPlan {
                rank,
                dp_rank: DpRank(known.number),
                worker: Arc::clone(&worker.shown.name),
                authority: Arc::clone(&worker.shown.authority),
                address: worker.shown.address,
                block_size_tokens: described.block_size_tokens,
                events: described.events.as_ref()?.followed(),
                shares_endpoint: shared.contains(&(known.worker, known.number)),
                text: found.and_then(|found| found.text.clone()),
                text_dir: found.and_then(|found| found.dir.clone()),
                model,
                expects_tiers: described.expects_tiers,
                kv_pool: worker.configured.kv_pool.clone(),
            })
        };
        self.ranks.iter().enumerate().filter_map(plan).collect()
    }

    /// The load reports that should run now.
    pub(crate) fn load_plans(&self) -> Vec<LoadPlan> {
        let plan = |(index, known): (usize, &KnownWorker)| {
            let worker = WorkerIndex::try_from_index(index)?;
            let described = &known.description.as_ref()?.ranks;
            let planned = |rank: &DescribedRank| {
                let tokens = u64::from(rank.kv_block_count) * u64::from(rank.block_size_tokens);
                Some(PlannedRank {
                    rank: self.rank_index(worker, rank.number)?,
                    capacity_tokens: tokens,
                    publisher: rank.load.clone(),
                })
            };
            let ranks: Vec<_> = described.iter().map(planned).collect();
            Some(LoadPlan {
                worker,
                name: Arc::clone(&known.shown.name),
                authority: Arc::clone(&known.shown.authority),
                api_key: known.shown.api_key.clone(),
                source: ReportSource::resolve(
                    known.configured.load_source,
                    known.shown.dialect,
                    &ranks,
                )?,
                first: described.first().map_or(0, |rank| rank.number),
                ranks,
            })
        };
        self.workers.iter().enumerate().filter_map(plan).collect()
    }
}
