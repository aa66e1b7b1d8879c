//! Load reports of engines, and the part of the load that other clients sent. The control plane
//! makes the reports and sends them to the shards, which store the newest by rank. A report
//! corrects the leases and never replaces them: only foreign load counts, less with age, and not at
//! all once it is too old.

use super::PromptNumber;
use super::RankLoad;
use forebay_base::limits::RANKS_MAX;
use forebay_base::{NanosSinceStart, RankIndex};
use std::time::Duration;

/// Expected prompt tokens of a foreign waiting request, if the engine reports only the number of
/// requests. Chats of public traces leave a few hundred to a few thousand tokens uncached; too few
/// make the correction weak, too many would make it a gate.
const WAITING_REQUEST_TOKENS: u64 = 512;

/// Tokens of a rank since its start, where reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenProgress {
    /// Tokens processed and generated. While this is unchanged, the engine has stalled, and the
    /// other figures are from its last step.
    pub all: Option<u64>,
    pub generated: Option<u64>,
    /// First tokens of requests.
    pub first_tokens: Option<u64>,
    /// Sum of the waits for first tokens, in milliseconds.
    pub first_token_wait_ms: Option<u64>,
}

/// Load of a rank in an answer or message of its engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadReading {
    /// Requests in the batch.
    pub running: u32,
    /// Requests that wait for the batch.
    pub waiting: u32,
    /// Waiting requests that wait for a KV transfer, not for a place.
    pub deferred: u32,
    /// Uncached prompt tokens of waiting requests, where reported.
    pub waiting_tokens: Option<u64>,
    /// KV tokens held by live requests, where reported.
    pub used_tokens: Option<u64>,
    /// Capacity in KV tokens, where reported.
    pub capacity_tokens: Option<u64>,
    /// Share of the KV cache that live requests hold, in thousandths, where reported; at most
    /// 1,000.
    pub kv_permille: Option<u16>,
    /// Tokens since the rank's start.
    pub progress: TokenProgress,
}

impl LoadReading {
    /// Has the rank no requests?
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let kv_permille = self.kv_permille.unwrap_or(0);
        self.running == 0 && self.waiting == 0 && kv_permille == 0
    }

    /// Derives missing figures from the reported figures. `capacity_tokens`: the capacity by
    /// discovery; 0: unknown.
    #[must_use]
    pub fn completed(mut self, capacity_tokens: u64) -> Self {
        let known = self.capacity_tokens.filter(|&tokens| tokens > 0);
        let Some(capacity) = known.or((capacity_tokens > 0).then_some(capacity_tokens)) else {
            return self;
        };
        self.capacity_tokens = Some(capacity);
        match (self.used_tokens, self.kv_permille) {
            (None, Some(permille)) => {
                self.used_tokens = Some(capacity.saturating_mul(u64::from(permille)) / 1_000);
            }
            (Some(used), None) => {
                let permille = used.saturating_mul(1_000) / capacity;
                self.kv_permille = Some(u16::try_from(permille.min(1_000)).unwrap_or(1_000));
            }
            _ => {}
        }
        self
    }
}

/// Load of this router on a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnLoad {
    pub in_flight: u32,
    /// Prompt tokens without a first token.
    pub prefill_tokens: u64,
    /// KV tokens that these requests hold, or will hold.
    pub decode_tokens: u64,
    /// Number of the next prompt.
    pub prompts_sent: PromptNumber,
    /// Prompts that were computed as far as this router knew, or given up.
    pub prompts_done: PromptNumber,
}

impl OwnLoad {
    /// The load at this moment.
    #[must_use]
    pub fn of(load: &RankLoad) -> Self {
        Self {
            prompts_sent: load.prompts_sent(),
            prompts_done: load.prompts_done(),
            in_flight: load.in_flight(),
            prefill_tokens: load.prefill_tokens(),
            decode_tokens: load.kv_tokens(),
        }
    }

