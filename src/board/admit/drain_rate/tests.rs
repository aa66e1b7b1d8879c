//! Tests of the drain rate, with a small simulation of a pool.

use super::*;
use proptest::prelude::*;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

const fn sample(at_ns: u64, ended_total: u64, is_full: bool) -> EndedSample {
    EndedSample { at: NanosSinceStart(at_ns), ended_total, is_full }
}

/// A pool with random ends at a changing rate, and an estimator that samples it from time to time.
struct Pool {
    random: fastrand::Rng,
    now: u64,
    ended: u64,
    rate: DrainRate,
}

impl Pool {
    fn new(seed: u64) -> Self {
        let random = fastrand::Rng::with_seed(seed);
        Self { random, now: 0, ended: 0, rate: DrainRate::default() }
    }

    /// Lets `per_second` requests end for `seconds`, `at_once` of them together. Samples come every
    /// 20 ms on average (every refusal is a sample), or once a second when nothing is refused.
    /// `look` sees the pool after each sample.
    fn run(
        &mut self,
        per_second: f64,
        seconds: u64,
        (at_once, refusing): (u64, bool),
        mut look: impl FnMut(&Self),
    ) {
        let until = self.now + seconds * SECOND;
        let gap = |random: &mut fastrand::Rng, mean_s: f64| {
            let gap = Duration::from_secs_f64(-mean_s * (1.0 - random.f64()).ln());
            u64::try_from(gap.as_nanos()).unwrap()
        };
        let mean_s = at_once as f64 / per_second;
        let mut next_end = self.now + gap(&mut self.random, mean_s);
        while self.now < until {
            self.now += if refusing { gap(&mut self.random, 0.02) } else { SECOND };
            while next_end <= self.now {
                self.ended += at_once;
                next_end += gap(&mut self.random, mean_s);
            }
            self.rate.observe(sample(self.now, self.ended, refusing));
            look(self);
        }
    }

    fn estimate(&self) -> Option<f64> {
        self.rate.per_second(NanosSinceStart(self.now))
    }
}

/// Mean error at a steady rate, in per cent, and the time after the change to `per_second` until
/// the estimate stays within 30 % (more for a rate that chance moves as much).
fn errors(before: f64, per_second: f64, at_once: u64, seed: u64) -> (f64, f64) {
    let mut pool = Pool::new(seed);
    pool.run(before, 60, (at_once, false), |_| {});
    let begun = pool.now;
    let mut late_s = 0.0;
    let mut settled = Vec::new();
    pool.run(per_second, 60, (at_once, true), |pool| {
        let error = pool.estimate().map_or(1.0, |rate| (rate / per_second - 1.0).abs());
        let passed_s = (pool.now - begun) as f64 / SECOND as f64;
        if passed_s > 10.0 {
            settled.push(error);
        } else if error > 0.3 {
            late_s = passed_s;
        }
    });
    (100.0 * settled.iter().sum::<f64>() / settled.len() as f64, late_s)
}

/// The estimate's error, reported and bounded. `cargo test --lib drain_rate -- --nocapture` prints
/// it.
#[test]
fn the_error_of_the_estimate() {
    const SEEDS: u64 = 20;
    println!("ends/s before -> after, at once: mean error when settled, time to within 30 %");
    for (before, after, at_once, error_max, late_max_s) in [
        (100.0, 100.0, 1, 5.0, 0.5),
        (10.0, 200.0, 1, 4.0, 1.5),
        (200.0, 20.0, 1, 6.0, 2.0),
        (0.001, 50.0, 1, 5.0, 1.0),
        (1_000.0, 3_000.0, 1, 3.0, 0.5),
        (2.0, 4.0, 1, 30.0, 10.0),
        // Requests that end eight at a time look like changes: less exact, and chance leaves the 30
        // % now and then.
        (20.0, 200.0, 8, 25.0, 10.0),
    ] {
        let runs: Vec<(f64, f64)> =
            (0..SEEDS).map(|seed| errors(before, after, at_once, seed)).collect();
        let mean = |of: fn(&(f64, f64)) -> f64| runs.iter().map(of).sum::<f64>() / SEEDS as f64;
        let error = mean(|run| run.0);
        let late_s = mean(|run| run.1);
        println!("{before:>6} -> {after:>5}, {at_once}: {error:>4.1} %, {late_s:.2} s");
        assert!(error <= error_max, "{before} -> {after}: {error} % off");
        assert!(late_s <= late_max_s, "{before} -> {after}: {late_s} s late");
    }
}

