//! The running KV-event feeds. Starts, replaces and ends feeds to match the plans of the fleet.
//! Runs on the control plane's loop and never waits for a feed: its way out leads through rings
//! that may be full and notices that the loop itself reads.

use super::super::fleet::FeedPlan;
use super::super::fleet::GivenNumbers;
use super::super::ports::Ports;
use super::kv_pools::{KvPools, PoolPlan};
use super::snapshots::{Claim, CopySource, SnapshotLoader, Snapshots};
use forebay_admin::FeedsView;
use forebay_base::limits::RANKS_MAX;
use forebay_base::{NanosSinceStart, RankIndex};
use forebay_config::{Config, KvConfig};
use forebay_discovery::LastChecks;
use forebay_index::{KeySeed, slice_of};
use forebay_kv_events::{
    Feed, FeedCounters, FeedNotice, FeedSpec, FeedStatus, FeedTimers, LowerTiers, Naming,
    SharedPool, SharedState, TRACKED_BLOCK_BYTES, run_pool,
};
use forebay_snapshot::RankName;
use forebay_text::Vocabulary;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

/// Blocks that a rank may track at least, however small the budget.
const RANK_BLOCKS_MIN: usize = 4_096;
/// Ranks that share the budget at least: a fleet is rarely complete when its first feed starts.
const BUDGET_RANKS_MIN: usize = 8;

/// Answers with a computed block and without any event, after which a rank is silent. A late
/// event is later than a single answer, and not than several in a row.
const SILENT_ANSWERS: u64 = 8;

/// KV-event feeds of all ranks.
pub(super) struct KvFeeds {
    ports: Rc<Ports>,
    setup: KvFeedSetup,
    counters: Rc<FeedCounters>,
    running: HashMap<RankIndex, RunningFeed>,
    /// KvFeeds that are taking their blocks out of the index.
    ending: HashMap<RankIndex, JoinHandle<()>>,
    /// Blocks of the ranks before a restart.
    loading: Option<Rc<SnapshotLoader>>,
    /// Snapshots include the ranks of the feeds.
    are_saved: bool,
    pools: KvPools,
}

/// Setup of every feed.
pub(super) struct KvFeedSetup {
    notices: mpsc::Sender<FeedNotice>,
    seed: KeySeed,
    /// Index memory that all ranks share.
    memory_bytes_max: usize,
    tiers: Tiers,
    timers: FeedTimers,
}

impl KvFeedSetup {
    pub(super) fn new(
        config: &Config,
        seed: KeySeed,
        numbers: Rc<GivenNumbers>,
        timers: FeedTimers,
        notices: mpsc::Sender<FeedNotice>,
    ) -> Self {
        let memory_bytes_max = config.limits.index_bytes_max;
        Self { notices, seed, memory_bytes_max, tiers: Tiers::new(&config.kv, numbers), timers }
    }
}

/// Tiers that count beside the device, and their index numbers.
#[derive(Clone, Debug)]
struct Tiers {
    counted: LowerTiers,
    /// Blocks in shared pools count too.
    pools: bool,
    numbers: Rc<GivenNumbers>,
}

impl Tiers {
    /// Tiers with blocks that lower the cost of a rank.
    fn new(kv: &KvConfig, numbers: Rc<GivenNumbers>) -> Self {
        let host = kv.host_credit_percent > 0;
        let disk = kv.disk_credit_percent > 0;
        let pools = kv.pool_credit_percent > 0;
        Self { counted: LowerTiers { host, disk, ttl: kv.tier_ttl }, pools, numbers }
    }
}