    /// The larger value of each. An engine's figures are from a moment between two of ours. Load
    /// that was ours at either moment may be in the figures, and must not count as foreign. Of
    /// prompts: sent until the `other` moment, and done at this moment.
    #[must_use]
    pub fn or_more(self, other: Self) -> Self {
        Self {
            in_flight: self.in_flight.max(other.in_flight),
            prefill_tokens: self.prefill_tokens.max(other.prefill_tokens),
            decode_tokens: self.decode_tokens.max(other.decode_tokens),
            prompts_sent: other.prompts_sent,
            prompts_done: self.prompts_done,
        }
    }
}

/// Load on a rank that this router did not send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForeignLoad {
    /// Requests, running and waiting.
    pub requests: u32,
    /// Prompt tokens of waiting requests.
    pub waiting_tokens: u64,
    pub held_tokens: u64,
}

impl ForeignLoad {
    fn new(reading: &LoadReading, own: OwnLoad) -> Self {
        let all = reading.running.saturating_add(reading.waiting);
        let requests = all.saturating_sub(own.in_flight);
        if requests == 0 {
            // Engines round up to blocks and count tokens as they generate them: the surplus is
            // ours nonetheless.
            return Self::default();
        }
        // The engine does not report which requests wait: assume the same share as of all requests.
        let waiting = u64::from(requests) * u64::from(reading.waiting);
        let waiting = waiting.checked_div(u64::from(all)).unwrap_or(0);
        let waiting_tokens = reading.waiting_tokens.map_or_else(
            || waiting.saturating_mul(WAITING_REQUEST_TOKENS),
            |tokens| tokens.saturating_sub(own.prefill_tokens),
        );
        let held_tokens = reading.used_tokens.unwrap_or(0).saturating_sub(own.decode_tokens);
        debug_assert!(requests <= all && waiting <= u64::from(requests), "more than there are");
        Self { requests, waiting_tokens, held_tokens }
    }
}

/// Load report of a rank, with its foreign part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadReport {
    pub rank: RankIndex,
    pub at: NanosSinceStart,
    /// Requests in the batch.
    pub running: u32,
    pub waiting: u32,
    /// Share of the KV cache that live requests hold, in thousandths; `None`: unknown.
    pub kv_permille: Option<u16>,
    /// Load that this router did not send.
    pub foreign: ForeignLoad,
}

impl LoadReport {
    /// `own`: this router's load on the rank at the time of the reading.
    #[must_use]
    pub fn new(rank: RankIndex, at: NanosSinceStart, reading: &LoadReading, own: OwnLoad) -> Self {
        Self {
            rank,
            at,
            running: reading.running,
            waiting: reading.waiting,
            kv_permille: reading.kv_permille,
            foreign: ForeignLoad::new(reading, own),
        }
    }
}

/// Weight of a report by its age: [`ReportWeight::FULL`] at first, 0 at the maximum age, linear
/// between.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReportWeight(u64);

impl ReportWeight {
    /// Weight of a new report; a power of two.
    pub const FULL: Self = Self(1 << 10);

    /// The weighted part of an amount, rounded down.
    #[must_use]
    pub const fn of(self, amount: u64) -> u64 {
        amount.saturating_mul(self.0) / Self::FULL.0
    }

    /// The weighted part of an amount, in units of 1/1,024.
    #[must_use]
    pub const fn fine_part_of(self, amount: u64) -> u64 {
        amount.saturating_mul(self.0)
    }
}

/// The newest report of each rank.
#[derive(Clone, Debug)]
pub struct LoadReports {
    age_max_ns: u64,
    /// By [`RankIndex`]; as long as needed.
    newest: Vec<Option<LoadReport>>,
}

impl LoadReports {
    /// No reports yet. A report of `age_max` or older has no weight.
    #[must_use]
    pub fn new(age_max: Duration) -> Self {
        let mut none = Self { age_max_ns: 0, newest: Vec::new() };
        none.set_age_max(age_max);
        none
    }

