//! The KV-event stream of a rank without its socket: messages in, operations and counts out.
//! Sans-IO, so that tests and the fuzzer run the code that sockets feed.

mod history;

use super::block_sizes::BlockSizes;
use super::event_target::EventTarget;
use super::rank_copy::{BlocksCopy, RestoredBlocks};
use super::sequence::{BatchArrival, Mark, Sequence};
use super::text_fit::TextFit;
use crate::blocks::RankBlocks;
use crate::counters::{BatchResult, FeedCounters, ResetReason};
use crate::outcome::BatchOutcome;
use crate::paths::naming::{BlockText, Naming};
use crate::paths::size_mix::DeviceSizes;
use crate::paths::slice_ops::SliceOps;
use crate::paths::tier::{LowerTiers, Tier};
use crate::paths::windows::Resume;
use crate::pool::PoolBlocks;
use forebay_kv_decode::{Batch, Decoder};
use std::cell::RefCell;
use std::rc::Rc;
use tokio::time::Instant;

/// Cost of an event beside its blocks, in blocks.
const EVENT_COST: usize = 1;

/// State of the KV-event stream of a rank.
#[derive(Debug)]
pub struct RankFeed<T> {
    decoder: Decoder,
    blocks: RankBlocks<T>,
    sequence: Sequence,
    sizes: BlockSizes,
    /// The blocks came from a snapshot, and the stream has not confirmed them yet.
    is_unverified: bool,
    /// The blocks go back to before a snapshot, so the engine may not be able to replay all.
    is_continued: bool,
    /// A message has been applied in part.
    is_within: bool,
    /// Pool that the rank shares with other ranks.
    pool: Option<Rc<RefCell<PoolBlocks<T>>>>,
}

/// A message that is being applied, in parts.
#[derive(Debug)]
pub struct MessageProgress<'p> {
    /// `None` for a batch that cannot be decoded, and after its end.
    batch: Option<Batch<'p>>,
    done: MessageResult,
    is_sound: bool,
    /// Outcome of the present event so far.
    outcome: Option<BatchOutcome>,
    counts: MessageCounts,
    /// Cost since the last [`Self::take_work`], in blocks.
    work: usize,
}

/// Events of a message by outcome.
#[derive(Clone, Copy, Debug, Default)]
struct MessageCounts {
    taken: usize,
    failed: usize,
}

/// A place in a stream with the blocks there, for a snapshot or from a snapshot.
#[derive(Clone, Debug)]
pub struct RankState<B> {
    pub blocks: B,
    /// Number of the last batch applied.
    pub sequence: u64,
    /// XXH3-64 of that batch's payload.
    pub payload_hash: u64,
    /// Tokens per block as reported in events, 0 before the first.
    pub block_size_tokens: u32,
}

/// Result of an applied message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageResult {
    pub result: BatchResult,
    /// Set when the message cleared the rank: batches before it were lost, the publisher restarted,
    /// or the batch could not be decoded.
    pub reset: Option<ResetReason>,
    /// Batches missing before this batch.
    pub missed: u64,
}

impl<T: BlockText> RankFeed<T> {
    #[must_use]
    pub fn new(naming: Naming<T>, entries_max: usize) -> Self {
        Self {
            decoder: Decoder::new(),
            blocks: RankBlocks::new(naming, entries_max),
            sequence: Sequence::default(),
            sizes: BlockSizes::default(),
            is_unverified: false,
            is_continued: false,
            is_within: false,
            pool: None,
        }
    }

    /// Sets the pool that the rank shares.
    pub fn share(&mut self, pool: Rc<RefCell<PoolBlocks<T>>>) {
        self.pool = Some(pool);
    }

    /// The pool that the rank shares. Never borrowed across an await, nor while a message is
    /// applied.
    #[must_use]
    pub fn pool(&self) -> Option<&Rc<RefCell<PoolBlocks<T>>>> {
        self.pool.as_ref()
    }