struct RunningFeed {
    plan: FeedPlan,
    state: SharedState,
    status: Rc<FeedStatus>,
    /// Restarts of the engine that [`KvFeeds::take_restarted`] has returned.
    restarts: u64,
    /// Answers after which a rank without a batch is silent; `None` while none is awaited.
    silent_from: Option<u64>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl KvFeeds {
    /// No feed runs yet.
    pub(super) fn new(setup: KvFeedSetup, ports: &Rc<Ports>, snapshots: &Snapshots) -> Self {
        Self {
            ports: Rc::clone(ports),
            setup,
            counters: Rc::new(FeedCounters::new()),
            running: HashMap::new(),
            ending: HashMap::new(),
            loading: snapshots.loading().cloned(),
            are_saved: snapshots.are_written(),
            pools: KvPools::default(),
        }
    }

    /// Counts these tiers from now on. Changed tiers end all feeds until [`Self::adjust`].
    pub(super) fn set_kv(&mut self, kv: &KvConfig) {
        let tiers = Tiers::new(kv, Rc::clone(&self.setup.tiers.numbers));
        let before = std::mem::replace(&mut self.setup.tiers, tiers);
        let now = &self.setup.tiers;
        if (now.counted, now.pools) != (before.counted, before.pools) {
            for (rank, feed) in self.running.drain() {
                let _ = feed.stop.send(());
                self.ending.insert(rank, feed.task);
            }
            if !now.pools {
                self.pools.end();
            }
        }
    }

    /// Counters of all feeds.
    pub(super) fn counters(&self) -> &FeedCounters {
        &self.counters
    }

    /// Counters of all feeds, and the status of each.
    pub(super) fn view(&self) -> FeedsView<'_> {
        let statuses = self.running.iter().map(|(rank, feed)| (*rank, &*feed.status)).collect();
        FeedsView { counters: &self.counters, statuses, pools: self.pools.views() }
    }

    /// Ranks that a snapshot can contain.
    pub(super) fn copyable(&self) -> Vec<CopySource> {
        let of_rank = |feed: &RunningFeed| {
            let text = feed.plan.text.as_ref()?;
            Some(CopySource {
                name: rank_name(&feed.plan),
                vocabulary: Arc::clone(&text.vocabulary),
                state: Rc::clone(&feed.state),
            })
        };
        self.running.values().filter_map(of_rank).collect()
    }

    /// Starts, replaces and ends feeds to match the plans.
    pub(super) fn adjust(&mut self, plans: Vec<FeedPlan>, rank_count: usize) {
        self.ending.retain(|_, task| !task.is_finished());
        let mut plans: HashMap<RankIndex, FeedPlan> =
            plans.into_iter().map(|plan| (plan.rank, plan)).collect();
        let is_stale = |(rank, feed): (&RankIndex, &RunningFeed)| {
            let stays = plans.get(rank).is_some_and(|plan| plan.same_as(&feed.plan));
            (!stays).then_some(*rank)
        };
        let stale: Vec<RankIndex> = self.running.iter().filter_map(is_stale).collect();
        for rank in stale {
            if let Some(feed) = self.running.remove(&rank) {
                let _ = feed.stop.send(());
                self.ending.insert(rank, feed.task);
            }
        }
        plans.retain(|rank, _| !self.running.contains_key(rank));
        for (rank, plan) in plans {
            let feed = self.start(plan, rank_count);
            self.running.insert(rank, feed);
        }
    }

    /// Ranks at which another process publishes since the last call.
    pub(super) fn take_restarted(&mut self) -> Vec<RankIndex> {
        let restarted = self.running.iter_mut().filter_map(|(rank, feed)| {
            let now = feed.status.restarts();
            (std::mem::replace(&mut feed.restarts, now) != now).then_some(*rank)
        });
        restarted.collect()
    }

    /// Ranks that are followed and have had no live batch, though their engines have stored blocks:
    /// another topic or another publisher. `counts`: for a rank, answers with a computed block so
    /// far, and requests in flight. The blocks of these requests may be stored already.
    pub(super) fn silent(&mut self, counts: impl Fn(RankIndex) -> (u64, u32)) -> Vec<RankIndex> {
        let silent = self.running.iter_mut().filter_map(|(rank, feed)| {
            if !feed.status.awaits_first_batch() {
                feed.silent_from = None;
                return None;
            }
            let (answers, in_flight) = counts(*rank);
            let from = || answers.saturating_add(in_flight.into()).saturating_add(SILENT_ANSWERS);
            let is_silent = answers >= *feed.silent_from.get_or_insert_with(from);
            is_silent.then_some(*rank)
        });
        silent.collect()
    }

    /// Holds back faults of feeds that follow from the state of the worker. `checks`: the last
    /// health checks of a rank's worker.
    pub(super) fn weigh_faults(
        &self,
        now: NanosSinceStart,
        checks: impl Fn(RankIndex) -> Option<LastChecks>,
    ) {
        for (rank, feed) in &self.running {
            feed.status.weigh_fault(|age| {
                let age = u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
                let failed_at = NanosSinceStart(now.0.saturating_sub(age));
                checks(*rank)?.health_at(failed_at)
            });
        }
    }

