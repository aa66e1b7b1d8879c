//! What all shards know of one queue without asking its home: how many wait, of which tenants, and
//! that there may be room.
//!
//! Who waits is counted *before* the home hears of it, and who makes room looks at the count
//! *after* the place is back:
//! ```text
//! origin                         who ends a request              home
//! waiting += 1                   place given back                (got the message)
//! message to the home            fence; waiting > 0?             fence
//!                                  yes: freed += 1, ring         look for room
//! ```
//! With both fences either the home finds the place, or who gave it back sees the waiter and rings.
//! Model: tests/loom/models.rs, `nobody_waits_beside_a_free_place`.

use super::queue_tenants::{QueueShare, QueueTenants, QueueWanted};
use forebay_config::QUEUE_CLASSES;
use forebay_ring::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// One queue's words. All shards write them.
#[derive(Debug)]
pub struct QueueCell {
    waiting: AtomicU32,
    waiting_bytes: AtomicU64,
    waiting_tokens: AtomicU64,
    freed: AtomicU32,
    /// Requests that wait, by the class that they asked for.
    of_class: [AtomicU32; QUEUE_CLASSES as usize],
    tenants: QueueTenants,
}

/// What a queue may hold. In the last 0 means no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// Requests.
    pub depth_max: u32,
    /// Bytes of their bodies.
    pub bytes_max: u64,
    /// KV tokens that they want.
    pub tokens_max: u64,
}

impl QueueLimits {
    /// No bounds at all.
    pub const NONE: Self = Self { depth_max: u32::MAX, bytes_max: u64::MAX, tokens_max: 0 };

    /// For one who is counted already, and takes the other place for this one.
    #[must_use]
    pub const fn beside(self, own: Option<QueueWanted>) -> Self {
        // It holds both places for a moment. Given up first, the old one could go to a newcomer.
        let Some(own) = own else { return self };
        Self {
            depth_max: self.depth_max.saturating_add(1),
            bytes_max: self.bytes_max.saturating_add(own.bytes),
            tokens_max: match self.tokens_max {
                0 => 0,
                tokens_max => tokens_max.saturating_add(own.tokens),
            },
        }
    }
}

/// Which bound of a queue refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueFull {
    /// `queue.depth_max`.
    Depth,
    /// `queue.bytes_max`.
    Bytes,
    /// `limits.kv_demand_percent`.
    Demand,
}

impl Default for QueueCell {
    fn default() -> Self {
        Self {
            waiting: AtomicU32::new(0),
            waiting_bytes: AtomicU64::new(0),
            waiting_tokens: AtomicU64::new(0),
            freed: AtomicU32::new(0),
            of_class: std::array::from_fn(|_| AtomicU32::new(0)),
            tenants: QueueTenants::default(),
        }
    }
}

impl QueueCell {
    /// Counts one waiter in. Exact: past a bound there is room only within the share of a tenant
    /// (`QueueShare::covers`). All shares together are the limits once more, or one request of
    /// each tenant; and a tenant that waits alone gets no more than the limits.
    ///
    /// # Errors
    /// [`QueueFull`]; nothing is counted then.
    pub fn join(&self, limits: QueueLimits, wanted: QueueWanted) -> Result<(), QueueFull> {
        let share = self.tenants.enter(wanted);
        let joined = self.take(limits, wanted, &share);
        if joined.is_err() {
            self.tenants.exit(wanted);
        } else if let Some(count) = self.class_count(wanted) {
            // ordering: a statistic, read in `ahead`; pairs with nothing.
            count.fetch_add(1, Ordering::Relaxed);
        }
        joined
    }

