//! Requests in flight on a rank: a cell of atomics of the load board. This cell is authoritative
//! for requests of this router. Only leases (`account::lease`) write the counts of requests and
//! tokens; each of the other words documents its writer.

use super::RankSigns;
use super::faults::refusal::RefusalNote;
use forebay_base::{ModelIndex, NanosSinceStart, QueueIndex};
use forebay_fleet::worker::{RoomDemand, RoomLimits};
use forebay_ring::sync::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

/// `held` has the places above this bit, and the KV tokens below it: 16 million places, a million
/// million tokens.
pub(super) const PLACE_BIT: u32 = 40;
pub(super) const ONE_PLACE: u64 = 1 << PLACE_BIT;
pub(super) const TOKENS_MASK: u64 = ONE_PLACE - 1;
/// `queue` of a rank without a queue.
const NO_QUEUE: u32 = u32::MAX;
/// After this time since a refusal, 1 request more than at the refusal may try. After each further
/// period, twice as many more.
const REFUSAL_STEP_MS: u64 = 200;
/// After this many steps, more requests may try than a rank can have places: the refusal is
/// forgotten.
const REFUSAL_STEPS: u64 = 24;
// Each step is a shift of a `u32`, and no rank has more places than the word can count.
const _: () = assert!(REFUSAL_STEPS < u32::BITS as u64);
const _: () = assert!(REFUSAL_STEPS >= (u64::BITS - PLACE_BIT) as u64);

/// Requests in flight on a rank, as counted by this process.
#[derive(Debug)]
pub struct RankLoad {
    /// Places taken and KV tokens reserved, in a single word: a single compare-and-swap checks both
    /// limits.
    held: AtomicU64,
    pub(super) prefill_tokens: AtomicU64,
    /// Part of `prefill_tokens` without a visible first token, see `UnstreamedPrompts`. The bits
    /// above [`PLACE_BIT`] are the number of the next prompt, which wraps.
    pub(super) unseen: AtomicU64,
    /// All requests that the engine had accepted and that have ended, for the drain rate. The bits
    /// above [`PLACE_BIT`] count prompts that are computed as far as this router knows, or given
    /// up. That count wraps.
    pub(super) ended: AtomicU64,
    /// Places and tokens of other replicas and of another worker of the same engine, in the layout
    /// of `held`. Written by the control plane.
    elsewhere: AtomicU64,
    /// Prompt tokens that the rank has yet to compute for other replicas. Written by the control
    /// plane.
    prefill_elsewhere: AtomicU64,
    /// The engine refused a request; the rank gets no requests until then. Written by the shard of
    /// the refused request.
    busy_until_ns: AtomicU64,
    /// Time of the last refusal, in milliseconds, below [`PLACE_BIT`], and the requests in flight
    /// at that time above it; 0: never.
    refused: AtomicU64,
    /// Queue that waits for room here. Written by the control plane.
    queue: AtomicU32,
    /// Learned limit of requests, see `LearnedLimit`; 0: no limit. Written by the control plane.
    learned_places: AtomicU32,
    /// Set by shards, taken by the control plane.
    signs: RankSigns,
    /// No request in that queue can use room here. Written by the queue's owner.
    spare: AtomicBool,
    /// The model of [`Self::refused`], and refusals in a row: see `RefusalNote`.
    refusals: AtomicU32,
    /// Weights of failures, halved by successes.
    pub(super) failures: AtomicU32,
    /// The callers and the model of the failures.
    pub(super) witnesses: AtomicU32,
    /// Successes in a row, pauses, the share of failures, and failures that this rank shares with
    /// another rank.
    pub(super) history: AtomicU32,
    pub(super) open_until_ns: AtomicU64,
    /// Requests that try the rank, see `RankLoad::claim`.
    pub(super) trials: AtomicU8,
    /// Reason of the ejection. Written by the control plane.
    pub(super) ejection: AtomicU8,
    /// Every request fails. Written by the control plane.
    pub(super) is_failing: AtomicBool,
    /// Number of ejections by reason.
    pub(super) ejections: AtomicU32,
}

// A cache line, or the pair of lines that a core fetches together.
#[cfg(not(feature = "loom"))]
const _: () = assert!(size_of::<RankLoad>() <= 128);

