//! Predicted work on a rank, in prefill tokens: work that a new request would wait for, plus the
//! work that it adds.

use crate::Prices;
use forebay_base::NanosSinceStart;
use forebay_board::{LoadReport, RankLoad, RankPast, ReportWeight};

/// Cost of a running request to the prefill of its rank, in prefill tokens: both share each step of
/// the batch.
const RUNNING_REQUEST_TOKENS: u64 = 32;
/// KV tokens of running requests that cost as much as a prefill token, on a rank with a cache of
/// unknown size: attention over them is cheap but not free.
const HELD_TOKENS_PER_PREFILL_TOKEN: u64 = 64;
/// Share of its KV cache, in thousandths, up to which a rank takes another request without delay.
const KV_PERMILLE_EASY: u16 = 900;
/// Cost of each thousandth above that. On a rank without a free block, a new request waits for the
/// end of another request, which takes as long as some thousand prefill tokens. Full ranks are
/// avoided, not excluded.
const FULL_TOKENS_PER_PERMILLE: u64 = 40;
const _: () = assert!(KV_PERMILLE_EASY < 1_000);
/// More KV than a rank can hold, and more of a prompt than a body can carry.
const HELD_TOKENS_MAX: u64 = 1 << 37;
const PROMPT_TOKENS_MAX: u64 = 1 << 26;
const _: () = assert!(HELD_TOKENS_MAX.checked_mul(PROMPT_TOKENS_MAX).is_some());

/// Cost of a rank for a request. Lower is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RankCost(pub u64);

/// Parts of a rank's cost, in prefill tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CostParts {
    /// Uncomputed tokens of prompts ahead of the request, from this router and its replicas.
    pub queued_tokens: u64,
    /// Tokens of the request's own prompt that the rank would have to compute.
    pub uncached_tokens: u64,
    /// Cached tokens of other prompts that the request evicts and that are computed again.
    pub evicted_tokens: u64,
    /// Delay of later requests by the uncached and the evicted tokens, see [`Prices`].
    pub delay_tokens: u64,
    /// Running requests of this router.
    pub running_tokens: u64,
    /// KV of running requests: the part of the prompt that finds no room beside it.
    pub held_tokens: u64,
    /// Load that only the engine reports: requests of other routers, a nearly full cache. Fades
    /// with the report's age.
    pub reported_tokens: u64,
    /// Additional time compared with a rank of mean speed; negative on a faster rank. Evicted
    /// tokens and delay do not count, and running requests by half.
    pub slower_tokens: i64,
}

impl CostParts {
    /// Sum of the parts.
    #[must_use]
    #[inline]
    pub fn total(&self) -> RankCost {
        let own = self.queued_tokens.saturating_add(self.uncached_tokens);
        let own = own.saturating_add(self.evicted_tokens).saturating_add(self.delay_tokens);
        let own = own.saturating_add(self.running_tokens).saturating_add(self.held_tokens);
        // Saturating: an engine may report any number, and a sum that overflows would make the
        // fullest rank the cheapest.
        let all = own.saturating_add(self.reported_tokens);
        debug_assert!(all >= self.queued_tokens.max(self.uncached_tokens), "parts are missing");
        RankCost(all.saturating_add_signed(self.slower_tokens))
    }

    /// Parts that take longer on a slower rank. Running requests count by half: decode steps are
    /// bound by memory, and ranks differ in that about half as much. Delay and evicted blocks cost
    /// other requests time, which does not depend on this rank.
    #[inline]
    fn by_speed(&self) -> u64 {
        let prompts = self.queued_tokens.saturating_add(self.uncached_tokens);
        let beside = self.held_tokens.saturating_add(self.reported_tokens);
        prompts.saturating_add(beside).saturating_add(self.running_tokens / 2)
    }
}

impl RankCost {
    /// Cost of an unknown rank.
    pub const MAX: Self = Self(u64::MAX);
}

/// Work of a request on a rank.
#[derive(Clone, Copy, Debug)]
pub struct RankWork {
    pub prompt_tokens: u64,
    /// Prompt tokens that the rank would have to compute.
    pub uncached_tokens: u64,
    pub prices: Prices,
    /// KV tokens that the rank can hold; 0: unknown.
    pub kv_capacity_tokens: u64,
    /// A cost above this limit need not be computed to its end.
    pub most: RankCost,
}