    fn take(
        &self,
        limits: QueueLimits,
        wanted: QueueWanted,
        share: &QueueShare,
    ) -> Result<(), QueueFull> {
        let QueueLimits { depth_max, bytes_max, tokens_max } = limits;
        let one_more = |waiting: u32| {
            let has_place =
                waiting < depth_max || share.covers(share.requests, 1, depth_max.into());
            has_place.then(|| waiting.saturating_add(1))
        };
        // ordering: the read-modify-write bounds the count. That the home, which gets a message
        // after it, sees it is the message's Release; that who makes room sees it is the fence in
        // `look`.
        if self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_err() {
            return Err(QueueFull::Depth);
        }
        let bytes = |held: u64| {
            let fits =
                |&sum: &u64| sum <= bytes_max || share.covers(share.bytes, wanted.bytes, bytes_max);
            held.checked_add(wanted.bytes).filter(fits)
        };
        // ordering: a bounded sum of its own; pairs with nothing.
        if self.waiting_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, bytes).is_err() {
            // Each bound is taken by itself, and given back when a later one refuses. For a moment
            // another newcomer may see a count too high, never one too low.
            self.one_less();
            return Err(QueueFull::Bytes);
        }
        let most = if tokens_max == 0 { u64::MAX } else { tokens_max };
        let tokens = |held: u64| {
            let fits = |&sum: &u64| sum <= most || share.covers(share.tokens, wanted.tokens, most);
            held.checked_add(wanted.tokens).filter(fits)
        };
        // ordering: as above.
        if self.waiting_tokens.fetch_update(Ordering::Relaxed, Ordering::Relaxed, tokens).is_err() {
            // ordering: as above.
            let before = self.waiting_bytes.fetch_sub(wanted.bytes, Ordering::Relaxed);
            debug_assert!(before >= wanted.bytes, "own bytes were not counted");
            self.one_less();
            return Err(QueueFull::Demand);
        }
        Ok(())
    }

    /// Counts a waiter out, whatever became of it. Once for each [`Self::join`].
    pub fn leave(&self, wanted: QueueWanted) {
        if let Some(count) = self.class_count(wanted) {
            // ordering: as in `join`.
            let before = count.fetch_sub(1, Ordering::Relaxed);
            debug_assert!(before > 0, "a class left twice");
        }
        self.tenants.exit(wanted);
        // ordering: sums of their own; pair with nothing.
        let bytes = self.waiting_bytes.fetch_sub(wanted.bytes, Ordering::Relaxed);
        debug_assert!(bytes >= wanted.bytes, "left with more bytes than it came with");
        // ordering: as above.
        let tokens = self.waiting_tokens.fetch_sub(wanted.tokens, Ordering::Relaxed);
        debug_assert!(tokens >= wanted.tokens, "left with more tokens than it came with");
        self.one_less();
        // ordering: the SeqCst fence pairs with the one in `Windows::open`.
        fence(Ordering::SeqCst);
    }

    fn class_count(&self, wanted: QueueWanted) -> Option<&AtomicU32> {
        self.of_class.get(usize::from(wanted.class.min(QUEUE_CLASSES - 1)))
    }

    /// Do other tenants wait, and would one more request of this tenant be within its share?
    #[must_use]
    pub fn is_below_share(&self, limits: QueueLimits, tenant: u64, weight: u32) -> bool {
        let held = self.tenants.share(tenant, weight);
        let next = held.with_one_more();
        held.others > 0
            && next.covers(next.requests, 1, limits.depth_max.into())
            && next.covers(next.bytes, 0, limits.bytes_max)
    }

    /// Requests of the tenant that wait.
    #[must_use]
    pub fn waiting_of(&self, tenant: u64) -> u64 {
        self.tenants.share(tenant, 1).requests
    }

    /// How many are served before one who comes now, as far as one can tell: all of better classes,
    /// and of its own class either all or, where that is less, those of its tenant and as many
    /// turns of each other tenant as that takes it. Who has risen from a worse class is not seen:
    /// it is rather too few than too many.
    #[must_use]
    pub fn ahead(&self, class: u8, tenant: u64, weight: u32) -> u64 {
        // ordering: statistics; pair with nothing.
        let count = |count: &AtomicU32| u64::from(count.load(Ordering::Relaxed));
        let class = usize::from(class.min(QUEUE_CLASSES - 1));
        let better: u64 = self.of_class.iter().take(class).map(count).sum();
        let same = self.of_class.get(class).map_or(0, count);
        let QueueShare { requests: own, others, .. } = self.tenants.share(tenant, weight);
        let turns = (own + 1).div_ceil(u64::from(weight.max(1)));
        let by_turns = own + turns.saturating_mul(others);
        better + same.min(by_turns)
    }

    /// The part of what waits that is served before a request that comes now: by turns, where other
    /// tenants wait, else all of it. `own` is what the request itself has counted into the queue.
    #[must_use]
    pub fn before(
        &self,
        own: Option<QueueWanted>,
        class: u8,
        tenant: u64,
        weight: u32,
    ) -> (u64, u64) {
        let own_requests = u64::from(own.is_some());
        let requests = u64::from(self.waiting()).saturating_sub(own_requests);
        let tokens = self.waiting_tokens().saturating_sub(own.map_or(0, |own| own.tokens));
        if self.tenants.share(tenant, weight).others == 0 || requests == 0 {
            return (requests, tokens);
        }
        let ahead = self.ahead(class, tenant, weight).saturating_sub(own_requests).min(requests);
        let part = u128::from(tokens) * u128::from(ahead) / u128::from(requests);
        (ahead, u64::try_from(part).unwrap_or(tokens))
    }

    fn one_less(&self) {
        // ordering: a count; who reads a value too high joins a queue that its home empties at
        // once.
        let before = self.waiting.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "left twice");
    }

    /// Requests that wait.
    #[must_use]
    pub fn waiting(&self) -> u32 {
        // ordering: a newcomer that reads 0 while another is joining was as early as that one;
        // pairs with nothing.
        self.waiting.load(Ordering::Relaxed)
    }

    /// Bytes of their bodies.
    #[must_use]
    pub fn waiting_bytes(&self) -> u64 {
        // ordering: statistic; pairs with nothing.
        self.waiting_bytes.load(Ordering::Relaxed)
    }

    /// KV tokens that they want.
    #[must_use]
    pub fn waiting_tokens(&self) -> u64 {
        // ordering: statistic; pairs with nothing.
        self.waiting_tokens.load(Ordering::Relaxed)
    }

    /// Called after a place was given back. True: somebody waits, wake the home.
    #[must_use]
    pub fn room_made(&self) -> bool {
        // ordering: the SeqCst fence pairs with the one in `look`: the place was given back before,
        // the count of waiters is read after. Model: tests/loom/models.rs,
        // `nobody_waits_beside_a_free_place`.
        fence(Ordering::SeqCst);
        // ordering: Relaxed, ordered by the fence.
        // Without waiters no word is written: the ends of requests share none here.
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return false;
        }
        // ordering: Release; pairs with the Acquire in `look`, so that the home that sees the count
        // sees the place.
        self.freed.fetch_add(1, Ordering::Release);
        true
    }

    /// How often room was made. Unchanged since the last [`Self::look`] and nobody new: nothing to
    /// look for. The home asks once more after it has announced its sleep: who made room while it
    /// was awake rang for nothing.
    #[must_use]
    pub fn freed(&self) -> u32 {
        // ordering: Acquire; pairs with the Release in `room_made`.
        self.freed.load(Ordering::Acquire)
    }

    /// Home only, before it looks for room: how often room was made.
    #[must_use]
    pub fn look(&self) -> u32 {
        let freed = self.freed();
        // ordering: the SeqCst fence pairs with the one in `room_made`: waiters were counted
        // before, places are read after.
        fence(Ordering::SeqCst);
        freed
    }
}