    /// From now on, a report of `age_max` or older has no weight.
    pub fn set_age_max(&mut self, age_max: Duration) {
        self.age_max_ns = u64::try_from(age_max.as_nanos()).unwrap_or(u64::MAX);
    }

    /// Removes the report of a rank that left.
    pub fn forget(&mut self, rank: RankIndex) {
        if let Some(stored) = self.newest.get_mut(rank.index()) {
            *stored = None;
        }
    }

    /// Stores a report unless a newer report exists. Ignores ranks past [`RANKS_MAX`].
    pub fn take(&mut self, report: LoadReport) {
        let position = report.rank.index();
        if position >= RANKS_MAX {
            return;
        }
        if position >= self.newest.len() {
            self.newest.resize(position + 1, None);
        }
        debug_assert!(self.newest.len() <= RANKS_MAX, "a report of no rank");
        if let Some(stored) = self.newest.get_mut(position)
            && stored.is_none_or(|stored| stored.at <= report.at)
        {
            *stored = Some(report);
        }
    }

    /// The newest report of a rank, whatever its age.
    #[must_use]
    #[inline]
    pub fn newest(&self, rank: RankIndex) -> Option<&LoadReport> {
        self.newest.get(rank.index())?.as_ref()
    }

    /// The newest report of a rank and its weight; `None` without any weight.
    #[must_use]
    pub fn counting(
        &self,
        rank: RankIndex,
        now: NanosSinceStart,
    ) -> Option<(&LoadReport, ReportWeight)> {
        let report = self.newest(rank)?;
        let weight = self.weight_of(report, now);
        (weight.0 > 0).then_some((report, weight))
    }

