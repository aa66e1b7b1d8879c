//! Tokens of a rank that replicas count more than once. Each replica counts a prefix once for its
//! own requests, and the engine holds the prefix once for all replicas. The engine's reports show
//! the difference, and the limit for the sum of the counts rises by it. Sans-IO.

use super::own_load::KvInUse;
use forebay_base::NanosSinceStart;

/// Output that a running request may still generate. As the expected output of a request without a
/// limit, `OUTPUT_TOKENS_DEFAULT` of `forebay_select`.
const OUTPUT_TOKENS: u64 = 256;
/// A rank in little use shows how much its next requests share, too. But its few requests may be on
/// their way to the engine, and a report of these would be multiplied. So the surplus counts at
/// most so many times.
const TIMES_MAX: u64 = 2;

/// Use of a rank, summed over all replicas by their own counts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CountedUse {
    pub(crate) requests: u64,
    pub(crate) kv_tokens: u64,
    /// Prompt tokens that the rank has yet to compute. The engine may not hold them yet.
    pub(crate) prefill_tokens: u64,
}

/// The last report of a rank's engine, and the counts of all replicas at that time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Overcount {
    at: NanosSinceStart,
    counts_until: NanosSinceStart,
    counted_tokens: u64,
    /// Tokens that the same requests hold in the engine, or will hold.
    engine_tokens: u64,
}

impl Overcount {
    /// Compares a new report with the counts. An old report is left out.
    pub(crate) fn observe(&mut self, report: Option<KvInUse>, counted: CountedUse) {
        let Some(report) = report.filter(|report| report.at > self.at) else { return };
        let output_tokens = counted.requests.saturating_mul(OUTPUT_TOKENS);
        *self = Self {
            at: report.at,
            counts_until: report.counts_until,
            counted_tokens: counted.kv_tokens,
            engine_tokens: report
                .used_tokens
                .saturating_add(counted.prefill_tokens)
                .saturating_add(output_tokens),
        };
    }

    /// Limit for the sum of the counts, such that the engine holds `max`: between `max` and `max`
    /// for each replica. Without a recent report, `max`.
    pub(crate) fn limit(&self, max: u64, replicas: u64, now: NanosSinceStart) -> u64 {
        let surplus = self.counted_tokens.saturating_sub(self.engine_tokens);
        if surplus == 0 || now >= self.counts_until {
            return max;
        }
        // Further requests share as much as the requests of the report.
        let base = self.engine_tokens.max(max / TIMES_MAX).max(1);
        let more = u128::from(surplus) * u128::from(max) / u128::from(base);
        let more = u64::try_from(more).unwrap_or(u64::MAX);
        max.saturating_add(more).min(max.saturating_mul(replicas.max(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: NanosSinceStart = NanosSinceStart(1_000);

    fn in_use(used_tokens: u64) -> Option<KvInUse> {
        Some(KvInUse { used_tokens, at: NOW, counts_until: NanosSinceStart(2_000) })
    }

    fn counted(requests: u64, kv_tokens: u64, prefill_tokens: u64) -> CountedUse {
        CountedUse { requests, kv_tokens, prefill_tokens }
    }

    fn limit(used_tokens: u64, counted: CountedUse) -> u64 {
        let mut overcount = Overcount::default();
        overcount.observe(in_use(used_tokens), counted);
        overcount.limit(10_000, 4, NOW)
    }

    #[test]
    fn what_replicas_count_more_than_once_is_given_back() {
        assert_eq!(limit(6_976, counted(4, 16_000, 0)), 20_000, "8,000 with four answers");
        assert_eq!(limit(6_976, counted(4, 8_000, 0)), 10_000, "equal");
        assert_eq!(limit(2_000, counted(0, 8_000, 6_000)), 10_000, "yet to be computed");
        assert_eq!(limit(8_000, counted(0, 90_000, 0)), 40_000, "all of it for each");
        assert_eq!(limit(0, counted(1, 4_256, 0)), 18_000, "on its way to the engine, perhaps");
    }

    #[test]
    fn an_old_report_gives_nothing_back() {
        let mut overcount = Overcount::default();
        assert_eq!(overcount.limit(100, 2, NOW), 100, "none yet");
        overcount.observe(in_use(50), counted(0, 100, 0));
        overcount.observe(in_use(100), counted(0, 100, 0));
        assert_eq!(overcount.limit(100, 2, NOW), 200, "the first turn with a report counts");
        overcount.observe(None, counted(0, 100, 0));
        assert_eq!(overcount.limit(100, 2, NanosSinceStart(1_999)), 200);
        assert_eq!(overcount.limit(100, 2, NanosSinceStart(2_000)), 100);
    }

    proptest! {
        #[test]
        fn a_limit_is_never_below_the_rank_and_never_above_the_rank_for_each(
            numbers in any::<(u64, u64, u64, u64)>(),
            max in any::<u64>(),
            replicas in 0_u64..40,
        ) {
            let (used_tokens, requests, kv_tokens, prefill_tokens) = numbers;
            let mut overcount = Overcount::default();
            overcount.observe(in_use(used_tokens), counted(requests, kv_tokens, prefill_tokens));
            let limit = overcount.limit(max, replicas, NOW);
            prop_assert!(limit >= max && limit <= max.saturating_mul(replicas.max(1)));
            let holds = used_tokens.saturating_add(prefill_tokens);
            prop_assert!(limit == max || kv_tokens > holds, "nothing counts twice");
            prop_assert_eq!(overcount.limit(max, 1, NOW), max, "alone");
            prop_assert_eq!(overcount.limit(max, replicas, NanosSinceStart(2_000)), max, "stale");
        }

        #[test]
        fn more_in_use_gives_less_back(
            used in proptest::collection::vec(0_u64..100_000, 2),
            kv_tokens in 0_u64..200_000,
            max in 1_u64..100_000,
        ) {
            let limit = |used_tokens: u64| {
                let mut overcount = Overcount::default();
                overcount.observe(in_use(used_tokens), counted(3, kv_tokens, 0));
                overcount.limit(max, 8, NOW)
            };
            let least = used[0].min(used[1]);
            prop_assert!(limit(used[0].max(used[1])) <= limit(least));
        }
    }
}
