//! Use of the tenants' limits, in words that all shards share. Each limit is a single word that is
//! changed by compare-and-swap, so it is exact for any number of shards.

use crossbeam_utils::CachePadded;
use forebay_base::limits::TENANTS_MAX;
use forebay_base::{NanosSinceStart, TenantIndex};
use forebay_fleet::tenant::Quota;
use forebay_fleet::tenant::{MinuteRate, RateRefusal, RateStatus, TakenUnits};
use forebay_ring::sync::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// The longest debt by reports of other replicas. The reports are not signed; this bounds the
/// effect of a wrong report.
const DEBT_ELSEWHERE_MAX: Duration = Duration::from_mins(5);

/// A cell per tenant with a number.
#[derive(Debug)]
pub struct TenantBoard {
    cells: Box<[CachePadded<TenantCell>]>,
}

/// Use by all requests of a tenant.
#[derive(Debug, Default)]
pub struct TenantCell {
    /// When the bucket of requests is full, see [`MinuteRate`].
    requests_full_at: AtomicU64,
    /// When the bucket of tokens is full.
    tokens_full_at: AtomicU64,
    /// All requests that were ever taken.
    requests_used: AtomicU64,
    /// All tokens that were ever taken and not given back.
    tokens_used: AtomicU64,
    in_flight: InFlightCount,
    /// Requests in flight at other replicas, as last reported.
    in_flight_elsewhere: AtomicU32,
}

/// Requests in flight in all shards: of a tenant, or of the whole router.
#[derive(Debug, Default)]
pub struct InFlightCount(AtomicU32);

impl TenantBoard {
    #[must_use]
    pub fn new() -> Self {
        Self { cells: (0..TENANTS_MAX).map(|_| CachePadded::default()).collect() }
    }

    #[must_use]
    pub fn of(&self, tenant: TenantIndex) -> Option<&TenantCell> {
        self.cells.get(tenant.index()).map(|cell| &**cell)
    }
}

impl Default for TenantBoard {
    fn default() -> Self {
        Self::new()
    }
}

impl TenantCell {
    /// Takes a request.
    ///
    /// # Errors
    /// [`RateRefusal`]; nothing is taken then.
    pub fn take_request(&self, rate: MinuteRate, now: NanosSinceStart) -> Result<(), RateRefusal> {
        take(&self.requests_full_at, rate, now, 1)?;
        // ordering: a sum for other replicas; pairs with the load in `used`.
        self.requests_used.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Takes `tokens`.
    ///
    /// # Errors
    /// [`RateRefusal`]; nothing is taken then.
    pub fn take_tokens(
        &self,
        rate: MinuteRate,
        now: NanosSinceStart,
        tokens: u64,
    ) -> Result<TakenUnits, RateRefusal> {
        let refilled_at = take(&self.tokens_full_at, rate, now, tokens)?;
        // ordering: a sum for other replicas; pairs with the load in `used`.
        self.tokens_used.fetch_add(tokens, Ordering::Relaxed);
        Ok(TakenUnits { rate, units: tokens, refilled_at })
    }

    /// Corrects `taken` tokens to the `used` tokens of the finished request.
    pub fn correct_tokens(&self, taken: TakenUnits, now: NanosSinceStart, used: u64) {
        let rate = taken.rate;
        let used = taken.spent(now, used);
        let taken = taken.units;
        let correct = |full_at| Some(rate.corrected(full_at, now, taken, used));
        // ordering: as in `take`; pairs with it on the same word only.
        let _ = self.tokens_full_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, correct);
        // ordering: a sum for other replicas; pairs with the load in `used`.
        self.tokens_used.fetch_add(used.wrapping_sub(taken), Ordering::Relaxed);
    }

    /// All requests and tokens that were ever taken here. The sum of tokens may fall, and wraps.
    #[must_use]
    pub fn used(&self) -> (u64, u64) {
        // ordering: sums; pair with the additions above. Neither sum depends on the other.
        let requests = self.requests_used.load(Ordering::Relaxed);
        // ordering: as above.
        (requests, self.tokens_used.load(Ordering::Relaxed))
    }

