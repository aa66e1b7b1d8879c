//! One rank's stream without its socket: messages in, operations and counts out. Sans-IO, so that
//! tests and the fuzzer run the very path that sockets feed.

use super::blocks::RankBlocks;
use super::counters::{BatchResult, FeedCounters, ResetReason};
use super::event_target::EventTarget;
use super::naming::{BlockText, Naming};
use super::outcome::BatchOutcome;
use super::pool::PoolBlocks;
use super::rank_copy::{KeptBlocks, RestoredBlocks};
use super::sequence::{Arrival, Mark, Sequence};
use super::slice_ops::SliceOps;
use super::text_fit::TextFit;
use super::tier::{LowerTiers, Tier};
use super::windows::Resume;
use forebay_kv_decode::{Batch, Decoder};
use std::cell::RefCell;
use std::rc::Rc;
use tokio::time::Instant;

/// What an event costs beside its blocks, in blocks.
const EVENT_COST: usize = 1;

/// State of one stream.
#[derive(Debug)]
pub struct RankFeed<T> {
    decoder: Decoder,
    blocks: RankBlocks<T>,
    sequence: Sequence,
    block_size_tokens: u32,
    /// What is held came from a snapshot, and nothing has shown yet that the engine still is where
    /// it was then.
    is_unverified: bool,
    /// What is held goes back to before a snapshot: the engine may not remember all of it.
    is_continued: bool,
    /// Between two parts of a message.
    is_within: bool,
    /// What its rank shares with others.
    pool: Option<Rc<RefCell<PoolBlocks<T>>>>,
}

/// A message that is being taken.
#[derive(Debug)]
pub struct MessageProgress<'p> {
    /// `None` if it cannot be read, or has been.
    batch: Option<Batch<'p>>,
    done: MessageResult,
    is_sound: bool,
    /// What became of the event in hand.
    outcome: Option<BatchOutcome>,
    counts: MessageCounts,
    /// Blocks since this was asked last.
    work: usize,
}

/// Events of a message.
#[derive(Clone, Copy, Debug, Default)]
struct MessageCounts {
    taken: usize,
    failed: usize,
}

/// A place in a stream that a snapshot takes and brings back, with what was held there.
#[derive(Clone, Debug)]
pub struct RankState<B> {
    /// The blocks.
    pub blocks: B,
    /// Number of the last batch taken.
    pub sequence: u64,
    /// XXH3-64 of that batch's payload.
    pub payload_hash: u64,
    /// Tokens per block as seen in events; 0 if none has told.
    pub block_size_tokens: u32,
}

/// What one message was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageResult {
    /// For the counters.
    pub result: BatchResult,
    /// Set when the rank was cleared: batches before this one were lost, the publisher restarted,
    /// or this one could not be read.
    pub reset: Option<ResetReason>,
    /// Batches missing before this one.
    pub missed: u64,
}

impl<T: BlockText> RankFeed<T> {
    /// Nothing seen yet.
    #[must_use]
    pub fn new(naming: Naming<T>, entries_max: usize) -> Self {
        Self {
            decoder: Decoder::new(),
            blocks: RankBlocks::new(naming, entries_max),
            sequence: Sequence::default(),
            block_size_tokens: 0,
            is_unverified: false,
            is_continued: false,
            is_within: false,
            pool: None,
        }
    }

    /// The rank shares that pool from now on.
    pub fn share(&mut self, pool: Rc<RefCell<PoolBlocks<T>>>) {
        self.pool = Some(pool);
    }

    /// What the rank shares with others. Never borrowed across an await, nor while a message is
    /// taken.
    #[must_use]
    pub fn pool(&self) -> Option<&Rc<RefCell<PoolBlocks<T>>>> {
        self.pool.as_ref()
    }

    /// A copy for a snapshot; `None` where there is nothing worth one, and within a message.
    #[must_use]
    pub fn state(&self) -> Option<RankState<KeptBlocks>> {
        let last = self.sequence.last_mark()?;
        (!self.blocks.is_empty() && !self.is_within).then(|| RankState {
            blocks: self.blocks.copy(),
            sequence: last.number,
            payload_hash: last.digest,
            block_size_tokens: self.block_size_tokens,
        })
    }