/// State of a rank at a moment.
#[derive(Clone, Copy, Debug)]
pub struct RankSnapshot<'a> {
    /// Requests in flight on the rank.
    pub load: &'a RankLoad,
    /// Recent speed and cache use of the rank.
    pub past: &'a RankPast,
    /// Last report of the rank's engine.
    pub report: Option<&'a LoadReport>,
    pub now: NanosSinceStart,
}

/// Tokens ahead of the request on the rank plus the tokens that it would have to prefill itself.
/// `weight_of` is called only if the report adds to the cost.
#[must_use]
#[inline]
pub fn predicted_work(
    seen: RankSnapshot<'_>,
    work: &RankWork,
    weight_of: impl FnOnce(&LoadReport) -> ReportWeight,
) -> CostParts {
    let RankSnapshot { load, past, report, now } = seen;
    let prices = work.prices;
    let elsewhere = load.prefill_elsewhere();
    let first = CostParts {
        queued_tokens: past.prefill_left(load.prefill_tokens(), now).saturating_add(elsewhere),
        uncached_tokens: work.uncached_tokens,
        delay_tokens: prices.delay(work.uncached_tokens),
        running_tokens: u64::from(load.in_flight()) * RUNNING_REQUEST_TOKENS,
        ..CostParts::default()
    };
    let differ = prices.speeds().differ();
    // Before the divisions below: without them most ranks already cost more than the best rank. Not
    // if speeds differ: a fast rank may cost less than this.
    if !differ && first.total() > work.most {
        return first;
    }
    let evicted_tokens =
        prices.evicted(work.uncached_tokens, past.written_tokens(), work.kv_capacity_tokens);
    let parts = CostParts {
        evicted_tokens,
        delay_tokens: prices.delay(work.uncached_tokens.saturating_add(evicted_tokens)),
        held_tokens: crowding(load.kv_tokens(), work),
        reported_tokens: report.map_or(0, |report| match beyond_leases(report, elsewhere) {
            0 => 0,
            tokens => weight_of(report).of(tokens),
        }),
        ..first
    };
    if !differ {
        return parts;
    }
    CostParts { slower_tokens: prices.speeds().longer(parts.by_speed(), past), ..parts }
}

/// Running requests that hold a share of a cache leave only the rest for prompts: the same share of
/// the request's prompt finds no room, or evicts as much of another prompt.
#[inline]
fn crowding(held_tokens: u64, work: &RankWork) -> u64 {
    // The limits keep the product within 64 bits.
    let product = held_tokens.min(HELD_TOKENS_MAX) * work.prompt_tokens.min(PROMPT_TOKENS_MAX);
    product
        .checked_div(work.kv_capacity_tokens)
        .unwrap_or(held_tokens / HELD_TOKENS_PER_PREFILL_TOKEN)
}