    /// Another replica has taken units, or given tokens back. Each report costs at most the limit
    /// of a minute.
    pub fn use_elsewhere(&self, quota: Quota, now: NanosSinceStart, requests: i64, tokens: i64) {
        let words = [
            (&self.requests_full_at, quota.requests, requests),
            (&self.tokens_full_at, quota.tokens, tokens),
        ];
        for (word, rate, units) in words {
            let Some(rate) = rate.filter(|_| units != 0) else { continue };
            let amount = units.unsigned_abs().min(rate.per_minute());
            let (taken, used) = if units < 0 { (amount, 0) } else { (0, amount) };
            let latest = now.plus(DEBT_ELSEWHERE_MAX).0;
            let correct = |full_at: u64| {
                Some(rate.corrected(full_at, now, taken, used).min(full_at.max(latest)))
            };
            // ordering: as in `take`; pairs with it on the same word only.
            let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, correct);
        }
    }

    /// What is left of the limit of requests.
    #[must_use]
    pub fn requests(&self, rate: MinuteRate, now: NanosSinceStart) -> RateStatus {
        // ordering: a figure for clients; pairs with nothing.
        rate.standing(self.requests_full_at.load(Ordering::Relaxed), now)
    }

    /// What is left of the limit of tokens.
    #[must_use]
    pub fn tokens(&self, rate: MinuteRate, now: NanosSinceStart) -> RateStatus {
        // ordering: a figure for clients; pairs with nothing.
        rate.standing(self.tokens_full_at.load(Ordering::Relaxed), now)
    }

    /// Counts a request in, unless `max` requests are in flight here and at other replicas.
    #[must_use]
    pub fn enter(&self, max: u32) -> bool {
        // ordering: reports of other replicas, which are late anyway; pairs with nothing.
        let left = max.saturating_sub(self.in_flight_elsewhere.load(Ordering::Relaxed));
        left > 0 && self.in_flight.enter(left)
    }

    /// Another replica now has `after` requests of this tenant in flight, and had `before`.
    pub fn in_flight_elsewhere(&self, before: u32, after: u32) {
        // ordering: as in `enter`. A single thread writes.
        self.in_flight_elsewhere.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
    }

    #[must_use]
    pub const fn in_flight(&self) -> &InFlightCount {
        &self.in_flight
    }
}

impl InFlightCount {
    /// Counts a request in, unless `max` requests (0 = no limit) are in flight. Exact under any
    /// interleaving. Requests without a limit are counted too, so that a reload can set a limit.
    #[must_use]
    pub fn enter(&self, max: u32) -> bool {
        if max == 0 {
            // ordering: as below. A single instruction, without retries between the shards.
            self.0.fetch_add(1, Ordering::Relaxed);
            return true;
        }
        let one_more = |taken: u32| (taken < max).then(|| taken.saturating_add(1));
        // ordering: a count that publishes nothing; atomicity alone makes the limit exact.
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok()
    }

    pub fn exit(&self) {
        // ordering: as in `enter`; pairs with it on the same word only.
        let before = self.0.fetch_sub(1, Ordering::Relaxed);
        // The word's own order shows the request's `enter` before its `exit`, so no other shard can
        // break this.
        debug_assert!(before > 0, "a request left twice");
    }

    #[must_use]
    pub fn get(&self) -> u32 {
        // ordering: statistic; pairs with nothing.
        self.0.load(Ordering::Relaxed)
    }
}

fn take(
    word: &AtomicU64,
    rate: MinuteRate,
    now: NanosSinceStart,
    units: u64,
) -> Result<u64, RateRefusal> {
    let mut refused = RateRefusal::Never;
    let mut refilled_at = 0;
    let taken = |full_at| {
        let taken = rate.take(full_at, now, units).map_err(|why| refused = why);
        refilled_at = taken.unwrap_or_default();
        taken.ok()
    };
    // ordering: pairs with itself on other shards. The word publishes nothing, and its own order
    // makes the limit exact.
    word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken).map_err(|_| refused)?;
    Ok(refilled_at)
}