/// B8: the projected wait that a client is sent, against the time until so many requests had ended.
#[test]
fn the_projected_wait_is_what_it_took() {
    let mut pool = Pool::new(7);
    let mut waits = Vec::new();
    let mut ends = Vec::new();
    for (per_second, seconds) in [(100.0, 20), (400.0, 20), (150.0, 40)] {
        pool.run(per_second, seconds, (1, true), |pool| {
            let wait = pool.rate.projected_wait(NanosSinceStart(pool.now), 200);
            waits.extend(wait.map(|wait| (pool.now, pool.ended + 200, wait.as_secs_f64())));
            ends.push((pool.now, pool.ended));
        });
    }
    let errors: Vec<f64> = waits
        .iter()
        .filter_map(|(at, wanted, wait_s)| {
            let index = ends.partition_point(|(_, ended)| ended < wanted);
            let took_s = (ends.get(index)?.0 - at) as f64 / SECOND as f64;
            Some((wait_s / took_s - 1.0).abs())
        })
        .collect();
    let mean = 100.0 * errors.iter().sum::<f64>() / errors.len() as f64;
    println!("projected wait of 200 requests over changing rates: {mean:.1} % off on average");
    assert!(waits.len() > 3_000, "known nearly always: {}", waits.len());
    assert!(mean < 15.0, "{mean} % off");
}

#[test]
fn nothing_is_said_before_something_is_known() {
    let mut rate = DrainRate::default();
    let mut random = fastrand::Rng::with_seed(1);
    assert_eq!(rate.per_second(NanosSinceStart(0)), None);
    for tenth in 0..100 {
        rate.observe(sample(tenth * 100 * MS, 2, true));
    }
    let now = NanosSinceStart(10 * SECOND);
    assert_eq!(rate.per_second(now), None, "nothing has ended meanwhile");
    assert_eq!(rate.retry_after(now, 5, &mut random), None);
    for tenth in 100..110 {
        rate.observe(sample(tenth * 100 * MS, 2 + 10 * (tenth - 100), true));
    }
    assert!(rate.per_second(NanosSinceStart(11 * SECOND)).is_some());
    assert_eq!(rate.per_second(NanosSinceStart(17 * SECOND)), None, "stale");
}

#[test]
fn an_overload_after_an_idle_hour_is_seen_within_moments() {
    let mut rate = DrainRate::default();
    for second in 0..3_600 {
        rate.observe(sample(second * SECOND, 0, false));
    }
    // From here on one request ends every 5 ms.
    let begun = 3_600 * SECOND;
    for step in 0..60 {
        rate.observe(sample(begun + step * 5 * MS, step, true));
    }
    let seen = rate.per_second(NanosSinceStart(begun + 300 * MS)).unwrap();
    assert!((150.0..250.0).contains(&seen), "{seen}");
}

/// A burst after an hour with room: whatever the demand of that hour was, no wait is projected
/// until the full pool has ended requests, and then none that is far too long.
#[test]
fn the_demand_of_a_pool_with_room_projects_no_wait() {
    for (seed, demand, capacity) in
        [(1, 0.05, 2.0), (2, 1.0, 10.0), (3, 5.0, 10.0), (4, 0.5, 200.0), (5, 30.0, 40.0)]
    {
        let mut pool = Pool::new(seed);
        pool.run(demand, 3_600, (1, false), |pool| {
            assert_eq!(pool.estimate(), None, "{demand}/s with room");
        });
        let before = pool.ended;
        pool.run(capacity, 20, (1, true), |pool| {
            let ended = pool.ended - before;
            match pool.estimate() {
                None => assert!(ended < 10, "{demand} to {capacity}: unknown after {ended} ends"),
                Some(rate) => assert!(
                    ended >= 3 && rate > capacity / 3.0,
                    "{demand} to {capacity}: {rate} after {ended} ends"
                ),
            }
        });
    }
}

/// A pool that is full now and then keeps its rate for a minute, and then forgets it.
#[test]
fn the_rate_of_a_full_pool_outlives_a_minute_of_room() {
    let mut pool = Pool::new(9);
    pool.run(100.0, 30, (1, true), |_| {});
    pool.run(1.0, 50, (1, false), |pool| {
        let rate = pool.estimate().unwrap();
        assert!((80.0..125.0).contains(&rate), "{rate}: the demand is 1/s");
    });
    pool.run(1.0, 20, (1, false), |_| {});
    assert_eq!(pool.estimate(), None);
}