/// Cost that a new report adds. `elsewhere` tokens of the waiting requests are left out: replicas
/// have reported these more exactly.
#[inline]
fn beyond_leases(report: &LoadReport, elsewhere: u64) -> u64 {
    let foreign = &report.foreign;
    let running = u64::from(foreign.requests) * RUNNING_REQUEST_TOKENS;
    let held = foreign.held_tokens / HELD_TOKENS_PER_PREFILL_TOKEN;
    let over = report.kv_permille.unwrap_or(0).saturating_sub(KV_PERMILLE_EASY);
    let full = u64::from(over) * FULL_TOKENS_PER_PERMILLE;
    let waiting = foreign.waiting_tokens.saturating_sub(elsewhere);
    running.saturating_add(waiting).saturating_add(held).saturating_add(full)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::RankIndex;
    use forebay_board::{LoadReading, OwnLoad};
    use forebay_fleet::worker::{RoomDemand, RoomLimits};
    use proptest::prelude::*;

    fn work(uncached_tokens: u64) -> RankWork {
        RankWork {
            prompt_tokens: 1_100,
            uncached_tokens,
            prices: Prices::LEAST,
            kv_capacity_tokens: 0,
            most: RankCost::MAX,
        }
    }

    /// Cost parts of a rank without a past.
    fn parts(load: &RankLoad, work: &RankWork, report: Option<&LoadReport>) -> CostParts {
        let past = RankPast::default();
        let now = NanosSinceStart(0);
        predicted_work(RankSnapshot { load, past: &past, report, now }, work, |_| {
            ReportWeight::FULL
        })
    }

    #[test]
    fn a_queue_that_is_computed_costs_less() {
        let load = RankLoad::default();
        let past = RankPast::default();
        load.add_prefill(1_000);
        past.prefill_began(1_000, NanosSinceStart(0));
        past.prefill_ended(1_000, 1_000, NanosSinceStart(1_000_000_000));
        let queued = |ms: u64| {
            let now = NanosSinceStart(ms * 1_000_000);
            let seen = RankSnapshot { load: &load, past: &past, report: None, now };
            predicted_work(seen, &work(70), |_| ReportWeight::FULL).queued_tokens
        };
        assert_eq!([1_000, 1_500, 2_000].map(queued), [1_000, 615, 400]);
    }

    #[test]
    fn what_a_rank_computes_takes_as_long_as_the_rank_is_slow() {
        let second = NanosSinceStart(1_000_000_000);
        let pasts = [3_000, 1_000].map(|tokens| {
            let past = RankPast::default();
            (0..32).for_each(|_| past.waited(tokens * 1_000, second.0 * 1_000));
            past
        });
        let load = RankLoad::default();
        load.add_prefill(500);
        load.correct(0, 6_400);
        assert!(load.try_acquire(RoomLimits::default(), RoomDemand::default()).is_some());
        let prices = Prices::of_token(3).with_speeds(pasts.iter());
        let cost = pasts.each_ref().map(|past| {
            let seen = RankSnapshot { load: &load, past, report: None, now: second };
            let parts =
                predicted_work(seen, &RankWork { prices, ..work(84) }, |_| ReportWeight::FULL);
            assert_eq!((parts.held_tokens, parts.delay_tokens), (100, 168));
            (parts.slower_tokens, parts.total().0)
        });
        // 500 + 84 + 100 + 16, a third less and as much again.
        assert_eq!(cost, [(-233, 651), (700, 1_584)]);
    }

    #[test]
    fn the_queue_of_other_replicas_counts_once() {
        let idle = RankLoad::default();
        let cost = |reading| {
            let report = report(reading);
            parts(&idle, &work(100), Some(&report))
        };
        let waits = LoadReading { waiting: 2, ..LoadReading::default() };
        let cost_with = |elsewhere| {
            idle.set_prefill_elsewhere(elsewhere);
            let parts = cost(waits);
            (parts.queued_tokens, parts.reported_tokens)
        };
        // Two waiting requests: 2 x 32 and 2 x 512, of which replicas report a part, or more.
        assert_eq!([0, 700, 5_000].map(cost_with), [(0, 1_088), (700, 388), (5_000, 64)]);
    }

    #[test]
    fn what_runs_crowds_a_cache_of_known_size_by_its_share() {
        let load = RankLoad::default();
        load.correct(0, 2_500);
        let held = |kv_capacity_tokens, prompt_tokens| {
            let work = RankWork { kv_capacity_tokens, prompt_tokens, ..work(100) };
            parts(&load, &work, None).held_tokens
        };
        assert_eq!(held(10_000, 1_000), 250, "a quarter of the prompt");
        assert_eq!(held(1_000, 1_000), 2_500, "shared blocks count once for each request");
        assert_eq!(held(0, 1_000), 2_500 / 64, "the size is not known");
        assert_eq!(held(1, u64::MAX), 2_500 * PROMPT_TOKENS_MAX, "no overflow");
    }

    #[test]
    fn a_holder_keeps_its_conversation_until_its_backlog_exceeds_the_prefill_saved() {
        let holder = RankLoad::default();
        let other = RankLoad::default();
        let cost = |load: &RankLoad, uncached| parts(load, &work(uncached), None).total();
        holder.add_prefill(900);
        assert!(cost(&holder, 100) < cost(&other, 1_100));
        holder.add_prefill(200);
        assert!(cost(&holder, 100) > cost(&other, 1_100));
    }

    #[test]
    fn siblings_meet_until_the_queue_is_longer_than_the_price_of_their_beginning() {
        let met = |times: u64| {
            let rank = RankLoad::default();
            let other = RankLoad::default();
            let cost = |load: &RankLoad, uncached| {
                let work = RankWork { prices: Prices::of_token(times), ..work(uncached) };
                parts(load, &work, None).total()
            };
            // The first of the burst: 1,000 shared tokens and 100 of its own.
            rank.add_prefill(1_100);
            let mut met = 0;
            while cost(&rank, 100) < cost(&other, 1_100) {
                rank.add_prefill(100);
                met += 1;
            }
            met
        };
        assert_eq!([1, 2, 4].map(met), [0, 9, 29], "on an idle fleet they spread");
    }

    fn report(reading: LoadReading) -> LoadReport {
        LoadReport::new(RankIndex(0), NanosSinceStart(0), &reading, OwnLoad::default())
    }

    #[test]
    fn foreign_load_and_full_caches_add_to_the_cost() {
        let idle = RankLoad::default();
        let with = |reading| {
            let report = report(reading);
            parts(&idle, &work(100), Some(&report)).reported_tokens
        };
        let quiet = LoadReading::default();
        assert_eq!(with(quiet), 0);
        assert_eq!(with(LoadReading { running: 2, ..quiet }), 64);
        assert_eq!(with(LoadReading { waiting: 2, ..quiet }), 64 + 1_024);
        assert_eq!(with(LoadReading { running: 2, used_tokens: Some(640), ..quiet }), 64 + 10);
        assert_eq!(with(LoadReading { used_tokens: Some(640), ..quiet }), 0, "nobody's tokens");
        assert_eq!(with(LoadReading { kv_permille: Some(900), ..quiet }), 0);
        assert_eq!(with(LoadReading { kv_permille: Some(1_000), ..quiet }), 4_000);
    }

    #[test]
    fn the_parts_are_the_whole() {
        let load = RankLoad::default();
        load.add_prefill(500);
        load.correct(0, 6_400);
        assert!(load.try_acquire(RoomLimits::default(), RoomDemand::default()).is_some());
        let report = report(LoadReading { running: 1, ..LoadReading::default() });
        let parts = parts(&load, &work(70), Some(&report));
        let expected = CostParts {
            queued_tokens: 500,
            uncached_tokens: 70,
            evicted_tokens: 0,
            delay_tokens: 0,
            running_tokens: 32,
            held_tokens: 100,
            reported_tokens: 32,
            slower_tokens: 0,
        };
        assert_eq!((parts, parts.total()), (expected, RankCost(734)));
    }

    proptest! {
        #[test]
        fn what_is_not_computed_to_its_end_costs_more_than_asked_for(
            (queued, decoded) in (0_u64..5_000, 0_u64..500_000),
            (written, capacity) in (0_u64..2_000, prop_oneof![Just(0_u64), 1_000_u64..200_000]),
            (foreign, kv_permille) in (0_u32..20, 0_u16..=1_000),
            (uncached, times, most) in (0_u64..5_000, 1_u64..10, 0_u64..30_000),
            speeds in prop_oneof![Just([10, 10]), Just([10, 30]), Just([30, 10])],
        ) {
            let load = RankLoad::default();
            let now = NanosSinceStart(1_000_000);
            load.add_prefill(queued);
            load.correct(0, decoded);
            let pasts = speeds.map(|tokens| {
                let past = RankPast::default();
                (0..32).for_each(|_| past.waited(tokens * 1_000, 1_000_000_000));
                past.add(written, written);
                past
            });
            let mut reading = LoadReading { running: foreign, ..LoadReading::default() };
            reading.kv_permille = Some(kv_permille);
            let report = LoadReport::new(RankIndex(0), now, &reading, OwnLoad::default());
            let prices = Prices::of_token(times).with_speeds(pasts.iter());
            let parts = |most| {
                let whole = work(uncached);
                let work = RankWork { kv_capacity_tokens: capacity, prices, most, ..whole };
                let report = Some(&report);
                let seen = RankSnapshot { load: &load, past: &pasts[0], report, now };
                predicted_work(seen, &work, |_| ReportWeight::FULL)
            };
            let whole = parts(RankCost::MAX);
            let most = RankCost(most);
            let some = parts(most);
            prop_assert!(whole == some || (whole.total() > most && some.total() > most));
            prop_assert!(some.total() <= whole.total());
        }
    }
}