    /// From now on copies are to be taken.
    pub fn keep_recent(&mut self) {
        self.blocks.keep_recent();
    }

    /// Goes on where a snapshot was taken; unverified until the stream shows that the engine did so
    /// too.
    pub fn restore(&mut self, state: RankState<RestoredBlocks>, counters: &FeedCounters) {
        let before = self.blocks.size();
        self.blocks.restore(state.blocks, state.block_size_tokens);
        counters.size_changed(before, self.blocks.size());
        self.sequence =
            Sequence::after(Mark { number: state.sequence, digest: state.payload_hash });
        self.block_size_tokens = state.block_size_tokens;
        self.is_unverified = true;
        self.is_continued = true;
    }

    /// Where the rank can resume a prompt that it holds.
    #[must_use]
    pub fn resume(&self) -> Resume {
        self.blocks.resume()
    }

    /// True while something is held that was restored, confirmed or not.
    #[must_use]
    pub fn is_continued(&self) -> bool {
        self.is_continued
    }

    /// True while nothing has confirmed what was restored.
    #[must_use]
    pub fn is_unverified(&self) -> bool {
        self.is_unverified
    }

    /// The engine has the batch that was the last one before the snapshot. True if that was not
    /// known.
    pub fn confirm(&mut self) -> bool {
        std::mem::take(&mut self.is_unverified)
    }

    /// Tokens per block as seen in the events of this connection; 0 before the first.
    #[must_use]
    pub fn block_size_tokens(&self) -> u32 {
        self.block_size_tokens
    }

    /// Which tiers beside the device count; `expected` are those of an engine that is known to use
    /// them. Before the first message.
    pub fn set_lower_tiers(&mut self, counted: LowerTiers, expected: bool) {
        self.blocks.set_lower_tiers(counted);
        if expected {
            self.blocks.expect_lower_tiers();
        }
    }

    /// True once the index has a tree for that tier.
    #[must_use]
    pub fn has_tree(&self, tier: Tier) -> bool {
        self.blocks.has_tree(tier)
    }

    /// Blocks known by the engine's hash.
    #[must_use]
    pub fn block_count(&self) -> usize {
        self.blocks.len()
    }

    /// Do the blocks fit the tokenizer? `None` before any has shown it.
    #[must_use]
    pub fn text_fit(&self) -> Option<TextFit> {
        self.blocks.text_fit()
    }

    /// What a message is to those taken before. Changes nothing.
    #[must_use]
    pub fn arrival(&self, message: &KvMessage<'_>) -> Arrival {
        self.sequence.judge(message.mark)
    }

    /// Number of the last batch taken.
    #[must_use]
    pub fn last_number(&self) -> Option<u64> {
        self.sequence.last()
    }

    /// A replay begins: the live stream may bring the same batches again.
    pub fn expect_repeats(&mut self) {
        self.sequence.expect_repeats();
    }

    /// The stream has been quiet for a while.
    pub fn rest(&mut self) {
        self.sequence.rest();
    }

    /// The live stream is past what a replay brought.
    pub fn no_more_repeats(&mut self) {
        self.sequence.no_more_repeats();
    }

    /// Takes one message, `[topic, sequence, payload]`, in one go.
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

    /// Begins to take a message, `None` if it was malformed; [`RankFeed::step`] goes on. The error
    /// is a message that is done.
    ///
    /// # Errors
    /// It was taken before, or was malformed.
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
        if self.arrival(&message) == Arrival::Repeated {
            self.is_unverified = false;
            return Err(MessageResult { result: BatchResult::Applied, reset: None, missed: 0 });
        }
        let KvMessage { mark, payload } = message;
        let before = self.blocks.size();
        let (mut reset, missed) = match self.sequence.take(mark) {
            Arrival::Next | Arrival::Repeated => (None, 0),
            Arrival::First { missed } => (None, missed),
            Arrival::Gap { missed } => (Some(ResetReason::Gap), missed),
            Arrival::Restarted => (Some(ResetReason::Restart), 0),
        };
        // The message before was given up half way.
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

