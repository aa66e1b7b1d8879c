//! What all shards know of one queue without asking its home: how many wait, and that there may be
//! room.
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

use forebay_config::QUEUE_CLASSES;
use forebay_ring::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Tenants are counted in so many slots, by hash. Two that share one count as one.
const TENANT_SLOTS: usize = 32;

/// One queue's words. All shards write them.
#[derive(Debug)]
pub struct QueueCell {
    waiting: AtomicU32,
    waiting_bytes: AtomicU64,
    waiting_tokens: AtomicU64,
    freed: AtomicU32,
    /// Those who wait, by the class that they asked for, and by their tenant's slot.
    of_class: [AtomicU32; QUEUE_CLASSES as usize],
    of_tenants: [AtomicU32; TENANT_SLOTS],
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

/// What a request takes of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueWanted {
    /// Bytes of its body.
    pub bytes: u64,
    /// KV tokens.
    pub tokens: u64,
    /// The class it asks for.
    pub class: u8,
    /// Whose it is.
    pub tenant: u64,
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
            of_tenants: std::array::from_fn(|_| AtomicU32::new(0)),
        }
    }
}

impl QueueCell {
    /// Counts one waiter in. Exact: no bound is ever exceeded.
    ///
    /// # Errors
    /// [`QueueFull`]; nothing is counted then.
    pub fn join(&self, limits: QueueLimits, wanted: QueueWanted) -> Result<(), QueueFull> {
        let one_more =
            |waiting: u32| (waiting < limits.depth_max).then(|| waiting.saturating_add(1));
        // ordering: the read-modify-write bounds the count. That the home, which gets a message
        // after it, sees it is the message's Release; that who makes room sees it is the fence in
        // `look`.
        if self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_err() {
            return Err(QueueFull::Depth);
        }
        let bytes =
            |held: u64| held.checked_add(wanted.bytes).filter(|&sum| sum <= limits.bytes_max);
        // ordering: a bounded sum of its own; pairs with nothing.
        if self.waiting_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, bytes).is_err() {
            // Each bound is taken by itself, and given back when a later one refuses. For a moment
            // another newcomer may see a count too high, never one too low.
            self.one_less();
            return Err(QueueFull::Bytes);
        }
        let most = if limits.tokens_max == 0 { u64::MAX } else { limits.tokens_max };
        let tokens = |held: u64| held.checked_add(wanted.tokens).filter(|&sum| sum <= most);
        // ordering: as above.
        if self.waiting_tokens.fetch_update(Ordering::Relaxed, Ordering::Relaxed, tokens).is_err() {
            // ordering: as above.
            let before = self.waiting_bytes.fetch_sub(wanted.bytes, Ordering::Relaxed);
            debug_assert!(before >= wanted.bytes, "own bytes were not counted");
            self.one_less();
            return Err(QueueFull::Demand);
        }
        for count in self.counts_of(wanted) {
            // ordering: statistics, read in `ahead`; pair with nothing.
            count.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Counts a waiter out, whatever became of it. Once for each [`Self::join`].
    pub fn leave(&self, wanted: QueueWanted) {
        for count in self.counts_of(wanted) {
            // ordering: as in `join`.
            let before = count.fetch_sub(1, Ordering::Relaxed);
            debug_assert!(before > 0, "a class or a tenant left twice");
        }
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

    fn counts_of(&self, wanted: QueueWanted) -> impl Iterator<Item = &AtomicU32> {
        let class = usize::from(wanted.class.min(QUEUE_CLASSES - 1));
        self.of_class.get(class).into_iter().chain(self.of_tenants.get(tenant_slot(wanted.tenant)))
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
        let own_slot = tenant_slot(tenant);
        let own = self.of_tenants.get(own_slot).map_or(0, count);
        let is_other = |(slot, held): &(usize, &AtomicU32)| *slot != own_slot && count(held) > 0;
        let others = self.of_tenants.iter().enumerate().filter(is_other).count();
        let turns = (own + 1).div_ceil(u64::from(weight.max(1)));
        let by_turns = own + turns.saturating_mul(u64::try_from(others).unwrap_or(u64::MAX));
        better + same.min(by_turns)
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

/// Tenants are numbered by a hash already.
fn tenant_slot(tenant: u64) -> usize {
    usize::try_from(tenant % (TENANT_SLOTS as u64)).unwrap_or(0)
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
