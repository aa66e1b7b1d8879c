//! The learned limit of requests of a rank, for engines that declare no limit. Learned from load
//! reports. Sans-IO: a report and its time are the input, a limit is the output. The control plane
//! has a [`LearnedLimit`] for each such rank.
//!
//! | state | report | next limit |
//! |---|---|---|
//! | no limit | enough requests have waited, see below | running requests plus 1 |
//! | the limit holds requests back | more than two wait | running requests plus 1 |
//! | the limit holds requests back | the second in a row in which none waits | raised by a step |
//! | else | any | unchanged |
//!
//! A waiting request shows that the engine is full, so a full engine is not probed. A step is 1
//! request. The step doubles while more requests run than at the last report with waiting requests.
//! A limit above twice that number is removed.
//!
//! Requests that wait for a step of the engine, behind long prompts, do not prove a limit. If the
//! limit held them back, they would compute their prompts on ranks that do not hold them. So the
//! first limit needs a proof: the sum of waiting requests over reports in a row. The proof is
//! large, unless as many requests run as ever did, or the KV cache is full.

use forebay_base::NanosSinceStart;
use std::time::Duration;

/// Requests that may wait in the engine. Without a waiting request the engine may idle, and no
/// report shows that it is full.
const WAITING_MAX: u32 = 2;
/// Reports in shorter intervals are ignored: requests that a new limit admits need this time to
/// arrive and to be reported.
const REPORT_INTERVAL_MIN: Duration = Duration::from_millis(400);
/// Reports in a row without a waiting request before a probe. Two requests that end together leave
/// no request waiting for a moment.
const FREE_REPORTS_MIN: u32 = 2;
/// Waiting requests per running request that prove a limit, if the engine appears full.
const PROOF_FULL: u64 = 2;
/// The same if the engine does not appear full: a long prompt delays 20 requests for some seconds.
const PROOF: u64 = 32;
/// Smallest proof: with few running requests, a new peak is chance.
const PROOF_MIN: u64 = 128;
/// Part of the peak that may be missing: requests that end with a step are missing in its report.
const PEAK_PART: u32 = 32;
/// Smallest distance above the running requests at which a limit is removed: with few running
/// requests, twice as many are soon reached.
const PROBED_MIN: u32 = 16;
/// Part of [`LearnedLimit::ran`] that fades with each report of waiting requests.
const RAN_FADE: u32 = 16;

/// Input of a learned limit, from a load report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitReport {
    /// Requests in the batch.
    pub running: u32,
    /// Requests that wait for the batch.
    pub waiting: u32,
    /// Requests of this router on the rank, and of other replicas as far as reported.
    pub known: u32,
    /// The KV cache has hardly a free block.
    pub is_kv_full: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LearnedLimit {
    /// 0 while no limit is proven.
    limit: u32,
    /// The next probe raises the limit by this.
    step: u32,
    /// Most requests that ever ran.
    peak: u32,
    /// Most requests that recently ran while other requests waited.
    ran: u32,
    /// Sum of waiting requests over the last reports in a row with more than [`WAITING_MAX`].
    proven: u64,
    /// Reports in a row without a waiting request.
    free_reports: u32,
    reported_at: Option<NanosSinceStart>,
}

impl LearnedLimit {
    /// The limit; `None` while no limit is proven.
    #[must_use]
    pub const fn places_max(&self) -> Option<u32> {
        if self.limit == 0 { None } else { Some(self.limit) }
    }

    /// Processes a report. True if the limit has changed.
    pub fn observe(&mut self, report: LimitReport, now: NanosSinceStart) -> bool {
        let age = |at: NanosSinceStart| Duration::from_nanos(now.since(at));
        if self.reported_at.is_some_and(|at| age(at) < REPORT_INTERVAL_MIN) {
            return false;
        }
        self.reported_at = Some(now);
        let before = self.limit;
        let holds_back = before > 0 && report.known >= before;
        self.count_waiting(report);
        if report.waiting > WAITING_MAX && (holds_back || self.is_proven(report)) {
            self.limit = report.filled();
        }
        if holds_back && self.free_reports >= FREE_REPORTS_MIN {
            self.probe(report);
        } else {
            self.step = 1;
        }
        if report.waiting > 0 {
            self.ran = report.running.max(self.ran - self.ran / RAN_FADE);
        }
        self.peak = self.peak.max(report.running);
        self.limit != before
    }