    #[must_use]
    #[inline]
    pub fn weight_of(&self, report: &LoadReport, now: NanosSinceStart) -> ReportWeight {
        let left_ns = self.age_max_ns.saturating_sub(now.since(report.at));
        // Both in units of 2^20 ns first, about a millisecond: the product then fits for ages of
        // centuries.
        let left = left_ns >> 20;
        let whole = (self.age_max_ns >> 20).max(1);
        let weight = left.min(whole).saturating_mul(ReportWeight::FULL.0) / whole;
        debug_assert!(weight <= ReportWeight::FULL.0, "a report that counts more than once");
        ReportWeight(weight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RANK: RankIndex = RankIndex(3);
    const SECOND_NS: u64 = 1_000_000_000;

    fn reading(running: u32, waiting: u32) -> LoadReading {
        LoadReading { running, waiting, ..LoadReading::default() }
    }

    fn own(in_flight: u32) -> OwnLoad {
        OwnLoad { in_flight, ..OwnLoad::default() }
    }

    fn foreign(reading: &LoadReading, own: OwnLoad) -> ForeignLoad {
        LoadReport::new(RANK, NanosSinceStart(0), reading, own).foreign
    }

    #[test]
    fn only_what_is_not_ours_counts() {
        assert_eq!(foreign(&reading(5, 3), own(8)), ForeignLoad::default());
        assert_eq!(foreign(&reading(5, 3), own(100)), ForeignLoad::default());
        let rounded = LoadReading { used_tokens: Some(160), ..reading(1, 0) };
        let ours = OwnLoad { decode_tokens: 150, ..own(1) };
        assert_eq!(foreign(&rounded, ours), ForeignLoad::default(), "all requests are ours");
        assert_eq!(foreign(&reading(6, 2), own(4)).requests, 4);
        assert_eq!(foreign(&reading(6, 2), own(4)).waiting_tokens, WAITING_REQUEST_TOKENS);
        let reported = LoadReading { waiting_tokens: Some(900), ..reading(1, 2) };
        let ours = OwnLoad { prefill_tokens: 700, ..OwnLoad::default() };
        assert_eq!(foreign(&reported, ours).waiting_tokens, 200);
        let reported = LoadReading { used_tokens: Some(900), ..reading(1, 0) };
        let ours = OwnLoad { decode_tokens: 1_000, ..OwnLoad::default() };
        assert_eq!(foreign(&reported, ours).held_tokens, 0);
    }

    #[test]
    fn what_follows_is_filled_in() {
        let share = LoadReading { kv_permille: Some(250), ..reading(0, 0) };
        assert_eq!(share.completed(4_000).used_tokens, Some(1_000));
        assert_eq!(share.completed(0).used_tokens, None);
        let reported = LoadReading { capacity_tokens: Some(8_000), ..share };
        assert_eq!(reported.completed(4_000).used_tokens, Some(2_000), "the engine's word first");
        let used = LoadReading { used_tokens: Some(9_999), ..reading(0, 0) };
        assert_eq!(used.completed(4_000).kv_permille, Some(1_000));
    }

    #[test]
    fn the_newest_report_wins_and_fades() {
        let mut reports = LoadReports::new(Duration::from_secs(4));
        let at = |seconds: u64| NanosSinceStart(seconds * SECOND_NS);
        assert!(reports.counting(RANK, at(0)).is_none());
        reports.take(LoadReport::new(RANK, at(10), &reading(4, 0), own(0)));
        reports.take(LoadReport::new(RANK, at(9), &reading(9, 0), own(0)));
        reports.take(LoadReport::new(RankIndex(u16::MAX), at(9), &reading(9, 0), own(0)));
        assert_eq!(reports.newest(RANK).unwrap().running, 4);
        assert!(reports.newest(RankIndex(u16::MAX)).is_none());
        let part = |now| reports.counting(RANK, at(now)).map(|(_, weight)| weight.of(1_000));
        assert_eq!((part(10), part(12), part(14)), (Some(1_000), Some(500), None));
        assert_eq!(part(9), Some(1_000), "a clock that is behind");
    }

    proptest! {
        #[test]
        fn weights_never_rise(
            age_max_ms in 0_u64..100_000,
            ages in proptest::collection::vec(0_u64..200_000_000_000, 2),
        ) {
            let mut reports = LoadReports::new(Duration::from_millis(age_max_ms));
            reports.take(LoadReport::new(RANK, NanosSinceStart(0), &reading(1, 1), own(0)));
            let weight = |age| reports.counting(RANK, NanosSinceStart(age)).map_or(0, |(_, w)| w.0);
            let young = ages[0].min(ages[1]);
            let old = ages[0].max(ages[1]);
            prop_assert!(weight(old) <= weight(young));
            prop_assert!(weight(young) <= ReportWeight::FULL.0);
            if old >= age_max_ms * 1_000_000 {
                prop_assert_eq!(weight(old), 0);
            }
        }

        #[test]
        fn no_reading_panics_and_foreign_is_part_of_all(
            numbers in any::<(u32, u32, Option<u64>, Option<u64>, Option<u64>, Option<u16>)>(),
            (in_flight, prefill_tokens, decode_tokens) in any::<(u32, u64, u64)>(),
            capacity in any::<u64>(),
        ) {
            let (running, waiting, waiting_tokens, used_tokens, capacity_tokens, kv_permille) =
                numbers;
            let reading = LoadReading {
                running,
                waiting,
                deferred: 0,
                waiting_tokens,
                used_tokens,
                capacity_tokens,
                kv_permille,
                progress: TokenProgress::default(),
            };
            let reading = reading.completed(capacity);
            let own = OwnLoad { in_flight, prefill_tokens, decode_tokens, ..OwnLoad::default() };
            let foreign = foreign(&reading, own);
            prop_assert!(foreign.requests <= running.saturating_add(waiting));
            prop_assert!(foreign.held_tokens <= reading.used_tokens.unwrap_or(0));
        }
    }
}
