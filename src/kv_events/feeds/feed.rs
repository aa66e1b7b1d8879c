//! A task per rank: follows the rank's KV events for as long as the rank is part of the fleet, and
//! posts index operations to the shards that own the slices. Batches missed before the connection
//! or in a gap are requested where the engine can replay ([`super::recovery`]); else the rank's
//! blocks are removed. A feed may continue from a snapshot: the restored blocks are posted at once,
//! and the engine's stream confirms or removes them. Runs on the control plane's thread.
//!
//! When a shard's ring is full, the feed waits and does not read its socket meanwhile. The engine
//! then drops events at its own limit, which shows as a gap. Must never hold more than a message
//! and its operations.

use super::patience::LogLimit;
use super::port::{FeedNotice, KvPort};
use super::relay::StreamRanks;
use super::replays::{Audit, Replays};
use super::timers::FeedTimers;
use crate::counters::{FeedCounters, ResetReason};
use crate::paths::naming::Naming;
use crate::paths::slice_ops::SliceOps;
use crate::paths::tier::{LowerTiers, Tier, TierNumbers, Tree};
use crate::paths::windows::Resume;
use crate::ranks::rank::{KvMessage, MessageResult, RankFeed};
use crate::ranks::shared_state::{SharedPool, SharedState};
use crate::ranks::text_fit::TextSource;
use crate::status::{FeedState, FeedStatus};
use forebay_base::limits::KV_BATCH_OPS_MAX;
use forebay_base::{DpRank, RankIndex};
use forebay_fleet::worker::TierRanks;
use forebay_index::{KvBatch, OddBlocks, WINDOWS_MAX, Window};
use forebay_text::Vocabulary;
use forebay_zmq::ZmqEndpoint;
use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

/// Pause when a shard's ring is full: a shard applies some thousand operations in it.
pub(crate) const RING_FULL_PAUSE: Duration = Duration::from_millis(1);
/// Blocks that a feed applies before the thread's other tasks get their turn: some 2 ms.
pub(crate) const BLOCKS_PER_TURN: usize = 1_024;
/// Cost of a message beside its blocks, in blocks.
const MESSAGE_COST: usize = 32;
/// Batches of operations that a feed posts before the thread's other tasks get their turn.
pub(crate) const BATCHES_PER_TURN: u32 = 32;

/// Settings of a feed.
#[derive(Debug)]
pub struct FeedSpec {
    pub rank: RankIndex,
    /// Number of the rank inside the worker, for logs.
    pub dp_rank: DpRank,
    /// Name of the worker, for logs.
    pub worker: Arc<str>,
    /// Publisher of the events.
    pub endpoint: ZmqEndpoint,
    /// The router follows the endpoint for ranks of other numbers too: batches name their ranks.
    pub shares_endpoint: bool,
    /// Replay socket of the engine, for missed batches.
    pub replay: Option<ZmqEndpoint>,
    /// Prefix of the topics to subscribe to.
    pub topic: String,
    pub naming: Naming<Arc<Vocabulary>>,
    /// Folder of the tokenizer, for logs.
    pub text_dir: Option<Arc<Path>>,
    /// Most blocks that are tracked.
    pub entries_max: usize,
    /// Tiers that count beside the device.
    pub lower_tiers: LowerTiers,
    /// True when the engine is known to use lower tiers.
    pub expects_tiers: bool,
    /// Source of the numbers of tiers and windows.
    pub tier_numbers: Rc<dyn TierNumbers>,
    /// Pool that the rank shares with other ranks.
    pub pool: Option<SharedPool>,
    pub timers: FeedTimers,
}

/// Numbers of a rank in the index that stay while they are not used.
#[derive(Clone, Copy, Debug, Default)]
struct FurtherNumbers {
    windows: [Option<RankIndex>; WINDOWS_MAX],
    /// Of the blocks of the second size.
    odd: Option<RankIndex>,
}