    fn count_waiting(&mut self, report: LimitReport) {
        let is_free = report.waiting == 0;
        self.free_reports = if is_free { self.free_reports.saturating_add(1) } else { 0 };
        let waits = report.waiting > WAITING_MAX;
        self.proven = if waits { self.proven.saturating_add(u64::from(report.waiting)) } else { 0 };
    }

    /// Have enough requests waited to prove a limit? A single report never proves a limit: many
    /// requests may have arrived just before.
    fn is_proven(&self, report: LimitReport) -> bool {
        let least = self.peak - self.peak / PEAK_PART;
        let is_peak = (least..=self.peak).contains(&report.running);
        let times = if is_peak || report.is_kv_full { PROOF_FULL } else { PROOF };
        let proof = times.saturating_mul(u64::from(report.running)).max(PROOF_MIN);
        self.proven > u64::from(report.waiting) && self.proven >= proof
    }

    fn probe(&mut self, report: LimitReport) {
        let raised = self.limit.saturating_add(self.step.clamp(1, self.limit));
        let has_grown = report.running > self.ran;
        self.step = if has_grown { self.step.saturating_mul(2).max(1) } else { 1 };
        let none = self.ran.saturating_mul(2).max(self.ran.saturating_add(PROBED_MIN));
        self.limit = if raised > none { 0 } else { raised };
    }
}

impl LimitReport {
    /// The limit at which the engine is full and 1 request waits. If other clients use the engine:
    /// this router's share of it.
    fn filled(self) -> u32 {
        let all = self.running.saturating_add(self.waiting).max(self.known);
        let full = all.saturating_sub(self.waiting).saturating_add(1);
        let part = u64::from(full) * u64::from(self.known.min(all));
        let part = part.div_ceil(u64::from(all.max(1)));
        u32::try_from(part).unwrap_or(u32::MAX).max(1)
    }
}

