//! State of a queue that all shards read without asking its owner: waiting requests, their tenants,
//! and signals of new room.
//!
//! A waiter is counted *before* its message reaches the queue's owner. A shard that makes room
//! reads the count *after* it has given the place back:
//! ```text
//! shard of the waiter             shard of an ending request      owner of the queue
//! waiting += 1                    place given back                (received the message)
//! message to the owner            fence; waiting > 0?             fence
//!                                   yes: freed += 1, ring         look for room
//! ```
//! With both fences, either the owner finds the place, or the shard that gave it back sees the
//! waiter and rings. Model: tests/loom/queue_cell.rs, `nobody_waits_beside_a_free_place`.

use super::queue_tenants::{QueueDemand, QueueShare, QueueTenants};
use forebay_base::limits::QUEUE_CLASSES;
use forebay_ring::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// The words of a queue. All shards write them.
#[derive(Debug)]
pub struct QueueCell {
    waiting: AtomicU32,
    waiting_bytes: AtomicU64,
    waiting_tokens: AtomicU64,
    freed: AtomicU32,
    /// Waiting requests, by the requested class.
    of_class: [AtomicU32; QUEUE_CLASSES as usize],
    tenants: QueueTenants,
}

/// Bounds of a queue. For `tokens_max`, 0 means no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// Most requests that wait.
    pub depth_max: u32,
    /// Bytes of their bodies.
    pub bytes_max: u64,
    /// KV tokens that they need.
    pub tokens_max: u64,
}

impl QueueLimits {
    pub const NONE: Self = Self { depth_max: u32::MAX, bytes_max: u64::MAX, tokens_max: 0 };

    /// Limits for a request that is counted already, and exchanges its place for a place here.
    #[must_use]
    pub const fn beside(self, own: Option<QueueDemand>) -> Self {
        // The request holds both places for a moment. If it gave up the old place first, a new
        // request could take it.
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

/// Bound of a queue that refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueFull {
    /// More requests than `queue.depth_max`.
    Depth,
    /// More bytes than `queue.bytes_max`.
    Bytes,
    /// More KV tokens than `limits.kv_demand_percent` allows.
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
    /// Counts a waiter in. Exact: past a bound there is room only within the share of a tenant
    /// (`QueueShare::covers`). All shares together amount to the limits again, or to a single
    /// request of each tenant. A tenant that waits alone gets no more than the limits.
    ///
    /// # Errors
    /// [`QueueFull`]; nothing is counted then.
    pub fn join(&self, limits: QueueLimits, wanted: QueueDemand) -> Result<(), QueueFull> {
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
        wanted: QueueDemand,
        share: &QueueShare,
    ) -> Result<(), QueueFull> {
        let QueueLimits { depth_max, bytes_max, tokens_max } = limits;
        let one_more = |waiting: u32| {
            let has_place =
                waiting < depth_max || share.covers(share.requests, 1, depth_max.into());
            has_place.then(|| waiting.saturating_add(1))
        };
        // ordering: the read-modify-write bounds the count. The Release of the following message
        // shows the count to the queue's owner. The fence in `look` shows it to a shard that makes
        // room.
        if self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_err() {
            return Err(QueueFull::Depth);
        }
        let bytes = |held: u64| {
            let fits =
                |&sum: &u64| sum <= bytes_max || share.covers(share.bytes, wanted.bytes, bytes_max);
            held.checked_add(wanted.bytes).filter(fits)
        };
        // ordering: an independent bounded sum; pairs with nothing.
        if self.waiting_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, bytes).is_err() {
            // Each bound is taken separately, and given back when a later bound refuses. For a
            // moment another new request may read a count that is too high, but never too low.
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

    /// Counts a waiter out, whatever its outcome. Once for each [`Self::join`].
    pub fn leave(&self, wanted: QueueDemand) {
        if let Some(count) = self.class_count(wanted) {
            // ordering: as in `join`.
            let before = count.fetch_sub(1, Ordering::Relaxed);
            debug_assert!(before > 0, "a class left twice");
        }
        self.tenants.exit(wanted);
        // ordering: independent sums; pair with nothing.
        let bytes = self.waiting_bytes.fetch_sub(wanted.bytes, Ordering::Relaxed);
        debug_assert!(bytes >= wanted.bytes, "left with more bytes than it came with");
        // ordering: as above.
        let tokens = self.waiting_tokens.fetch_sub(wanted.tokens, Ordering::Relaxed);
        debug_assert!(tokens >= wanted.tokens, "left with more tokens than it came with");
        self.one_less();
        // ordering: the SeqCst fence pairs with the fence in `Windows::open`.
        fence(Ordering::SeqCst);
    }

    fn class_count(&self, wanted: QueueDemand) -> Option<&AtomicU32> {
        self.of_class.get(usize::from(wanted.class.min(QUEUE_CLASSES - 1)))
    }

    /// Do other tenants wait, and would another request of this tenant be within its share?
    #[must_use]
    pub fn is_below_share(&self, limits: QueueLimits, tenant: u64, weight: u32) -> bool {
        let held = self.tenants.share(tenant, weight);
        let next = held.with_one_more();
        held.others > 0
            && next.covers(next.requests, 1, limits.depth_max.into())
            && next.covers(next.bytes, 0, limits.bytes_max)
    }

    #[must_use]
    pub fn waiting_of(&self, tenant: u64) -> u64 {
        self.tenants.share(tenant, 1).requests
    }

    /// Estimate of the requests that are served before a new request. Counts all requests of better
    /// classes. Of the same class it counts all, or the tenant's own requests plus the turns of
    /// other tenants, whichever is less. Requests that have risen from a worse class are not
    /// counted: the estimate is rather too low.
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

    /// The requests and tokens in the queue that are served before a new request: by turns, if
    /// other tenants wait, else all. `own`: the part that the request itself has counted into the
    /// queue.
    #[must_use]
    pub fn before(
        &self,
        own: Option<QueueDemand>,
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
        // ordering: a count; a reader of a value that is too high joins a queue that its owner
        // empties at once.
        let before = self.waiting.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "left twice");
    }

    #[must_use]
    pub fn waiting(&self) -> u32 {
        // ordering: a new request that reads 0 while another request joins was as early as the
        // other request; pairs with nothing.
        self.waiting.load(Ordering::Relaxed)
    }

    /// Bytes of their bodies.
    #[must_use]
    pub fn waiting_bytes(&self) -> u64 {
        // ordering: statistic; pairs with nothing.
        self.waiting_bytes.load(Ordering::Relaxed)
    }

    /// KV tokens that they need.
    #[must_use]
    pub fn waiting_tokens(&self) -> u64 {
        // ordering: statistic; pairs with nothing.
        self.waiting_tokens.load(Ordering::Relaxed)
    }

    /// Called after a place was given back. True: requests wait, so wake the owner.
    #[must_use]
    pub fn room_made(&self) -> bool {
        // ordering: the SeqCst fence pairs with the fence in `look`: the place was given back
        // before, the count of waiters is read after. Model: tests/loom/queue_cell.rs,
        // `nobody_waits_beside_a_free_place`.
        fence(Ordering::SeqCst);
        // ordering: Relaxed, ordered by the fence. Without waiters no word is written: ending
        // requests share no written line here.
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return false;
        }
        // ordering: Release; pairs with the Acquire in `look`, so that an owner that sees the count
        // also sees the place.
        self.freed.fetch_add(1, Ordering::Release);
        true
    }