#[cfg(test)]
#[cfg(not(feature = "loom"))]
mod tests {
    use super::*;

    const LIMITS: QueueLimits = QueueLimits { depth_max: 2, bytes_max: 100, tokens_max: 50 };

    #[test]
    fn all_bounds_are_exact_and_a_refusal_counts_nothing() {
        let cell = QueueCell::default();
        let wanted = |bytes, tokens| QueueWanted { bytes, tokens, ..QueueWanted::default() };
        assert_eq!(cell.join(LIMITS, wanted(60, 30)), Ok(()));
        assert_eq!(cell.join(LIMITS, wanted(41, 1)), Err(QueueFull::Bytes));
        assert_eq!(cell.join(LIMITS, wanted(40, 21)), Err(QueueFull::Demand));
        assert_eq!(cell.join(LIMITS, wanted(40, 20)), Ok(()));
        assert_eq!(cell.join(LIMITS, wanted(0, 0)), Err(QueueFull::Depth));
        cell.leave(wanted(60, 30));
        cell.leave(wanted(40, 20));
        assert_eq!((cell.waiting(), cell.waiting_bytes(), cell.waiting_tokens()), (0, 0, 0));
    }

    #[test]
    fn who_is_ahead_depends_on_class_and_tenant() {
        let cell = QueueCell::default();
        let most = QueueLimits { depth_max: 1_000, bytes_max: 0, tokens_max: 0 };
        let wants = |class, tenant| QueueWanted { class, tenant, ..QueueWanted::default() };
        let ahead = |class, tenant| cell.ahead(class, tenant, 1);
        for _ in 0..100 {
            cell.join(most, wants(2, 7)).unwrap();
        }
        assert_eq!(
            (ahead(2, 7), ahead(3, 7), ahead(9, 7)),
            (100, 100, 100),
            "behind all of its own"
        );
        assert_eq!(
            (ahead(2, 8), ahead(1, 7), ahead(0, 8)),
            (1, 0, 0),
            "its tenant's turn, a better class"
        );
        for tenant in 8..12 {
            cell.join(most, wants(1, tenant)).unwrap();
        }
        assert_eq!(ahead(2, 13), 4 + 5, "all of the better class, and one of each");
        assert_eq!(ahead(2, 7), 104);
        assert_eq!(ahead(1, 8), 4, "no more than there are");
        assert_eq!((cell.ahead(2, 11, 1), cell.ahead(2, 11, 4)), (4 + 1 + 2 * 4, 4 + 1 + 4));
        cell.leave(wants(2, 7));
        assert_eq!(ahead(2, 7), 103);
    }

