//! One task per rank: follows its KV events for as long as the rank is part of the fleet, and posts what they change
//! to the shards that own the slices. Where the engine can replay, what was missed (before the connection, or in a
//! gap) is asked for first. Runs on the control plane's thread.
//!
//! When a shard's ring is full the feed waits and does not read its socket meanwhile; the engine then drops events
//! at its own limit, which shows as a gap. Must never hold more than one message and its operations.

use super::counters::{FeedCounters, ResetReason};
use super::endpoint::Endpoint;
use super::naming::Naming;
use super::rank::{RankFeed, Taken};
use super::slice_ops::SliceOps;
use super::socket::{Connection, SocketError, Source};
use super::tier::{LowerTiers, Tier};
use super::zmtp::ZmtpError;
use crate::base::limits::KV_BATCH_OPS_MAX;
use crate::base::{DpRank, RankIndex, ShardIndex};
use crate::block::Vocabulary;
use crate::mailbox::KvBatch;
use crate::worker::TierRanks;
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

/// Pause before the first reconnection; doubles up to [`BACKOFF_MAX`].
const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// Pause when a shard's ring is full: a shard applies some thousand operations in it.
const RING_FULL_PAUSE: Duration = Duration::from_millis(1);
/// Messages that one feed takes before the thread's other tasks get their turn.
const MESSAGES_PER_TURN: u32 = 32;
/// Longest wait for the next batch of a replay; idle engines look at their replay socket ten times a second.
const REPLAY_SILENCE_MAX: Duration = Duration::from_secs(2);
/// Sequence number of the message that ends a replay.
const REPLAY_END: [u8; 8] = [0xff; 8];

/// Where operations go: the rings of the shards, or a test.
pub trait KvPort {
    /// Hands a batch to the shard that owns the slice; gives it back when the ring is full.
    fn post(&self, slice: ShardIndex, batch: KvBatch) -> Result<(), KvBatch>;
}

/// Gives ranks the numbers under which the index knows what their lower tiers hold.
pub trait TierNumbers: std::fmt::Debug {
    /// The number; the same for the same rank and tier. `None` when there is no room for one more.
    fn number(&self, rank: RankIndex, tier: Tier) -> Option<RankIndex>;
}

/// What a feed tells the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedNotice {
    /// Which rank.
    pub rank: RankIndex,
    /// True while events are followed.
    pub live: bool,
    /// Tokens per block as seen in events, 0 before the first.
    pub block_size_tokens: u32,
    /// Where the index has what its lower tiers hold.
    pub tiers: TierRanks,
}

/// Everything a feed needs to know about its rank.
#[derive(Debug)]
pub struct FeedSpec {
    /// The rank.
    pub rank: RankIndex,
    /// Its number inside the worker, for logs.
    pub dp_rank: DpRank,
    /// Its worker's name, for logs.
    pub worker: Arc<str>,
    /// Where its events come from.
    pub endpoint: Endpoint,
    /// Where missed batches can be asked for.
    pub replay: Option<Endpoint>,
    /// Prefix of the topics that are wanted.
    pub topic: String,
    /// How blocks become keys.
    pub naming: Naming<Arc<Vocabulary>>,
    /// Most blocks that are tracked.
    pub entries_max: usize,
    /// Tiers that count beside the device.
    pub lower_tiers: LowerTiers,
    /// True when the engine is known to use them.
    pub expects_tiers: bool,
    /// Where their numbers come from.
    pub tier_numbers: Rc<dyn TierNumbers>,
}