#[test]
fn a_pool_of_other_ranks_counts_on_from_there() {
    let mut rate = DrainRate::default();
    for tenth in 0..50 {
        rate.observe(sample(tenth * 100 * MS, 10 * tenth, true));
    }
    let at = |tenth: u64| NanosSinceStart(tenth * 100 * MS);
    let before = rate.per_second(at(49)).unwrap();
    rate.observe(sample(5_000 * MS, 3, true));
    rate.rebase(sample(5_100 * MS, 1_000_000, true));
    rate.observe(sample(5_200 * MS, 1_000_010, true));
    let after = rate.per_second(at(52)).unwrap();
    assert!((before - 100.0).abs() < 1.0 && (after - 100.0).abs() < 1.0, "{before}, {after}");
}

#[test]
fn clients_come_back_spread_and_within_a_minute() {
    let mut rate = DrainRate::default();
    for tenth in 0..50 {
        rate.observe(sample(tenth * 100 * MS, 10 * tenth, true));
    }
    let now = NanosSinceStart(5 * SECOND);
    let mut random = fastrand::Rng::with_seed(1);
    for (ahead, low_ms, high_ms) in
        [(0, 100, 150), (200, 1_980, 3_050), (1_000_000, 40_000, 60_000)]
    {
        let waits: Vec<u128> = (0..500)
            .map(|_| rate.retry_after(now, ahead, &mut random).unwrap().as_millis())
            .collect();
        let first = *waits.iter().min().unwrap();
        let last = *waits.iter().max().unwrap();
        assert!(first >= low_ms && last <= high_ms, "{ahead}: {first} to {last} ms");
        assert!(last - first > (high_ms - low_ms) / 2, "{ahead}: spread");
    }
}

proptest! {
    #[test]
    fn any_samples_give_a_usable_answer_or_none(
        samples in prop::collection::vec((0_u64..20 * SECOND, any::<u32>()), 0..40),
        ahead: u64,
    ) {
        let mut rate = DrainRate::default();
        let mut now = 0_u64;
        let mut random = fastrand::Rng::with_seed(1);
        for (step, ended) in samples {
            now += step;
            rate.observe(sample(now, u64::from(ended), true));
            let at = NanosSinceStart(now);
            let known = rate.per_second(at);
            prop_assert!(known.is_none_or(|rate| rate.is_finite() && rate > 0.0));
            let wait = rate.retry_after(at, ahead, &mut random);
            prop_assert!(
                wait.is_none_or(|wait| wait >= RETRY_AFTER_MIN && wait <= RETRY_AFTER_MAX)
            );
        }
    }

    #[test]
    fn an_even_rate_is_met(per_second in 1_u64..5_000, step_ms in 5_u64..1_000) {
        let mut rate = DrainRate::default();
        let steps = 20_000 / step_ms;
        for step in 0..=steps {
            let now = step * step_ms;
            rate.observe(sample(now * MS, now * per_second / 1_000, true));
        }
        let seen = rate.per_second(NanosSinceStart(steps * step_ms * MS)).unwrap();
        let wanted = per_second as f64;
        prop_assert!((seen - wanted).abs() <= 0.15 * wanted + 0.5, "{seen} of {wanted}");
    }
}

#[test]
fn who_is_refused_together_does_not_come_back_together() {
    let mut random = fastrand::Rng::with_seed(5);
    for (after_s, latest_s) in [(1, 1.5), (30, 45.0), (50, 60.0), (60, 60.0), (80, 80.0)] {
        let after = Duration::from_secs(after_s);
        let drawn: Vec<_> = (0..100).map(|_| later_by_chance(after, &mut random)).collect();
        let least = drawn.iter().min().unwrap();
        let most = drawn.iter().max().unwrap();
        assert!(*least >= after && most.as_secs_f64() <= latest_s, "{least:?} to {most:?}");
        let spread = most.saturating_sub(*least).as_secs_f64();
        assert!(spread >= 0.8 * (latest_s - after.as_secs_f64()), "{after_s}: {spread}");
    }
}

/// The longest wait with the most jitter is the longest `Retry-After`.
#[test]
fn the_longest_wait_leaves_room_for_the_jitter() {
    assert_eq!(BEFORE_JITTER_MAX.mul_f64(1.0 + JITTER), RETRY_AFTER_MAX);
}