impl Default for RankLoad {
    fn default() -> Self {
        Self {
            held: AtomicU64::new(0),
            prefill_tokens: AtomicU64::new(0),
            unseen: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            elsewhere: AtomicU64::new(0),
            prefill_elsewhere: AtomicU64::new(0),
            busy_until_ns: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            queue: AtomicU32::new(NO_QUEUE),
            learned_places: AtomicU32::new(0),
            signs: RankSigns::default(),
            spare: AtomicBool::new(false),
            refusals: AtomicU32::new(0),
            failures: AtomicU32::new(0),
            witnesses: AtomicU32::new(0),
            history: AtomicU32::new(0),
            open_until_ns: AtomicU64::new(0),
            trials: AtomicU8::new(0),
            ejection: AtomicU8::new(0),
            is_failing: AtomicBool::new(false),
            ejections: AtomicU32::new(0),
        }
    }
}

impl RankLoad {
    /// Takes a place and KV tokens, unless a limit would be exceeded. Returns the number of tokens,
    /// which has to be given back: `wanted`, or the tokens that are left if `wanted` exceeds the
    /// limit. Exact under any interleaving, for places and tokens together: a single word decides.
    /// The prefill limit is checked first: it bounds new prefills, not places.
    #[must_use]
    pub fn try_acquire(&self, limits: RoomLimits, wanted: RoomDemand) -> Option<u64> {
        if !self.takes_prefill(limits) {
            return None;
        }
        // ordering: written by a single thread, read as a limit; pairs with the store in
        // `set_elsewhere`.
        let elsewhere = self.elsewhere.load(Ordering::Relaxed);
        let limits = self.limited(limits);
        let wanted = wanted.kv_tokens.min(TOKENS_MASK);
        let mut taken = 0;
        let take = |held: u64| {
            // Limit the tokens to the bits of the word: the release subtracts the same number.
            taken = share(held.saturating_add(elsewhere), limits, wanted)?
                .min(TOKENS_MASK - (held & TOKENS_MASK));
            debug_assert!(taken <= wanted, "more tokens than wanted");
            let sum = held.saturating_add(ONE_PLACE | taken);
            debug_assert!(places(sum) == places(held) + 1, "tokens ran over into places");
            Some(sum)
        };
        // ordering: a count that publishes nothing; the read-modify-write decides, so two shards
        // cannot both take the last place. `QueueCell` wakes the waiters.
        let took = self.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        took.is_ok().then_some(taken)
    }

    /// Would [`Self::try_acquire`] succeed now? A hint: only taking decides.
    #[must_use]
    pub fn has_room(&self, limits: RoomLimits, wanted: RoomDemand) -> bool {
        // ordering: hints; pair with nothing.
        let held = self.held.load(Ordering::Relaxed);
        // ordering: as above.
        let elsewhere = self.elsewhere.load(Ordering::Relaxed);
        let limits = self.limited(limits);
        let tokens = wanted.kv_tokens.min(TOKENS_MASK);
        self.takes_prefill(limits)
            && share(held.saturating_add(elsewhere), limits, tokens).is_some()
    }

    /// Gives a place and its tokens back, and wakes no waiter. Leases use
    /// [`LoadBoard::give_back`](super::LoadBoard::give_back), which also wakes waiters.
    pub fn release(&self, kv_tokens: u64) {
        let tokens = kv_tokens.min(TOKENS_MASK);
        // ordering: pairs with `try_acquire` on the same word only. The fence that orders it before
        // the read of the waiters is in `QueueCell::room_made`.
        let before = self.held.fetch_sub(ONE_PLACE | tokens, Ordering::Relaxed);
        debug_assert!(
            before >= ONE_PLACE && before & TOKENS_MASK >= tokens,
            "lease returned twice"
        );
    }

    /// Corrects the tokens of a request from `before` to `after`.
    pub fn correct(&self, before: u64, after: u64) {
        if after > before {
            // ordering: as in `try_acquire`.
            let sum = self.held.fetch_add(after - before, Ordering::Relaxed);
            debug_assert!(sum & TOKENS_MASK < TOKENS_MASK - (after - before), "tokens ran over");
        } else if before > after {
            // ordering: as in `try_acquire`.
            let sum = self.held.fetch_sub(before - after, Ordering::Relaxed);
            debug_assert!(sum & TOKENS_MASK >= before - after, "tokens taken off twice");
        }
    }

