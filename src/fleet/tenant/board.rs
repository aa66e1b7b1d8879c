//! What tenants have used, in words that all shards share. Each limit is one word, changed by
//! compare-and-swap, so it holds exactly however many shards take of it.

use super::rate::{MinuteRate, RateRefusal, RateStanding, TakenUnits};
use super::who::Quota;
use crossbeam_utils::CachePadded;
use forebay_base::limits::TENANTS_MAX;
use forebay_base::{NanosSinceStart, TenantIndex};
use forebay_ring::sync::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// The longest debt by what other replicas say. Their word is not signed, and a wrong one outlives
/// its author by no more.
const DEBT_ELSEWHERE_MAX: Duration = Duration::from_mins(5);

/// One cell per tenant that may have a number.
#[derive(Debug)]
pub struct TenantBoard {
    cells: Box<[CachePadded<TenantCell>]>,
}

/// What the requests of one tenant have used together.
#[derive(Debug, Default)]
pub struct TenantCell {
    /// When its bucket of requests is full, see [`MinuteRate`].
    requests_full_at: AtomicU64,
    /// The same of tokens.
    tokens_full_at: AtomicU64,
    /// Requests that were taken, ever.
    requests_used: AtomicU64,
    /// Tokens taken and not given back, ever.
    tokens_used: AtomicU64,
    in_flight: InFlightCount,
    /// Requests in flight at other replicas, as they last said.
    in_flight_elsewhere: AtomicU32,
}

/// Requests in flight in all shards: of a tenant, or of the whole router.
#[derive(Debug, Default)]
pub struct InFlightCount(AtomicU32);

impl TenantBoard {
    /// A board on which nothing is used.
    #[must_use]
    pub fn new() -> Self {
        Self { cells: (0..TENANTS_MAX).map(|_| CachePadded::default()).collect() }
    }

    /// The cell of a tenant; `None` only for a number past [`TENANTS_MAX`].
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
    /// Takes one request.
    ///
    /// # Errors
    /// [`RateRefusal`]; nothing is taken then.
    pub fn take_request(&self, rate: MinuteRate, now: NanosSinceStart) -> Result<(), RateRefusal> {
        take(&self.requests_full_at, rate, now, 1)?;
        // ordering: a sum for other replicas; pairs with the load in `used`.
        self.requests_used.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Takes so many tokens.
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

    /// `used` tokens were used in the end, of `taken` ones.
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

    /// Requests and tokens that were taken here, ever. The sum of tokens may fall, and wraps.
    #[must_use]
    pub fn used(&self) -> (u64, u64) {
        // ordering: sums; pair with the additions above. Neither says anything of the other.
        let requests = self.requests_used.load(Ordering::Relaxed);
        // ordering: as above.
        (requests, self.tokens_used.load(Ordering::Relaxed))
    }

    /// Another replica has taken so much, or given tokens back. A word of it costs at most what a
    /// minute has.
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
    pub fn requests(&self, rate: MinuteRate, now: NanosSinceStart) -> RateStanding {
        // ordering: a figure for clients; pairs with nothing.
        rate.standing(self.requests_full_at.load(Ordering::Relaxed), now)
    }

    /// What is left of the limit of tokens.
    #[must_use]
    pub fn tokens(&self, rate: MinuteRate, now: NanosSinceStart) -> RateStanding {
        // ordering: a figure for clients; pairs with nothing.
        rate.standing(self.tokens_full_at.load(Ordering::Relaxed), now)
    }

    /// Counts one request in unless `max` are, here and at other replicas.
    #[must_use]
    pub fn enter(&self, max: u32) -> bool {
        // ordering: the last word of other replicas, which is late anyway; pairs with nothing.
        let left = max.saturating_sub(self.in_flight_elsewhere.load(Ordering::Relaxed));
        left > 0 && self.in_flight.enter(left)
    }

    /// Another replica has `after` requests of this tenant in flight, no longer `before`.
    pub fn in_flight_elsewhere(&self, before: u32, after: u32) {
        // ordering: as in `enter`. One thread alone writes.
        self.in_flight_elsewhere.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Requests of this tenant in flight.
    #[must_use]
    pub const fn in_flight(&self) -> &InFlightCount {
        &self.in_flight
    }
}

impl InFlightCount {
    /// Counts one request in unless `max` (0 = no limit) are. Exact under any interleaving, and
    /// counted without a limit too: one that is loaded later counts those that are there.
    #[must_use]
    pub fn enter(&self, max: u32) -> bool {
        if max == 0 {
            // ordering: as below. One instruction, and no retries between the shards.
            self.0.fetch_add(1, Ordering::Relaxed);
            return true;
        }
        let one_more = |taken: u32| (taken < max).then(|| taken.saturating_add(1));
        // ordering: a count nothing is published through; atomicity alone makes the limit exact.
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok()
    }

    /// Counts a request out again.
    pub fn exit(&self) {
        // ordering: as in `enter`; pairs with it on the same word only.
        let before = self.0.fetch_sub(1, Ordering::Relaxed);
        // The word's own order shows the request's `enter` before its `exit`, so no other shard can
        // make this fail.
        debug_assert!(before > 0, "a request left twice");
    }

    /// How many are in flight.
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
    // ordering: pairs with itself on other shards. Nothing is published through the word, and its
    // own order makes the limit exact.
    word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken).map_err(|_| refused)?;
    Ok(refilled_at)
}
