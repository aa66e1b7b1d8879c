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
//! Another status has a line in turn, at most a line each [`FAILING_AFTER`]: a new cause needs
//! another remedy. A success ends the mark. After [`CALM`] without requests the mark is over,
//! unproven.

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
    /// Status in the last line of the log; `None` without a mark.
    logged: Option<LoggedStatus>,
}

/// Status of a failing rank in the log.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoggedStatus {
    status: u16,
    at: NanosSinceStart,
}

/// Change of the mark of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MarkChange {
    Set(HeldFailures),
    /// The requests fail with another status than in the log.
    Status(StatusChange),
    /// A request has succeeded, or another process serves the rank.
    Served,
    /// No request has come for a time.
    Unknown,
}

/// Requests fail on a rank with another status than before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StatusChange {
    /// Status in the log before the change.
    before: u16,
    held: HeldFailures,
}

impl LoggedStatus {
    pub(super) const fn new(status: u16, now: NanosSinceStart) -> Self {
        Self { status, at: now }
    }

    /// The change to the status of `held`, at most a change each [`FAILING_AFTER`]: requests of a
    /// rank may fail with two statuses in turn.
    pub(super) fn take_change(
        &mut self,
        held: HeldFailures,
        now: NanosSinceStart,
    ) -> Option<StatusChange> {
        if held.status == self.status || now < self.at.plus(FAILING_AFTER) {
            return None;
        }
        let before = std::mem::replace(self, Self::new(held.status, now));
        Some(StatusChange { before: before.status, held })
    }
}

impl StatusChange {
    /// Writes the line of the change; returns its event for the live page.
    pub(super) fn log(self, rank: &Rank, worker: &Worker) -> RankEvent {
        let Self { before, held } = self;
        let HeldFailures { status, until, .. } = held;
        let help = failure_help(status, worker.api_key.is_some(), until > NanosSinceStart(0));
        let dp_rank = rank.dp_rank.0;
        let text = "requests fail on the rank with another status";
        let logged = shown(status);
        let before_it = shown(before);
        warn!(worker = &*worker.name, dp_rank, status = logged, before = before_it, help, "{text}");
        let words = format!("fails requests {}, before {}: {help}", with(status), with(before));
        RankEvent::new("failing", rank, worker, &words)
    }
}

/// The status of an answer, for a field of the log; `None` without an answer.
pub(super) fn shown(status: u16) -> Option<u16> {
    (status > 0).then_some(status)
}

/// How requests end, for a sentence.
fn with(status: u16) -> String {
    match status {
        0 => "without an answer".to_owned(),
        _ => format!("with {status}"),
    }
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
        let was_marked = before.is_some_and(|run| run.logged.is_some());
        let held = load.held().filter(|held| held.score > 0);
        let mut run = held.map(|held| FailureRun::continued(before, held, load, now));
        let logged = run.as_mut().and_then(|run| run.logged.as_mut());
        let is_marked = logged.is_some();
        let change = held.zip(logged).and_then(|(held, logged)| logged.take_change(held, now));
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
            (true, true, _) => change.map(MarkChange::Status),
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
        let new = Self { first: now, last: now, failures: 0, score, logged: None };
        let goes_on = |run: &Self| !has_served && now < run.last.plus(CALM);
        let mut run = before.filter(goes_on).unwrap_or(new);
        // A failure of another caller or model lowers the score of many failures.
        if held.score != run.score {
            let is_refusal = (1..500).contains(&held.status);
            let weight = if is_refusal { FailureWeight::Refused } else { FailureWeight::Failed };
            let added = (held.score.saturating_sub(run.score) / weight.points()).max(1);
            run.first = if run.failures == 0 { now } else { run.first };
            run.last = now;
            run.failures = run.failures.saturating_add(added);
            run.score = held.score;
        }
        let is_proven = !held.is_one_caller || !is_callers_fault(held.status);
        let has = |failures, time| run.failures >= failures && run.last >= run.first.plus(time);
        let is_over = has(FAILURES_MIN, FAILING_AFTER) && load.in_flight() == 0;
        let is_marked = is_proven && (is_over || has(LONG_FAILURES, LONG_AFTER));
        if is_marked && run.logged.is_none() {
            run.logged = Some(LoggedStatus::new(held.status, now));
        }
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
                    status = shown(status),
                    callers = callers(is_one_caller),
                    help,
                    "every request fails on the rank"
                );
                event("failing", &format!("fails every request {}: {help}", with(status)))
            }
            Self::Status(change) => change.log(rank, worker),
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