    /// Signs that shards have seen of the rank and its worker, for the control plane.
    #[must_use]
    pub const fn signs(&self) -> &RankSigns {
        &self.signs
    }

    /// The engine refused a request for a model for lack of room. The rank gets no request for that
    /// model until the hold ends, or a request of this router ends there. From now on, the number
    /// of requests at the refusal is a limit, see [`Self::places_now`]. Called after the refused
    /// request has given its place back.
    ///
    /// Each further hold is twice as long. A refusal for a second model holds all models: a full
    /// engine refuses all of them.
    pub fn refused(&self, model: ModelIndex, now: NanosSinceStart) {
        // ordering: a hint; pairs with `busy_until`.
        let is_held = self.busy_until_ns.load(Ordering::Relaxed) > now.0;
        let is_recent = self.places_after_refusal(now).is_some();
        // ordering: an independent word, a hint; pairs with `is_refused_for`.
        let before = RefusalNote::of(self.refusals.load(Ordering::Relaxed));
        let next = before.with(model, is_recent, is_held);
        // ordering: as above.
        self.refusals.store(next.word(), Ordering::Relaxed);
        // ordering: a hint; a request that reads an old value is refused again.
        self.busy_until_ns.fetch_max(now.plus(next.hold()).0, Ordering::Relaxed);
        let note = |word: u64| {
            // ordering: read after the refused request has given its own place back, on the same
            // thread. The count may still include other requests that will be refused; each of them
            // lowers it in turn. Pairs with nothing else.
            let held = self.held.load(Ordering::Relaxed);
            // ordering: as in `try_acquire`.
            let had = held.saturating_add(self.elsewhere.load(Ordering::Relaxed));
            let least = places(had).min(places_after(word, now).unwrap_or(u32::MAX));
            Some(u64::from(least) << PLACE_BIT | millis(now).max(1))
        };
        // ordering: an independent word, read as a limit in `places_now`; the read-modify-write
        // keeps the smallest value. Model: tests/loom/rank_room.rs,
        // `after_a_refusal_one_end_lets_one_through`.
        let _ = self.refused.fetch_update(Ordering::Relaxed, Ordering::Relaxed, note);
    }

    /// Does the engine's last refusal concern requests for the model? `None`: any model.
    fn is_refused_for(&self, model: Option<ModelIndex>) -> bool {
        // ordering: a hint; pairs with `refused`.
        let note = RefusalNote::of(self.refusals.load(Ordering::Relaxed));
        model.is_none_or(|model| note.speaks_of(model))
    }

    /// Has the engine ever refused a request?
    #[must_use]
    #[inline]
    pub fn has_refused(&self) -> bool {
        // ordering: a hint; pairs with `refused`.
        self.refused.load(Ordering::Relaxed) != 0
    }

    /// Have the engine's recent refusals been for a single model? Then the engine has room for
    /// other models. `None`: any model.
    #[must_use]
    pub fn refuses_one_model(&self, model: Option<ModelIndex>, now: NanosSinceStart) -> bool {
        // ordering: a hint; pairs with `refused`.
        let note = RefusalNote::of(self.refusals.load(Ordering::Relaxed));
        self.places_now(model, now).is_some() && note.is_of_one()
    }

    fn places_after_refusal(&self, now: NanosSinceStart) -> Option<u32> {
        // ordering: read as a limit; a reader of an old value may be refused again.
        places_after(self.refused.load(Ordering::Relaxed), now)
    }

    /// Limit of requests after recent refusals by the engine; `None`: no such limit. At first the
    /// number of requests at the refusal, so that each end admits a single request and not all
    /// waiting requests. After a while without a refusal 1 more, then 3, 7, 15 and so on: the
    /// engine may take more than at the refusal, and only trying can show it.
    #[must_use]
    #[inline]
    pub fn places_now(&self, model: Option<ModelIndex>, now: NanosSinceStart) -> Option<u32> {
        let places = self.places_after_refusal(now)?;
        self.is_refused_for(model).then_some(places)
    }