    /// A copy for a snapshot; `None` without blocks, within a message, and with blocks of several
    /// sizes, because a snapshot has a single size.
    #[must_use]
    pub fn state(&self) -> Option<RankState<BlocksCopy>> {
        let last = self.sequence.last_mark()?;
        let is_mixed = self.device_sizes().finer_tokens > 0;
        (!self.blocks.is_empty() && !self.is_within && !is_mixed).then(|| RankState {
            blocks: self.blocks.copy(),
            sequence: last.number,
            payload_hash: last.digest,
            block_size_tokens: self.sizes.usual,
        })
    }

    /// From now on copies contain the links of the blocks stored last.
    pub fn keep_recent(&mut self) {
        self.blocks.keep_recent();
    }

    /// Continues from a snapshot. The blocks are unverified until the stream shows that the engine
    /// continued from there too.
    pub fn restore(&mut self, state: RankState<RestoredBlocks>, counters: &FeedCounters) {
        let before = self.blocks.size();
        self.blocks.restore(state.blocks, state.block_size_tokens);
        counters.size_changed(before, self.blocks.size());
        self.sequence =
            Sequence::after(Mark { number: state.sequence, digest: state.payload_hash });
        self.sizes.usual = state.block_size_tokens;
        self.is_unverified = true;
        self.is_continued = true;
    }

    /// Blocks behind which the rank can resume a cached prompt.
    #[must_use]
    pub fn resume(&self) -> Resume {
        self.blocks.resume()
    }

    /// True while there are restored blocks, confirmed or not.
    #[must_use]
    pub fn is_continued(&self) -> bool {
        self.is_continued
    }

    /// True while the stream has not confirmed the restored blocks.
    #[must_use]
    pub fn is_unverified(&self) -> bool {
        self.is_unverified
    }

    /// Confirms the restored blocks, because the engine has the last batch before the snapshot.
    /// True if they were unverified.
    pub fn confirm(&mut self) -> bool {
        std::mem::take(&mut self.is_unverified)
    }

    /// Tokens per block as reported in events of this connection; 0 before the first.
    #[must_use]
    pub fn block_size_tokens(&self) -> u32 {
        self.sizes.usual
    }

    /// Sizes of the blocks on the device.
    #[must_use]
    pub fn device_sizes(&self) -> DeviceSizes {
        self.blocks.device_sizes()
    }

    /// Sets the tiers that count beside the device; `expected` if the engine is known to use them.
    /// Only before the first message.
    pub fn set_lower_tiers(&mut self, counted: LowerTiers, expected: bool) {
        self.blocks.set_lower_tiers(counted);
        if expected {
            self.blocks.expect_lower_tiers();
        }
    }

    /// True once the tier has a tree in the index.
    #[must_use]
    pub fn has_tree(&self, tier: Tier) -> bool {
        self.blocks.has_tree(tier)
    }

    /// Blocks by engine hash and group.
    #[must_use]
    pub fn block_count(&self) -> usize {
        self.blocks.len()
    }

    /// Whether blocks and tokenizer fit; `None` before the first evidence.
    #[must_use]
    pub fn text_fit(&self) -> Option<TextFit> {
        self.blocks.text_fit()
    }

    /// Applies a message, `[topic, sequence, payload]`, at once.
    pub fn message(
        &mut self,
        parts: &[&[u8]],
        counters: &FeedCounters,
        ops: &mut SliceOps,
    ) -> MessageResult {
        let mut progress = match self.begin(KvMessage::read(parts), counters, ops) {
            Ok(progress) => progress,
            Err(taken) => return taken,
        };
        loop {
            if let Some(taken) = self.step(&mut progress, usize::MAX, counters, ops) {
                return taken;
            }
        }
    }