/// The feed of a rank.
pub struct Feed<P> {
    rank: RankIndex,
    pub(crate) dp_rank: DpRank,
    pub(crate) worker: Arc<str>,
    pub(crate) endpoint: ZmqEndpoint,
    pub(crate) replay: Option<ZmqEndpoint>,
    pub(crate) topic: String,
    text: TextSource,
    pub(crate) state: SharedState,
    tier_numbers: Rc<dyn TierNumbers>,
    tiers: TierRanks,
    numbers: FurtherNumbers,
    /// True once a warning was logged that a tier or a window got no number.
    is_refusal_logged: bool,
    pub(crate) ops: SliceOps,
    pub(crate) verified_by: Instant,
    pub(crate) port: P,
    pub(crate) counters: Rc<FeedCounters>,
    pub(crate) status: Rc<FeedStatus>,
    pub(crate) audit: Audit,
    pub(crate) replays: Replays,
    /// Ranks with batches in the connection.
    pub(super) stream_ranks: StreamRanks,
    pub(crate) timers: FeedTimers,
    warning_limit: LogLimit,
    /// Limits log lines about replays of lost batches.
    pub(crate) replay_log: LogLimit,
    notices: mpsc::Sender<FeedNotice>,
    /// The last notice to the control plane; `None` before this feed's first, though an earlier
    /// feed of the rank may have sent notices.
    sent_notice: Option<FeedNotice>,
    /// Cost of work since the thread's other tasks had their turn, in blocks.
    taken_blocks: usize,
}

impl<P: KvPort> Feed<P> {
    /// A feed that has not connected yet.
    pub fn new(
        spec: FeedSpec,
        port: P,
        counters: Rc<FeedCounters>,
        notices: mpsc::Sender<FeedNotice>,
    ) -> Self {
        let ops = SliceOps::new(spec.naming.shard_count);
        let pool = spec.pool.as_ref().map(|pool| pool.borrow().number());
        let tiers = TierRanks { kv_pool: pool, ..TierRanks::default() };
        let text = TextSource { model: Arc::clone(&spec.naming.model), dir: spec.text_dir };
        let mut state = RankFeed::new(spec.naming, spec.entries_max);
        state.set_lower_tiers(spec.lower_tiers, spec.expects_tiers);
        if let Some(pool) = spec.pool {
            state.share(pool);
        }
        let status = FeedStatus::default();
        status.set_text(state.text_fit());
        Self {
            rank: spec.rank,
            dp_rank: spec.dp_rank,
            worker: spec.worker,
            endpoint: spec.endpoint,
            replay: spec.replay,
            topic: spec.topic,
            text,
            state: Rc::new(RefCell::new(state)),
            tier_numbers: spec.tier_numbers,
            tiers,
            numbers: FurtherNumbers::default(),
            is_refusal_logged: false,
            ops,
            verified_by: Instant::now(),
            port,
            counters,
            status: Rc::new(status),
            audit: Audit::after(spec.timers.audit_after),
            replays: Replays::new(spec.timers),
            stream_ranks: StreamRanks::new(spec.dp_rank.0, spec.shares_endpoint),
            timers: spec.timers,
            warning_limit: LogLimit::default(),
            replay_log: LogLimit::default(),
            notices,
            sent_notice: None,
            taken_blocks: 0,
        }
    }

    /// Status for `/workers` and the metrics.
    #[must_use]
    pub fn status(&self) -> Rc<FeedStatus> {
        Rc::clone(&self.status)
    }

    /// Applies a message and posts its operations, in turns, so that a long message does not block
    /// the thread.
    pub(crate) async fn take_in_turns(&mut self, message: Option<KvMessage<'_>>) {
        let begun = self.state.borrow_mut().begin(message, &self.counters, &mut self.ops);
        let mut progress = match begun {
            Ok(progress) => progress,
            Err(taken) => return self.report(taken),
        };
        self.taken_blocks += MESSAGE_COST;
        loop {
            if self.taken_blocks >= BLOCKS_PER_TURN {
                self.taken_blocks = 0;
                yield_now().await;
            }
            let left = BLOCKS_PER_TURN - self.taken_blocks;
            let counters = &self.counters;
            let ops = &mut self.ops;
            let ended = self.state.borrow_mut().step(&mut progress, left, counters, ops);
            self.taken_blocks += progress.take_work();
            if let Some(taken) = ended {
                self.report(taken);
                return self.post().await;
            }
            self.post().await;
        }
    }