    /// Issue 35: a tenant with as many requests as the queue holds shut all others out.
    #[test]
    fn a_full_queue_has_room_for_a_tenant_below_its_share_and_no_other() {
        let cell = QueueCell::default();
        let limits = QueueLimits { depth_max: 8, bytes_max: 80, tokens_max: 800 };
        let of = |tenant, weight| QueueWanted { bytes: 10, tokens: 100, class: 1, tenant, weight };
        for _ in 0..8 {
            assert!(!cell.is_below_share(limits, 1, 1), "alone, it is refused by a window");
            cell.join(limits, of(1, 1)).unwrap();
        }
        assert_eq!(cell.join(limits, of(1, 1)), Err(QueueFull::Depth));
        for _ in 0..6 {
            assert!(cell.is_below_share(limits, 2, 3));
            cell.join(limits, of(2, 3)).unwrap();
        }
        assert!(!cell.is_below_share(limits, 2, 3) && !cell.is_below_share(limits, 1, 1));
        assert_eq!(cell.join(limits, of(2, 3)), Err(QueueFull::Depth), "six of eight by weight");
        assert_eq!(cell.join(limits, QueueWanted { bytes: 81, ..of(3, 1) }), Err(QueueFull::Bytes));
        let large = QueueWanted { tokens: 801, ..of(3, 1) };
        assert_eq!(cell.join(limits, large), Err(QueueFull::Demand), "an empty one is too small");
        cell.join(limits, of(3, 1)).unwrap();
        // What leaves is not for the tenant above its share.
        cell.leave(of(1, 1));
        assert!(cell.join(limits, of(1, 1)).is_err());
        for _ in 0..7 {
            cell.leave(of(1, 1));
        }
        for _ in 0..6 {
            cell.leave(of(2, 3));
        }
        cell.leave(of(3, 1));
        assert_eq!((cell.waiting(), cell.waiting_bytes(), cell.waiting_tokens()), (0, 0, 0));
        assert_eq!(cell.waiting_of(1), 0);
    }

    /// Bytes and tokens alone: the depth would take them all.
    #[test]
    fn bytes_and_tokens_are_shared_like_places() {
        for (bytes, tokens, full) in [(10, 0, QueueFull::Bytes), (0, 100, QueueFull::Demand)] {
            let cell = QueueCell::default();
            let limits = QueueLimits { depth_max: 100, bytes_max: 80, tokens_max: 800 };
            let of = |tenant| QueueWanted { bytes, tokens, class: 1, tenant, weight: 1 };
            (0..8).for_each(|_| cell.join(limits, of(1)).unwrap());
            (0..4).for_each(|_| cell.join(limits, of(2)).unwrap());
            assert_eq!([1, 2].map(|tenant| cell.join(limits, of(tenant))), [Err(full); 2]);
        }
    }

    #[test]
    fn room_is_news_only_to_those_who_wait() {
        let cell = QueueCell::default();
        let before = cell.look();
        assert!(!cell.room_made());
        assert_eq!(cell.look(), before);
        cell.join(LIMITS, QueueWanted::default()).unwrap();
        assert!(cell.room_made());
        assert_ne!(cell.look(), before);
    }
}