    /// Begins to apply a message, `None` if it was malformed; [`RankFeed::step`] continues.
    ///
    /// # Errors
    /// The result of a message that was applied before, or is malformed.
    pub fn begin<'p>(
        &mut self,
        message: Option<KvMessage<'p>>,
        counters: &FeedCounters,
        ops: &mut SliceOps,
    ) -> Result<MessageProgress<'p>, MessageResult> {
        let Some(message) = message else {
            counters.batch(BatchResult::Refused);
            return Err(MessageResult { result: BatchResult::Refused, reset: None, missed: 0 });
        };
        if self.arrival(&message) == BatchArrival::Repeated {
            self.is_unverified = false;
            return Err(MessageResult { result: BatchResult::Applied, reset: None, missed: 0 });
        }
        let KvMessage { mark, payload } = message;
        let before = self.blocks.size();
        let (mut reset, missed) = match self.sequence.take(mark) {
            BatchArrival::Next | BatchArrival::Repeated => (None, 0),
            BatchArrival::First { missed } => (None, missed),
            BatchArrival::Gap { missed } => (Some(ResetReason::Gap), missed),
            BatchArrival::Restarted => (Some(ResetReason::Restart), 0),
        };
        // The message before was applied in part and then abandoned.
        if std::mem::replace(&mut self.is_within, true) {
            reset = reset.or(Some(ResetReason::Gap));
        }
        if let Some(reason) = reset {
            self.count_dropped(reason, counters);
            self.is_continued = false;
            self.blocks.clear(ops);
        }
        self.is_unverified = false;
        counters.size_changed(before, self.blocks.size());
        let batch = Batch::begin(payload).ok();
        let done = MessageResult { result: BatchResult::Applied, reset, missed };
        Ok(MessageProgress {
            batch,
            done,
            is_sound: true,
            outcome: None,
            counts: MessageCounts::default(),
            work: 0,
        })
    }

    /// Applies events until about `blocks_max` blocks are done. Returns the result at the end of
    /// the message.
    pub fn step(
        &mut self,
        progress: &mut MessageProgress<'_>,
        blocks_max: usize,
        counters: &FeedCounters,
        ops: &mut SliceOps,
    ) -> Option<MessageResult> {
        let before = self.blocks.size();
        let ended = self.events(progress, blocks_max, counters, ops);
        let reset = match ended {
            // The lost events may contain removals.
            Some(false) => Some(ResetReason::Undecodable),
            _ if self.blocks.contradicts_itself() => Some(ResetReason::Contradiction),
            _ => None,
        };
        if reset.is_some() {
            self.blocks.clear(ops);
            progress.done.reset = reset;
        }
        counters.size_changed(before, self.blocks.size());
        counters.orphan_outcomes(self.blocks.take_orphan_outcomes());
        if ended.is_none() && reset.is_none() {
            return None;
        }
        self.is_within = false;
        let taken = MessageResult { result: progress.result(ended), ..progress.done };
        counters.batch(taken.result);
        if let Some(reason) = taken.reset {
            counters.reset(reason);
        }
        Some(taken)
    }

    /// Removes all blocks at the end of a connection, because later removals are not received.
    pub fn disconnected(&mut self, counters: &FeedCounters, ops: &mut SliceOps) {
        if self.blocks.is_empty() {
            self.begin_again(counters, ops);
        } else {
            self.reset(ResetReason::Disconnect, counters, ops);
        }
        self.sizes.usual = 0;
    }

    /// Removes all blocks and continues with the stream: the engine has emptied its cache.
    pub fn empty(&mut self, counters: &FeedCounters, ops: &mut SliceOps) {
        let before = self.blocks.size();
        self.blocks.clear(ops);
        counters.size_changed(before, self.blocks.size());
        counters.orphan_outcomes(self.blocks.take_orphan_outcomes());
    }

    /// Removes all blocks for another reason, and forgets the batches applied so far.
    pub fn reset(&mut self, reason: ResetReason, counters: &FeedCounters, ops: &mut SliceOps) {
        counters.reset(reason);
        self.count_dropped(reason, counters);
        self.begin_again(counters, ops);
    }

    /// Counts the blocks as dropped if the stream never confirmed them; the caller removes them.
    fn count_dropped(&mut self, reason: ResetReason, counters: &FeedCounters) {
        if std::mem::take(&mut self.is_unverified) {
            counters.dropped(reason.into(), self.blocks.len() as u64);
        }
    }

    /// Takes out expired blocks; false if there may be more. See [`RankBlocks::expire`].
    pub fn expire(
        &mut self,
        now: Instant,
        blocks_max: usize,
        counters: &FeedCounters,
        ops: &mut SliceOps,
    ) -> bool {
        let before = self.blocks.size();
        let expired = self.blocks.expire(now, blocks_max, ops);
        counters.size_changed(before, self.blocks.size());
        counters.expired(&expired);
        expired.is_done
    }

    /// Earliest time at which a block may expire.
    #[must_use]
    pub fn next_expiry(&self) -> Option<Instant> {
        self.blocks.next_expiry()
    }

    /// Removes all blocks and forgets the stream, to follow it from its start.
    pub fn begin_again(&mut self, counters: &FeedCounters, ops: &mut SliceOps) {
        self.empty(counters, ops);
        self.sequence = Sequence::default();
        self.is_unverified = false;
        self.is_continued = false;
        self.is_within = false;
    }

    /// Applies events; at their end, returns whether all could be decoded.
    fn events(
        &mut self,
        progress: &mut MessageProgress<'_>,
        blocks_max: usize,
        counters: &FeedCounters,
        ops: &mut SliceOps,
    ) -> Option<bool> {
        let Self { decoder, blocks, sizes, pool, .. } = self;
        let mut pool = pool.as_ref().map(|pool| pool.borrow_mut());
        let pool = pool.as_deref_mut();
        let mut target = EventTarget { blocks, pool, sizes, ops };
        let MessageProgress { batch: slot, is_sound, outcome: so_far, counts, work, .. } = progress;
        let Some(batch) = slot else { return Some(false) };
        let mut left = blocks_max;
        while left > 0 {
            let part = match decoder.next(batch, left) {
                Ok(Some(part)) => part,
                ended => {
                    let ends_well = ended.is_ok() && slot.take().is_some_and(Batch::ends_well);
                    return Some(ends_well && *is_sound);
                }
            };
            let cost = part.event.block_count() + EVENT_COST;
            left = left.saturating_sub(cost);
            *work += cost;
            let is_last = part.is_last;
            let (kind, outcome) = target.apply(&part.event);
            // The first part that was not applied determines the outcome of the event.
            let failed = so_far.filter(|so_far| *so_far != BatchOutcome::Applied);
            let outcome = failed.unwrap_or(outcome);
            *so_far = Some(outcome);
            if !is_last && outcome.continues() {
                continue;
            }
            batch.skip_event();
            *so_far = None;
            *is_sound &= outcome != BatchOutcome::Malformed;
            counters.event(kind, outcome);
            counts.count(outcome);
        }
        None
    }
}

