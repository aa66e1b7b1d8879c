//! Ranks on which every request fails: the log has a line, and the load board a mark for `/readyz`,
//! `/workers` and the metrics. The breaker compares a rank with its siblings, so it stays closed
//! where all engines fail, or where a single caller is refused. The mark keeps no request away.
//!
//! | condition of the mark | reason |
//! |---|---|
//! | [`FAILURES_MIN`] failures over [`FAILING_AFTER`] | a wrong request proves nothing |
//! | no success meanwhile, and no request runs | a caller with wrong requests has company |
//! | several callers, or a status of a whole engine | a caller repeats its faults |
//!
//! With [`LONG_FAILURES`] over [`LONG_AFTER`], running requests count for nothing: under steady
//! load there are always some.
//!
//! A success ends the mark. After [`CALM`] without requests the mark is over, unproven.

use super::RankEvent;
use forebay_admin::{callers, failure_help, is_callers_fault};
use forebay_base::{NanosSinceStart, RankIndex};
use forebay_board::{FailureWeight, HeldFailures, RankLoad};
use forebay_fleet::worker::{Rank, Worker};
use std::collections::BTreeMap;
use std::time::Duration;
use tracing::{info, warn};

/// Failures without a success between them.
const FAILURES_MIN: u32 = 4;
/// Time from the first to the last failure.
const FAILING_AFTER: Duration = Duration::from_secs(10);
/// Failures and time after which a running request is no hope: under steady load some always run.
const LONG_FAILURES: u32 = 16;
const LONG_AFTER: Duration = Duration::from_secs(30);
/// A rank without a failure for so long has no requests, or serves them.
const CALM: Duration = Duration::from_secs(300);

/// Failures of each rank since its last success.
#[derive(Debug, Default)]
pub(super) struct FailingRanks {
    ranks: BTreeMap<RankIndex, FailureRun>,
}

/// Failures in a row of a rank.
#[derive(Clone, Copy, Debug)]
struct FailureRun {
    first: NanosSinceStart,
    last: NanosSinceStart,
    failures: u32,
    /// Score of the rank at the last look.
    score: u32,
    is_marked: bool,
}

/// Change of the mark of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MarkChange {
    Set(HeldFailures),
    /// A request has succeeded, or another process serves the rank.
    Served,
    /// No request has come for a time.
    Unknown,
}

impl FailingRanks {
    /// Forgets ranks that left.
    pub(super) fn retain(&mut self, has: impl Fn(RankIndex) -> bool) {
        self.ranks.retain(|&rank, _| has(rank));
    }

    /// Marks the rank on the load board, or ends its mark. Called at each tick.
    pub(super) fn observe(
        &mut self,
        rank: RankIndex,
        load: &RankLoad,
        now: NanosSinceStart,
    ) -> Option<MarkChange> {
        let before = self.ranks.remove(&rank);
        let was_marked = before.is_some_and(|run| run.is_marked);
        let held = load.held().filter(|held| held.score > 0);
        let run = held.map(|held| FailureRun::continued(before, held, load, now));
        let is_marked = run.is_some_and(|run| run.is_marked);
        // Written on a change alone: shards share the cache line.
        if is_marked != load.is_failing() {
            load.set_failing(is_marked);
        }
        if let Some(run) = run {
            self.ranks.insert(rank, run);
        }
        match (was_marked, is_marked, held) {
            (false, true, Some(held)) => Some(MarkChange::Set(held)),
            (true, false, _) if before.is_some_and(|run| now >= run.last.plus(CALM)) => {
                Some(MarkChange::Unknown)
            }
            (true, false, _) => Some(MarkChange::Served),
            _ => None,
        }
    }
}

impl FailureRun {
    /// The run of failures after a look at the rank. A success or a calm begins a new run.
    fn continued(
        before: Option<Self>,
        held: HeldFailures,
        load: &RankLoad,
        now: NanosSinceStart,
    ) -> Self {
        let has_served = load.signs().take_served();
        // A score that a success has left over is of failures before it.
        let score = before.map_or(0, |run| if has_served { held.score } else { run.score });
        let new = Self { first: now, last: now, failures: 0, score, is_marked: false };
        let goes_on = |run: &Self| !has_served && now < run.last.plus(CALM);
        let mut run = before.filter(goes_on).unwrap_or(new);
        // A failure of another caller or model lowers the score of many failures.
        if held.score != run.score {
            let is_refusal = (1..500).contains(&held.status);
            let weight = if is_refusal { FailureWeight::Refused } else { FailureWeight::Failed };
            let added = (held.score.saturating_sub(run.score) / weight as u32).max(1);
            run.first = if run.failures == 0 { now } else { run.first };
            run.last = now;
            run.failures = run.failures.saturating_add(added);
            run.score = held.score;
        }
        let is_proven = !held.is_one_caller || !is_callers_fault(held.status);
        let has = |failures, time| run.failures >= failures && run.last >= run.first.plus(time);
        let is_over = has(FAILURES_MIN, FAILING_AFTER) && load.in_flight() == 0;
        let is_marked = is_proven && (is_over || has(LONG_FAILURES, LONG_AFTER));
        run.is_marked |= is_marked;
        run
    }
}

impl MarkChange {
    /// Writes the line of the change; returns its event for the live page.
    pub(super) fn log(self, rank: &Rank, worker: &Worker) -> RankEvent {
        let dp_rank = rank.dp_rank.0;
        let worker_name = &*worker.name;
        let event = |kind, words: &str| RankEvent::new(kind, rank, worker, words);
        match self {
            Self::Set(held) => {
                let HeldFailures { status, is_one_caller, until, .. } = held;
                // Only a rank that does worse than another rank is paused.
                let others_serve = until > NanosSinceStart(0);
                let help = failure_help(status, worker.api_key.is_some(), others_serve);
                warn!(
                    worker = worker_name,
                    dp_rank,
                    status,
                    callers = callers(is_one_caller),
                    help,
                    "every request fails on the rank"
                );
                match status {
                    0 => {
                        event("failing", &format!("fails every request without an answer: {help}"))
                    }
                    _ => event("failing", &format!("fails every request with {status}: {help}")),
                }
            }
            Self::Served => {
                info!(worker = worker_name, dp_rank, "requests fail on the rank no more");
                event("serving", "fails requests no more")
            }
            Self::Unknown => {
                info!(
                    worker = worker_name,
                    dp_rank,
                    "requests fail on the rank no more, because none comes: nothing is proven"
                );
                event("serving", "gets no requests any more: nothing is proven")
            }
        }
    }
}

#[cfg(test)]
mod tests;
