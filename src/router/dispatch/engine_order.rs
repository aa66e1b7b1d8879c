//! The number that orders requests in vLLM's own queue. With `--scheduling-policy priority`, vLLM
//! takes the lowest number first, and of equal numbers the first arrival. Pure: called by the shard
//! and by the simulator.

use std::time::Duration;

/// Begin of the numbers: 2026-01-01, in time since 1970.
const NUMBERS_START: Duration = Duration::from_secs(1_767_225_600);
/// A step of the number. Finer steps gain nothing in the simulator, and the years would be fewer.
const STEP_MS: u128 = 250;
/// Client priorities above 0 with a number of their own. Larger priorities share the last number.
const LATER_COUNT: i64 = 1 << 20;
/// The largest number of a request of priority 0. vLLM's Rust frontend takes 32 bits (0.33,
/// `protocol/request.rs`).
const USUAL_LAST: i64 = i32::MAX as i64 - LATER_COUNT;

/// Input of a request's place in vLLM's own queue. Later requests may pass a request for a time in
/// proportion to its own prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineOrder {
    /// Arrival at the router, since 1970: several routers may send to the same engine.
    pub arrived_at: Duration,
    /// Time of the rank for the part of the prompt that is not cached.
    pub prefill_time: Duration,
    /// Requests that arrive more than this many times [`Self::prefill_time`] later do not pass.
    pub overtaken_max: u32,
}

impl EngineOrder {
    /// The number for a request with that client priority. Priorities below 0 go before 0, and
    /// priorities above 0 behind. Among equal priorities other than 0, the engine takes the first
    /// arrival, as without the number. After the year 2042, this holds for 0 too.
    #[must_use]
    pub fn number(&self, priority: i64) -> i64 {
        let number = match priority {
            ..0 => priority.max(i64::from(i32::MIN)),
            0 => self.steps().min(USUAL_LAST),
            1.. => USUAL_LAST + priority.min(LATER_COUNT),
        };
        debug_assert!(i32::try_from(number).is_ok(), "vLLM takes 32 bits");
        debug_assert_eq!(number.cmp(&0).is_lt(), priority < 0, "{priority} became {number}");
        number
    }

    /// Steps since the begin of the numbers.
    fn steps(&self) -> i64 {
        let passed_for = self.prefill_time.saturating_mul(self.overtaken_max);
        let due = self.arrived_at.saturating_add(passed_for).saturating_sub(NUMBERS_START);
        i64::try_from(due.as_millis() / STEP_MS).unwrap_or(USUAL_LAST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TODAY: Duration = Duration::from_secs(1_795_000_000);

    fn order(arrived_ms: u64, prefill_ms: u64) -> EngineOrder {
        let arrived_at = TODAY + Duration::from_millis(arrived_ms);
        EngineOrder {
            arrived_at,
            prefill_time: Duration::from_millis(prefill_ms),
            overtaken_max: 64,
        }
    }

    #[test]
    fn a_request_is_passed_for_a_time_in_proportion_to_its_prompt() {
        let long = order(0, 500);
        assert_eq!(long.number(0) - order(0, 0).number(0), 64 * 500 / 250);
        // 500 ms of prompt: requests that arrive within 32 s pass it, and later requests do not.
        assert!(order(31_000, 0).number(0) < long.number(0));
        assert!(order(32_250, 0).number(0) > long.number(0));
        let by_arrival = EngineOrder { overtaken_max: 0, ..long };
        assert_eq!(by_arrival.number(0), order(0, 0).number(0));
    }

    #[test]
    fn the_clients_order_comes_first() {
        let of = |priority| order(0, 500).number(priority);
        assert_eq!((of(-1), of(-5), of(i64::MIN)), (-1, -5, i64::from(i32::MIN)));
        assert_eq!(of(1) - of(2), -1);
        assert_eq!(of(i64::MAX), i64::from(i32::MAX));
        assert!(of(0) > 0 && of(0) < of(1));
    }

    #[test]
    fn clocks_may_be_wrong() {
        let of = |arrived_at| EngineOrder { arrived_at, ..order(0, 500) }.number(0);
        assert_eq!(of(Duration::ZERO), 0, "before 2026");
        assert_eq!(of(Duration::MAX), USUAL_LAST);
        // 2042, with a prompt of an hour.
        let late = EngineOrder {
            arrived_at: Duration::from_secs(2_303_000_000),
            prefill_time: Duration::from_secs(3_600),
            overtaken_max: 64,
        };
        assert!(late.number(0) < USUAL_LAST);
    }

    proptest! {
        #[test]
        fn numbers_fit_and_keep_order(
            (arrived_ms, later) in (0_u64..1 << 45, 0_u64..1 << 30),
            (prefill_ms, longer_ms) in (0_u64..1 << 40, 0_u64..1 << 30),
            (overtaken_max, one, other) in (0_u32..=1_000, any::<i64>(), any::<i64>()),
        ) {
            let order = EngineOrder { overtaken_max, ..order(arrived_ms, prefill_ms) };
            let behind = EngineOrder {
                arrived_at: order.arrived_at + Duration::from_millis(later),
                prefill_time: order.prefill_time + Duration::from_millis(longer_ms),
                ..order
            };
            prop_assert!(order.number(0) <= behind.number(0));
            for priority in [0, one, other] {
                prop_assert!(i32::try_from(order.number(priority)).is_ok());
            }
            if one < other {
                prop_assert!(order.number(one) <= behind.number(other));
                prop_assert!(behind.number(one) <= order.number(other));
            }
        }
    }
}