    /// Limits after the engine's refusals, for a model or for any model.
    #[must_use]
    #[inline]
    pub fn room_at(
        &self,
        limits: RoomLimits,
        model: Option<ModelIndex>,
        now: NanosSinceStart,
    ) -> RoomLimits {
        let Some(places) = self.places_now(model, now) else { return limits };
        let limits = self.limited(limits);
        let most = if limits.places_max == 0 { RoomLimits::PLACES_MAX } else { limits.places_max };
        // Signed, as in `share`. At least 1: an engine that refused when idle is tried again.
        let least = places.cast_signed().min(most.cast_signed()).cast_unsigned();
        let room = RoomLimits { places_max: least.max(1), ..limits };
        debug_assert!((1..=most).contains(&room.places_max), "a refusal that makes room");
        room
    }

    /// A request that the engine had accepted has ended, so there is room again for its model.
    pub(super) fn has_ended(&self, model: ModelIndex) {
        // ordering: statistic; pairs with nothing.
        self.ended.fetch_add(1, Ordering::Relaxed);
        // ordering: hints; pair with `refused`.
        if self.busy_until_ns.load(Ordering::Relaxed) != 0 && self.is_refused_for(Some(model)) {
            // ordering: as above.
            self.busy_until_ns.store(0, Ordering::Relaxed);
            // ordering: as above.
            let note = RefusalNote::of(self.refusals.load(Ordering::Relaxed));
            // ordering: as above.
            self.refusals.store(note.without_count().word(), Ordering::Relaxed);
        }
    }

    /// End of the hold for a model, or for any model. A time in the past: there is no hold.
    #[must_use]
    #[inline]
    pub fn busy_until(&self, model: Option<ModelIndex>) -> NanosSinceStart {
        // ordering: a hint; pairs with `refused`.
        let until = self.busy_until_ns.load(Ordering::Relaxed);
        let speaks = until != 0 && self.is_refused_for(model);
        NanosSinceStart(if speaks { until } else { 0 })
    }

    /// Sets places and tokens on the rank that are no leases of this cell. Only the control plane
    /// calls this, by [`LoadBoard::set_elsewhere`](super::LoadBoard::set_elsewhere).
    pub fn set_elsewhere(&self, places: u32, kv_tokens: u64) {
        let word = u64::from(places) << PLACE_BIT | kv_tokens.min(TOKENS_MASK);
        // ordering: read as a limit in `try_acquire`; the replicas' reports may be old anyway.
        self.elsewhere.store(word, Ordering::Relaxed);
    }

    /// Sets the prompt tokens that the rank has yet to compute for other replicas. Only the control
    /// plane calls this.
    pub fn set_prefill_elsewhere(&self, tokens: u64) {
        // ordering: a hint for selection; pairs with nothing.
        self.prefill_elsewhere.store(tokens, Ordering::Relaxed);
    }

    /// Prompt tokens that the rank has yet to compute for other replicas, as last reported.
    #[must_use]
    pub fn prefill_elsewhere(&self) -> u64 {
        // ordering: a hint for selection; pairs with nothing.
        self.prefill_elsewhere.load(Ordering::Relaxed)
    }

    /// Requests on the rank of other replicas, and of another worker of the same engine.
    #[must_use]
    pub fn places_elsewhere(&self) -> u32 {
        // ordering: statistic; pairs with nothing.
        places(self.elsewhere.load(Ordering::Relaxed))
    }

    /// KV tokens of these requests.
    #[must_use]
    pub fn kv_tokens_elsewhere(&self) -> u64 {
        // ordering: statistic; pairs with nothing.
        self.elsewhere.load(Ordering::Relaxed) & TOKENS_MASK
    }

    /// Sets the learned limit of requests. Only
    /// [`LoadBoard::set_learned_places`](super::LoadBoard::set_learned_places) calls this.
    pub(super) fn set_learned_places(&self, places: u32) {
        // ordering: read as a limit; pairs with the load in `learned_places`.
        self.learned_places.store(places, Ordering::Relaxed);
    }

    /// The learned limit of requests; 0: none.
    #[must_use]
    #[inline]
    pub fn learned_places(&self) -> u32 {
        // ordering: read as a limit; pairs with the store in `set_learned_places`. A reader of an
        // old value admits a request too many, or delays a request.
        self.learned_places.load(Ordering::Relaxed)
    }