impl MessageProgress<'_> {
    /// Cost since the last call, about the number of blocks.
    pub fn take_work(&mut self) -> usize {
        std::mem::take(&mut self.work)
    }

    fn result(&self, ended: Option<bool>) -> BatchResult {
        let is_whole = ended == Some(true) || ended.is_none();
        match (is_whole, self.counts.taken, self.counts.failed) {
            (true, _, 0) => BatchResult::Applied,
            (_, 0, _) => BatchResult::Refused,
            _ => BatchResult::Partly,
        }
    }
}

impl MessageCounts {
    fn count(&mut self, outcome: BatchOutcome) {
        match outcome {
            BatchOutcome::Applied
            | BatchOutcome::Orphaned
            | BatchOutcome::Elsewhere
            | BatchOutcome::OtherGroup => {
                self.taken += 1;
            }
            _ => self.failed += 1,
        }
    }
}

/// A message of an engine, `[topic, sequence, payload]`. The payload may be megabytes, so it is
/// hashed once, here.
#[derive(Clone, Copy, Debug)]
pub struct KvMessage<'p> {
    mark: Mark,
    payload: &'p [u8],
}

impl<'p> KvMessage<'p> {
    /// `None` for a malformed message.
    #[must_use]
    pub fn read(parts: &[&'p [u8]]) -> Option<Self> {
        let &[_, number, payload] = parts else { return None };
        let number = u64::from_be_bytes(number.try_into().ok()?);
        Some(Self { mark: Mark::new(number, payload), payload })
    }

    /// The rank in the batch.
    pub(crate) fn rank(&self) -> Option<u32> {
        Batch::rank(self.payload)
    }

    /// Sequence number of the publisher, and digest of the payload.
    pub(crate) const fn mark(&self) -> Mark {
        self.mark
    }
}