#[cfg(test)]
#[cfg(not(feature = "loom"))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Reports at intervals of a second.
    #[derive(Default)]
    struct Reports {
        learned: LearnedLimit,
        count: u64,
    }

    impl Reports {
        fn take(&mut self, running: u32, waiting: u32, known: u32) -> Option<u32> {
            self.count += 1;
            let report = LimitReport { running, waiting, known, is_kv_full: false };
            self.learned.observe(report, NanosSinceStart(self.count * 1_000_000_000));
            self.learned.places_max()
        }

        /// A report of an engine with `places`, and `wanted` requests. Requests in the engine stay.
        fn serve(&mut self, places: u32, wanted: u32, there: &mut u32) -> Option<u32> {
            let most = self.learned.places_max().unwrap_or(u32::MAX);
            *there = (*there).saturating_sub(places).max(wanted.min(most));
            self.take(places.min(*there), there.saturating_sub(places), *there)
        }
    }

    #[test]
    fn a_full_engine_has_one_request_waiting_from_the_proof_on() {
        let mut reports = Reports::default();
        assert_eq!(reports.take(5, 200, 205), None, "many may have come just before");
        assert_eq!(reports.take(8, 192, 200), Some(9));
        assert_eq!(reports.take(8, 1, 9), Some(9), "it is full: no probe");
        assert_eq!(reports.take(8, 2, 10), Some(9));
        assert_eq!(reports.take(8, 5, 13), Some(9), "at once");
        assert_eq!((reports.take(9, 0, 9), reports.take(10, 0, 9)), (Some(9), Some(10)));
    }

    #[test]
    fn a_few_that_wait_behind_long_prompts_prove_nothing() {
        let mut reports = Reports::default();
        for running in 20..60 {
            assert_eq!(reports.take(running, 9, running + 9), None);
        }
        assert_eq!(reports.take(40, 0, 40), None);
        let limits: Vec<_> = (0..60).map(|_| reports.take(40, 40, 80)).collect();
        assert_eq!(limits.iter().position(Option::is_some), Some(31), "40 wait for half a minute");
    }

    #[test]
    fn a_limit_that_is_none_is_left_behind() {
        let mut reports = Reports::default();
        reports.take(8, 400, 408);
        assert_eq!(reports.take(8, 300, 308), Some(9));
        let mut there = 0;
        let limits: Vec<_> = (0..9).map(|_| reports.serve(400, 300, &mut there)).collect();
        let some = |limit| Some(limit);
        assert_eq!(limits[..5], [9, 10, 12, 16, 24].map(some), "each step is twice the last");
        assert_eq!(limits[5..], [None; 4], "far more than ran while others waited");
        assert_eq!(there, 300);
    }

    #[test]
    fn reports_that_come_too_fast_are_left_out() {
        let mut learned = LearnedLimit::default();
        let report = LimitReport { running: 4, waiting: 500, known: 504, is_kv_full: false };
        let at = |ms: u64| NanosSinceStart(ms * 1_000_000);
        assert!(!learned.observe(report, at(1_000)) && !learned.observe(report, at(1_399)));
        assert!(learned.observe(report, at(1_400)));
    }

    #[test]
    fn two_routers_share_an_engine() {
        let mut one = Reports::default();
        let mut other = Reports::default();
        let mut ours = 600;
        let mut theirs = 300;
        for _ in 0..60 {
            let all: u32 = ours + theirs;
            let running = all.min(64);
            let waiting = all.saturating_sub(64);
            let done = |there: u32| there - there * 64 / all;
            let limit = one.take(running, waiting, ours);
            ours = done(ours).max(limit.unwrap_or(600).min(600));
            let limit = other.take(running, waiting, theirs);
            theirs = done(theirs).max(limit.unwrap_or(300).min(300));
        }
        assert!((64..=67).contains(&(ours + theirs)), "{ours} and {theirs}");
        assert!(ours > theirs && theirs >= 20, "by what each had: {ours} and {theirs}");
    }

    proptest! {
        #[test]
        fn a_limit_is_at_least_1_and_grows_by_steps(
            reports in proptest::collection::vec(
                (0_u32..300, prop_oneof![Just(0_u32), 0_u32..4, 0_u32..600], 0_u32..900), 1..200,
            ),
        ) {
            let mut all = Reports::default();
            let mut before: Option<u32> = None;
            for (running, waiting, known) in reports {
                let now = all.take(running, waiting, known);
                let all_there = (running + waiting).max(known);
                prop_assert!(now != Some(0));
                match (before, now) {
                    (Some(before), _) if waiting > WAITING_MAX && known >= before => {
                        let now = now.unwrap();
                        prop_assert!(now <= all_there - waiting + 1, "it comes down at once");
                    }
                    (Some(before), Some(now)) if waiting == 0 => {
                        prop_assert!(now >= before && now <= 2 * before);
                    }
                    (None, Some(now)) => {
                        prop_assert!(waiting > WAITING_MAX && now <= all_there - waiting + 1);
                    }
                    (_, None) => prop_assert!(before.is_none() || waiting == 0),
                    _ => {}
                }
                before = now;
            }
        }

        #[test]
        fn where_nothing_waits_nothing_is_held_back(
            reports in proptest::collection::vec((0_u32..2_000, 0_u32..=2, 0_u32..2_000), 1..200),
        ) {
            let mut all = Reports::default();
            for (running, waiting, known) in reports {
                prop_assert_eq!(all.take(running, waiting, known), None);
            }
        }

        /// Ten times as many requests as an engine runs.
        #[test]
        fn the_limit_of_any_engine_is_found(places in 1_u32..600) {
            let mut reports = Reports::default();
            let mut there = 0;
            let wanted = places * 10 + 200;
            for _ in 0..250 {
                reports.serve(places, wanted, &mut there);
            }
            for _ in 0..50 {
                reports.serve(places, wanted, &mut there);
                prop_assert!((places + 1..=places + WAITING_MAX).contains(&there), "{}", there);
            }
        }
    }
}