    /// Updates the status after a message, and logs losses at a limited rate.
    pub(crate) fn report(&mut self, taken: MessageResult) {
        let held = self.state.borrow().block_count();
        self.status.record_batch(held);
        if let Some(is_mismatch) = self.status.set_text(self.state.borrow().text_fit()) {
            self.text.log(is_mismatch, &self.worker, self.dp_rank);
        }
        let Some(reason) = taken.reset else {
            if taken.missed > 0 && self.replay.is_none() {
                info!(
                    worker = &*self.worker,
                    dp_rank = self.dp_rank.0,
                    missed = taken.missed,
                    "joined a running event stream: blocks stored before are unknown until stored again"
                );
            }
            return;
        };
        self.status.reset(held);
        if reason == ResetReason::Restart {
            self.status.restarted();
        }
        self.counters.missed(taken.missed);
        let text = match reason {
            ResetReason::Gap => {
                "KV event batches were lost: this rank's blocks are forgotten until it reports them again"
            }
            ResetReason::Contradiction => {
                "an engine's KV events contradict each other: this rank's blocks are forgotten until it reports them again; \
                 is its publisher the one of this worker?"
            }
            ResetReason::Undecodable => {
                "a KV event batch cannot be read: this rank's blocks are forgotten until it reports them again"
            }
            _ => "the engine's event stream began again: its blocks are forgotten",
        };
        let Some(before) = self.warning_limit.admit() else { return };
        warn!(
            worker = &*self.worker,
            dp_rank = self.dp_rank.0,
            missed = taken.missed,
            repeated = before,
            "{text}"
        );
    }

    /// Posts all operations, and waits for room in the rings. Cancel-safe: operations leave the
    /// list only once they are posted.
    pub(crate) async fn post(&mut self) {
        self.number_tiers();
        self.number_windows();
        self.number_odd();
        let tiers = self.tiers;
        let FurtherNumbers { windows, odd } = self.numbers;
        let mut posted_count = 0_u32;
        for (tree, slice, ops) in self.ops.trees_mut() {
            let number = match tree {
                Tree::Tier(Tier::Device) => Some(self.rank),
                Tree::Tier(Tier::Host) => tiers.host,
                Tree::Tier(Tier::Disk) => tiers.disk,
                Tree::Window(place) => windows.get(place).copied().flatten(),
                Tree::Odd => odd,
            };
            let Some(rank) = number else {
                ops.clear();
                continue;
            };
            while !ops.is_empty() {
                let count = ops.len().min(KV_BATCH_OPS_MAX);
                let batch: Vec<_> = ops.iter().take(count).copied().collect();
                match self.port.post(slice, KvBatch { rank, ops: batch }) {
                    Ok(()) => {
                        drop(ops.drain(..count));
                        posted_count = posted_count.wrapping_add(1);
                        if posted_count.is_multiple_of(BATCHES_PER_TURN) {
                            yield_now().await;
                        }
                    }
                    Err(_) => {
                        self.counters.stall();
                        sleep(RING_FULL_PAUSE).await;
                    }
                }
            }
        }
        self.post_pool().await;
    }

    /// Trees in use beside the device's.
    pub(crate) fn trees(&self) -> [bool; 2] {
        [self.state.borrow().has_tree(Tier::Host), self.state.borrow().has_tree(Tier::Disk)]
    }