    /// Limits with the learned limit of requests, if `limits` has none.
    #[must_use]
    #[inline]
    pub fn limited(&self, limits: RoomLimits) -> RoomLimits {
        if limits.places_max > 0 {
            return limits;
        }
        RoomLimits { places_max: self.learned_places(), ..limits }
    }

    /// Sets the queue that waits for room on this rank. Only the control plane calls this.
    pub fn set_queue(&self, queue: Option<QueueIndex>) {
        let number = queue.map_or(NO_QUEUE, |queue| u32::from(queue.0));
        // ordering: Release; pairs with the Acquire in `queue`. A reader of the old queue wakes its
        // owner for nothing. The owner of the new queue looks for room when it gets the new fleet
        // snapshot.
        self.queue.store(number, Ordering::Release);
    }

    pub(super) fn queue(&self) -> Option<QueueIndex> {
        // ordering: Acquire; pairs with the Release in `set_queue`.
        u16::try_from(self.queue.load(Ordering::Acquire)).ok().map(QueueIndex)
    }

    /// Is the rank's room useless for all requests in its queue, at the last look of the queue's
    /// owner? A queue leads to several ranks, and some requests can use only some of them.
    #[must_use]
    pub fn is_spare(&self) -> bool {
        // ordering: a hint, as old as the owner's last look; pairs with nothing.
        self.spare.load(Ordering::Relaxed)
    }

    /// Sets [`is_spare`](Self::is_spare). Only the queue's owner calls this.
    pub fn set_spare(&self, spare: bool) {
        if self.is_spare() != spare {
            // ordering: as in `is_spare`.
            self.spare.store(spare, Ordering::Relaxed);
        }
    }

    /// Requests in flight on the rank from this process.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        // ordering: statistic; pairs with nothing.
        places(self.held.load(Ordering::Relaxed))
    }

    /// KV tokens that these requests hold, or will hold. Shared tokens count once.
    #[must_use]
    pub fn kv_tokens(&self) -> u64 {
        // ordering: statistic; pairs with nothing.
        self.held.load(Ordering::Relaxed) & TOKENS_MASK
    }

    /// Requests that an engine had accepted and that have ended since the start.
    #[must_use]
    pub fn ended(&self) -> u64 {
        // ordering: statistic; pairs with nothing.
        self.ended.load(Ordering::Relaxed) & TOKENS_MASK
    }

    /// Prompt tokens sent and not yet answered by a first token.
    #[must_use]
    pub fn prefill_tokens(&self) -> u64 {
        // ordering: statistic; pairs with nothing.
        self.prefill_tokens.load(Ordering::Relaxed)
    }
}

/// Places at a refusal plus its steps, see [`RankLoad::places_now`].
fn places_after(refused: u64, now: NanosSinceStart) -> Option<u32> {
    if refused == 0 {
        return None;
    }
    let steps = millis(now).saturating_sub(refused & TOKENS_MASK) / REFUSAL_STEP_MS;
    if steps >= REFUSAL_STEPS {
        return None;
    }
    Some(places(refused).saturating_add((1 << steps) - 1))
}

fn millis(at: NanosSinceStart) -> u64 {
    at.0 / 1_000_000
}

fn places(word: u64) -> u32 {
    u32::try_from(word >> PLACE_BIT).unwrap_or(u32::MAX)
}

/// Tokens that the next request takes if it needs `wanted`; `None`: no room. A request that needs
/// more than the limit takes a place and the tokens that are left: waiting for an empty rank would
/// not help it.
fn share(held: u64, limits: RoomLimits, wanted: u64) -> Option<u64> {
    let taken = places(held);
    let most = limits.kv_tokens_max;
    // Signed: a closed rank has fewer than 0 places.
    if limits.places_max > 0 && taken.cast_signed() >= limits.places_max.cast_signed() {
        return None;
    }
    if most == 0 || taken == 0 && wanted <= most {
        return Some(wanted);
    }
    // A lowered limit may be below the tokens held.
    let left = most.checked_sub(held & TOKENS_MASK)?;
    if wanted > most { Some(left) } else { (wanted <= left).then_some(wanted) }
}