    /// Removes the blocks of a worker with caches that an order of the router emptied.
    pub(super) fn empty(&self, worker: &str) {
        let of_worker = self.running.values().filter(|feed| &*feed.plan.worker == worker);
        of_worker.for_each(|feed| feed.status.empty());
    }

    fn naming(&self, plan: &FeedPlan) -> Naming<Arc<Vocabulary>> {
        Naming {
            seed: self.setup.seed,
            model: Arc::clone(&plan.model),
            text: plan.text.as_ref().map(|text| Arc::clone(&text.vocabulary)),
            slice_of,
            shard_count: self.ports.shard_count(),
        }
    }

    /// The rank's shared pool. A pool may track as many blocks as a rank.
    fn pool_of(&mut self, plan: &FeedPlan, entries_max: usize) -> Option<SharedPool> {
        let name = plan.kv_pool.as_ref().filter(|_| self.setup.tiers.pools)?;
        let naming = self.naming(plan);
        let ttl = self.setup.tiers.counted.ttl;
        let wanted = PoolPlan { name, naming, entries_max, ttl };
        let ports = Rc::clone(&self.ports);
        let counters = Rc::clone(&self.counters);
        let keep = |pool| drop(tokio::task::spawn_local(run_pool(pool, ports, counters)));
        self.pools.of(wanted, &self.setup.tiers.numbers, keep)
    }

    fn start(&mut self, plan: FeedPlan, rank_count: usize) -> RunningFeed {
        let ranks = rank_count.clamp(BUDGET_RANKS_MIN, RANKS_MAX);
        let entries_max = self.setup.memory_bytes_max / TRACKED_BLOCK_BYTES / ranks;
        let entries_max = entries_max.max(RANK_BLOCKS_MIN);
        let claim = Claim {
            name: rank_name(&plan),
            vocabulary: plan.text.as_ref().map(|text| Arc::clone(&text.vocabulary)),
            block_size_tokens: plan.block_size_tokens,
            entries_max,
            lower_tiers: self.setup.tiers.counted,
        };
        let spec = FeedSpec {
            rank: plan.rank,
            dp_rank: plan.dp_rank,
            worker: Arc::clone(&plan.worker),
            endpoint: plan.events.endpoint.clone(),
            shares_endpoint: plan.shares_endpoint,
            replay: plan.events.replay.clone(),
            topic: plan.events.topic.clone(),
            naming: self.naming(&plan),
            text_dir: plan.text_dir.clone(),
            entries_max,
            lower_tiers: self.setup.tiers.counted,
            expects_tiers: plan.expects_tiers,
            tier_numbers: self.setup.tiers.numbers.clone(),
            pool: self.pool_of(&plan, entries_max),
            timers: self.setup.timers,
        };
        let (stop, stopped) = oneshot::channel();
        let ports = Rc::clone(&self.ports);
        let counters = Rc::clone(&self.counters);
        let mut feed = Feed::new(spec, ports, Rc::clone(&counters), self.setup.notices.clone());
        let state = feed.state();
        let status = feed.status();
        if self.are_saved {
            state.borrow_mut().keep_recent();
        }
        let loading = self.loading.as_ref().map(|loading| (Rc::clone(loading), loading.begin()));
        // The old feed's last removals have to arrive before the new feed's first stores.
        let before = self.ending.remove(&plan.rank);
        let task = tokio::task::spawn_local(async move {
            if let Some(before) = before {
                let _ = before.await;
            }
            if let Some((loading, _under_way)) = loading
                && let Some(restored) = loading.claim(claim, &counters).await
            {
                feed.restore(restored).await;
            }
            feed.run(stopped).await;
        });
        RunningFeed { plan, state, status, restarts: 0, silent_from: None, stop, task }
    }
}

/// Name of a rank in a snapshot.
fn rank_name(plan: &FeedPlan) -> RankName {
    RankName {
        worker: plan.authority.to_string(),
        dp_rank: plan.dp_rank.0,
        endpoint: plan.events.endpoint.to_string(),
        topic: plan.events.topic.clone(),
        model: plan.model.to_string(),
    }
}