    /// Requests numbers of tiers that have got a tree.
    fn number_tiers(&mut self) {
        let [host, disk] = self.trees();
        for (tier, is_used) in [(Tier::Host, host), (Tier::Disk, disk)] {
            let number = match tier {
                Tier::Host => &mut self.tiers.host,
                _ => &mut self.tiers.disk,
            };
            if !is_used || number.is_some() {
                continue;
            }
            *number = self.tier_numbers.number(self.rank, Tree::Tier(tier));
            if number.is_none() && !std::mem::replace(&mut self.is_refusal_logged, true) {
                warn!(
                    worker = &*self.worker,
                    dp_rank = self.dp_rank.0,
                    tier = tier.label(),
                    "the fleet is too large for this tier's blocks to be matched"
                );
            }
        }
    }

    /// Requests numbers of the rank's windows, and updates the windows that shards match against.
    fn number_windows(&mut self) {
        let resume = self.state.borrow().resume();
        self.tiers.windows = [None; WINDOWS_MAX];
        self.tiers.is_bound = resume != Resume::Anywhere;
        let Resume::Windows(needs) = resume else { return };
        for (place, (number, need)) in self.numbers.windows.iter_mut().zip(needs).enumerate() {
            if need.is_some() && number.is_none() && !self.is_refusal_logged {
                *number = self.tier_numbers.number(self.rank, Tree::Window(place));
            }
        }
        let numbered = |(number, need): (Option<RankIndex>, Option<u16>)| {
            Some(Window { number: number?, block_count: need? })
        };
        let mut windows = [None; WINDOWS_MAX];
        let pairs = self.numbers.windows.into_iter().zip(needs);
        windows.iter_mut().zip(pairs.map(numbered)).for_each(|(to, window)| *to = window);
        let is_whole = windows.iter().flatten().count() == needs.iter().flatten().count();
        if is_whole {
            self.tiers.windows = windows;
            self.tiers.is_bound = false;
        }
        if !is_whole && !std::mem::replace(&mut self.is_refusal_logged, true) {
            self.warn(
                "the fleet is too large for this rank's windows: its overlap is an upper bound",
            );
        }
    }

    /// Requests a number for the blocks of the second size, and updates what shards read of sizes.
    fn number_odd(&mut self) {
        let sizes = self.state.borrow().device_sizes();
        if sizes.units.is_some() && self.numbers.odd.is_none() && !self.is_refusal_logged {
            self.numbers.odd = self.tier_numbers.number(self.rank, Tree::Odd);
        }
        self.tiers.finer_tokens = sizes.finer_tokens;
        self.tiers.aligned_tokens = sizes.aligned_tokens;
        // Groups of several sizes have each a chain of blocks, and a walk follows a single chain.
        self.tiers.is_bound |= sizes.aligned_tokens > 0;
        let numbered = |[units, usual_units]: [u16; 2]| {
            self.numbers.odd.map(|number| OddBlocks { number, units, usual_units })
        };
        self.tiers.odd = sizes.units.and_then(numbered);
        let is_refused = sizes.units.is_some() && self.numbers.odd.is_none();
        if is_refused && !std::mem::replace(&mut self.is_refusal_logged, true) {
            self.warn(
                "the fleet is too large for this rank's block sizes: its tokens are estimated",
            );
        }
    }

    /// Enters a state, and sends the control plane a notice if routing is concerned.
    pub(crate) async fn settle(&mut self, state: FeedState) {
        let state = match state {
            FeedState::Live if self.state.borrow().is_unverified() => FeedState::Unverified,
            state => state,
        };
        self.status.enter(state);
        let block_size_tokens = self.state.borrow().block_size_tokens();
        let live = state == FeedState::Live;
        let notice = FeedNotice {
            rank: self.rank,
            live,
            block_size_tokens,
            has_foreign_replay: self.replays.is_foreign,
            tiers: self.tiers,
        };
        if self.sent_notice != Some(notice) && self.notices.send(notice).await.is_ok() {
            self.sent_notice = Some(notice);
        }
    }

    pub(crate) fn warn(&self, text: &str) {
        warn!(worker = &*self.worker, dp_rank = self.dp_rank.0, "{text}");
    }
}