    /// Count of new room. Unchanged since the last [`Self::look`] and without new waiters, there is
    /// nothing to look for. The owner reads it again after it has announced its sleep: a ring while
    /// the owner was awake had no effect.
    #[must_use]
    pub fn freed(&self) -> u32 {
        // ordering: Acquire; pairs with the Release in `room_made`.
        self.freed.load(Ordering::Acquire)
    }

    /// For the owner, before it looks for room: returns the count of new room.
    #[must_use]
    pub fn look(&self) -> u32 {
        let freed = self.freed();
        // ordering: the SeqCst fence pairs with the fence in `room_made`: waiters were counted
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
        let wanted = |bytes, tokens| QueueDemand { bytes, tokens, ..QueueDemand::default() };
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
        let wants = |class, tenant| QueueDemand { class, tenant, ..QueueDemand::default() };
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

    /// Issue 35: a tenant with as many requests as the queue holds shut all other tenants out.
    #[test]
    fn a_full_queue_has_room_for_a_tenant_below_its_share_and_no_other() {
        let cell = QueueCell::default();
        let limits = QueueLimits { depth_max: 8, bytes_max: 80, tokens_max: 800 };
        let of = |tenant, weight| QueueDemand { bytes: 10, tokens: 100, class: 1, tenant, weight };
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
        assert_eq!(cell.join(limits, QueueDemand { bytes: 81, ..of(3, 1) }), Err(QueueFull::Bytes));
        let large = QueueDemand { tokens: 801, ..of(3, 1) };
        assert_eq!(cell.join(limits, large), Err(QueueFull::Demand), "an empty one is too small");
        cell.join(limits, of(3, 1)).unwrap();
        // A tenant above its share does not get a place that is left.
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

    /// Bytes and tokens alone: the depth would admit them all.
    #[test]
    fn bytes_and_tokens_are_shared_like_places() {
        for (bytes, tokens, full) in [(10, 0, QueueFull::Bytes), (0, 100, QueueFull::Demand)] {
            let cell = QueueCell::default();
            let limits = QueueLimits { depth_max: 100, bytes_max: 80, tokens_max: 800 };
            let of = |tenant| QueueDemand { bytes, tokens, class: 1, tenant, weight: 1 };
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
        cell.join(LIMITS, QueueDemand::default()).unwrap();
        assert!(cell.room_made());
        assert_ne!(cell.look(), before);
    }
}