    /// Takes events until about `blocks_max` blocks are done. What the message was, once it is
    /// over.
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
            // What it said is lost for good, and it may have been a removal.
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

    /// The connection ended: what happens now is lost, so nothing that is held can be trusted.
    pub fn disconnected(&mut self, counters: &FeedCounters, ops: &mut SliceOps) {
        if self.blocks.is_empty() {
            self.begin_again(counters, ops);
        } else {
            self.reset(ResetReason::Disconnect, counters, ops);
        }
        self.block_size_tokens = 0;
    }

    /// What is held cannot be trusted for another reason: forgets everything, also which batches
    /// came.
    pub fn reset(&mut self, reason: ResetReason, counters: &FeedCounters, ops: &mut SliceOps) {
        counters.reset(reason);
        self.count_dropped(reason, counters);
        self.begin_again(counters, ops);
    }

    /// What is held goes; counts it if it came from a snapshot and was never confirmed.
    fn count_dropped(&mut self, reason: ResetReason, counters: &FeedCounters) {
        if std::mem::take(&mut self.is_unverified) {
            counters.dropped(reason.into(), self.blocks.len() as u64);
        }
    }

    /// Takes out what is too old; false if there may be more. See [`RankBlocks::expire`].
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

    /// When something may be too old next.
    #[must_use]
    pub fn next_expiry(&self) -> Option<Instant> {
        self.blocks.next_expiry()
    }

    /// Forgets the stream, to take it from its start.
    pub fn begin_again(&mut self, counters: &FeedCounters, ops: &mut SliceOps) {
        let before = self.blocks.size();
        self.blocks.clear(ops);
        counters.size_changed(before, self.blocks.size());
        counters.orphan_outcomes(self.blocks.take_orphan_outcomes());
        self.sequence = Sequence::default();
        self.is_unverified = false;
        self.is_continued = false;
        self.is_within = false;
    }

    /// Takes events; at their end, whether all could be read.
    fn events(
        &mut self,
        progress: &mut MessageProgress<'_>,
        blocks_max: usize,
        counters: &FeedCounters,
        ops: &mut SliceOps,
    ) -> Option<bool> {
        let Self { decoder, blocks, block_size_tokens, pool, .. } = self;
        let mut pool = pool.as_ref().map(|pool| pool.borrow_mut());
        let pool = pool.as_deref_mut();
        let mut target = EventTarget { blocks, pool, block_size_tokens, ops };
        let MessageProgress { batch: slot, is_sound, outcome: kept, counts, work, .. } = progress;
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
            // The first part that was not applied says what became of the event.
            let outcome = kept.filter(|kept| *kept != BatchOutcome::Applied).unwrap_or(outcome);
            *kept = Some(outcome);
            if !is_last && outcome.continues() {
                continue;
            }
            batch.skip_event();
            *kept = None;
            *is_sound &= outcome != BatchOutcome::Malformed;
            counters.event(kind, outcome);
            counts.count(outcome);
        }
        None
    }
}

impl MessageProgress<'_> {
    /// Blocks, roughly, that were taken since this was asked last.
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

/// A message of an engine, `[topic, sequence, payload]`. Its payload may be megabytes: it is hashed
/// here, once.
#[derive(Clone, Copy, Debug)]
pub struct KvMessage<'p> {
    mark: Mark,
    payload: &'p [u8],
}

impl<'p> KvMessage<'p> {
    /// `None` if it is malformed.
    #[must_use]
    pub fn read(parts: &[&'p [u8]]) -> Option<Self> {
        let &[_, number, payload] = parts else { return None };
        let number = u64::from_be_bytes(number.try_into().ok()?);
        Some(Self { mark: Mark::new(number, payload), payload })
    }

    /// The publisher's number of it.
    pub(super) const fn number(&self) -> u64 {
        self.mark.number
    }
}