/// A running feed.
pub struct Feed<P> {
    rank: RankIndex,
    dp_rank: DpRank,
    worker: Arc<str>,
    endpoint: Endpoint,
    replay: Option<Endpoint>,
    topic: String,
    state: RankFeed<Arc<Vocabulary>>,
    tier_numbers: Rc<dyn TierNumbers>,
    tiers: TierRanks,
    /// True once it was said that a tier got no number.
    refused: bool,
    ops: SliceOps,
    port: P,
    counters: Rc<FeedCounters>,
    notices: mpsc::Sender<FeedNotice>,
    told: FeedNotice,
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
        let tiers = TierRanks::default();
        let told = FeedNotice { rank: spec.rank, live: false, block_size_tokens: 0, tiers };
        let mut state = RankFeed::new(spec.naming, spec.entries_max);
        state.set_lower_tiers(spec.lower_tiers, spec.expects_tiers);
        Self {
            rank: spec.rank,
            dp_rank: spec.dp_rank,
            worker: spec.worker,
            endpoint: spec.endpoint,
            replay: spec.replay,
            topic: spec.topic,
            state,
            tier_numbers: spec.tier_numbers,
            tiers,
            refused: false,
            ops,
            port,
            counters,
            notices,
            told,
        }
    }

    /// Follows the rank until told to stop, then takes its blocks out of the index.
    pub async fn run(mut self, stop: oneshot::Receiver<()>) {
        tokio::select! {
            _ = stop => {}
            never = self.follow() => match never {},
        }
        self.forget().await;
    }

    async fn follow(&mut self) -> Infallible {
        let mut pause = BACKOFF_MIN;
        let mut silent = false;
        loop {
            match Source::open(&self.endpoint).await {
                Err(error) => self.lost(&error, &mut silent),
                Ok(source) => loop {
                    match source.subscribe(&self.topic).await {
                        Ok(subscriber) => {
                            (pause, silent) = (BACKOFF_MIN, false);
                            let error = self.session(subscriber).await;
                            self.forget().await;
                            self.lost(&error, &mut silent);
                        }
                        Err(error) => self.lost(&error, &mut silent),
                    }
                    if matches!(source, Source::Connect(_)) {
                        break;
                    }
                },
            }
            sleep(pause).await;
            pause = (pause * 2).min(BACKOFF_MAX);
        }
    }

    /// One connection from its first message to its end.
    async fn session(&mut self, mut subscriber: Connection) -> SocketError {
        info!(
            worker = &*self.worker,
            dp_rank = self.dp_rank.0,
            endpoint = %self.endpoint,
            "following KV events"
        );
        let mut replay = self.replay.clone();
        let trees_before = self.trees();
        self.recover(&mut replay, 0, u64::MAX).await;
        if replay.is_some() && self.trees() != trees_before {
            // A tier showed up in the middle: what was stored before is in its tree only if it is taken again.
            self.state.begin_again(&self.counters, &mut self.ops);
            self.post().await;
            self.recover(&mut replay, 0, u64::MAX).await;
        }
        self.tell(true).await;
        let mut taken_count = 0_u32;
        loop {
            taken_count = taken_count.wrapping_add(1);
            if taken_count.is_multiple_of(MESSAGES_PER_TURN) {
                yield_now().await;
            }
            let (parts, end) = match subscriber.message().await {
                Ok(message) => message,
                Err(error) => return error,
            };
            let parts: Vec<&[u8]> = parts.iter().map(|part| subscriber.part(part)).collect();
            if self.state.is_replayed(&parts) {
                subscriber.done(end);
                continue;
            }
            if let Some((from, until)) = self.state.missing_before(&parts) {
                self.recover(&mut replay, from, until).await;
            }
            let taken = self.state.message(&parts, &self.counters, &mut self.ops);
            subscriber.done(end);
            self.say(taken);
            self.post().await;
            self.tell(true).await;
        }
    }

    /// Asks the engine for batches `from` to before `until` and takes them. A replay that fails is not tried again on
    /// this connection: `replay` is emptied.
    async fn recover(&mut self, replay: &mut Option<Endpoint>, from: u64, until: u64) {
        let Some(endpoint) = replay else { return };
        let complete = match self.replay_from(endpoint, from, until).await {
            Ok(count) => {
                if count > 0 {
                    info!(
                        worker = &*self.worker,
                        dp_rank = self.dp_rank.0,
                        batches = count,
                        "KV event batches replayed"
                    );
                }
                true
            }
            Err(error) => {
                warn!(
                    worker = &*self.worker,
                    dp_rank = self.dp_rank.0,
                    %endpoint,
                    %error,
                    "missed KV event batches cannot be replayed"
                );
                *replay = None;
                false
            }
        };
        self.counters.replay(complete);
        self.state.replay_ended();
    }

    async fn replay_from(
        &mut self,
        endpoint: &Endpoint,
        from: u64,
        until: u64,
    ) -> Result<u64, SocketError> {
        let source = Source::open(endpoint).await?;
        let mut connection = source.request(&[b"", &from.to_be_bytes()]).await?;
        let mut count = 0;
        loop {
            let answer = timeout(REPLAY_SILENCE_MAX, connection.message()).await;
            let (parts, end) = answer.map_err(|_| SocketError::TimedOut)??;
            let parts: Vec<&[u8]> = parts.iter().map(|part| connection.part(part)).collect();
            // Since vLLM 0.26 and SGLang 0.5.22 with the topic, before without; the delimiter is always there.
            let &[_, .., number, payload] = parts.as_slice() else {
                return Err(ZmtpError::Framing.into());
            };
            let Ok(bytes) = <[u8; 8]>::try_from(number) else {
                return Err(ZmtpError::Framing.into());
            };
            if bytes == REPLAY_END {
                return Ok(count);
            }
            if (from..until).contains(&u64::from_be_bytes(bytes)) {
                let message = [b"".as_slice(), number, payload];
                let _ = self.state.message(&message, &self.counters, &mut self.ops);
                count += 1;
            }
            connection.done(end);
            self.post().await;
        }
    }

    /// Says what is special about a message.
    fn say(&self, taken: Taken) {
        match taken.reset {
            Some(ResetReason::Gap) => warn!(
                worker = &*self.worker,
                dp_rank = self.dp_rank.0,
                missed = taken.missed,
                "KV event batches were lost: this rank's blocks are forgotten until it reports them again"
            ),
            Some(_) => info!(
                worker = &*self.worker,
                dp_rank = self.dp_rank.0,
                "the engine's event stream began again: its blocks are forgotten"
            ),
            None if taken.missed > 0 => info!(
                worker = &*self.worker,
                dp_rank = self.dp_rank.0,
                missed = taken.missed,
                "joined a running event stream: blocks stored before are unknown until stored again"
            ),
            None => {}
        }
    }

    async fn forget(&mut self) {
        self.state.disconnected(&self.counters, &mut self.ops);
        self.post().await;
        self.tell(false).await;
    }

    /// Posts everything, waiting for room. Cancel-safe: operations leave the list only once they are posted.
    async fn post(&mut self) {
        self.number_tiers();
        let tiers = self.tiers;
        for (tier, slice, ops) in self.ops.trees_mut() {
            let number = match tier {
                Tier::Device => Some(self.rank),
                Tier::Host => tiers.host,
                Tier::Disk => tiers.disk,
            };
            let Some(rank) = number else {
                ops.clear();
                continue;
            };
            while !ops.is_empty() {
                let count = ops.len().min(KV_BATCH_OPS_MAX);
                let batch: Vec<_> = ops.iter().take(count).copied().collect();
                match self.port.post(slice, KvBatch { rank, ops: batch }) {
                    Ok(()) => drop(ops.drain(..count)),
                    Err(_) => {
                        self.counters.stall();
                        sleep(RING_FULL_PAUSE).await;
                    }
                }
            }
        }
    }

    /// Trees in use beside the device's.
    fn trees(&self) -> [bool; 2] {
        [self.state.has_tree(Tier::Host), self.state.has_tree(Tier::Disk)]
    }

    /// Asks for the numbers of tiers that have got a tree.
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
            *number = self.tier_numbers.number(self.rank, tier);
            if number.is_none() && !std::mem::replace(&mut self.refused, true) {
                warn!(
                    worker = &*self.worker,
                    dp_rank = self.dp_rank.0,
                    tier = tier.label(),
                    "the fleet is too large for this tier's blocks to be matched"
                );
            }
        }
    }

    async fn tell(&mut self, live: bool) {
        let block_size_tokens = self.state.block_size_tokens();
        let tiers = self.tiers;
        let notice = FeedNotice { rank: self.rank, live, block_size_tokens, tiers };
        if notice != self.told && self.notices.send(notice).await.is_ok() {
            self.told = notice;
        }
    }

    /// Says once per outage why there are no events.
    fn lost(&self, error: &SocketError, silent: &mut bool) {
        if *silent {
            debug!(worker = &*self.worker, dp_rank = self.dp_rank.0, %error, "still no KV events");
            return;
        }
        *silent = true;
        warn!(
            worker = &*self.worker,
            dp_rank = self.dp_rank.0,
            endpoint = %self.endpoint,
            %error,
            "no KV events: prompts are not matched against this rank until it is reached; trying on"
        );
    }
}
