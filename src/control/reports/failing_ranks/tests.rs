//! Histories of failures and successes on a rank without siblings.

use super::*;
use forebay_base::ModelIndex;
use forebay_board::{BreakerRules, FailureScope, FailureWeight, LoadBoard, RankFailure};
use forebay_fleet::worker::test_support;
use forebay_fleet::worker::{Requester, RoomDemand, RoomLimits};

const RANK: RankIndex = RankIndex(0);

fn at(seconds: u64) -> NanosSinceStart {
    NanosSinceStart(seconds * 1_000_000_000)
}

fn of(caller: u8) -> Requester {
    let caller = u32::from(caller);
    Requester { caller, model: ModelIndex(0), is_forced: false }
}

/// A rank without siblings, which its breaker never pauses.
struct Lone {
    board: LoadBoard,
    failing: FailingRanks,
    changes: Vec<(u64, bool)>,
}

impl Lone {
    fn new() -> Self {
        Self { board: LoadBoard::new(), failing: FailingRanks::default(), changes: Vec::new() }
    }

    fn load(&self) -> &RankLoad {
        self.board.rank(RANK).unwrap()
    }

    /// An answer with an error counts as an end of the engine's work too.
    fn fail(&self, caller: u8, status: u16, second: u64) {
        assert!(self.load().try_acquire(RoomLimits::default(), RoomDemand::default()).is_some());
        self.board.give_back(RANK, 0, Some(ModelIndex(0)));
        let weight = if status < 500 { FailureWeight::Refused } else { FailureWeight::Failed };
        let scope = FailureScope::Caller;
        let requester = of(caller);
        let failure = RankFailure { rank: RANK, requester, scope, weight, status, is_trial: false };
        let rules = BreakerRules { failures: 3, open: Duration::from_secs(1) };
        self.board.hold_against(failure, std::iter::empty(), rules, at(second));
    }

    fn serve(&self, caller: u8) {
        self.load().succeeded(of(caller));
    }

    fn look(&mut self, second: u64) {
        let load = self.board.rank(RANK).unwrap();
        if let Some(change) = self.failing.observe(RANK, load, at(second)) {
            self.changes.push((second, matches!(change, MarkChange::Set(_))));
        }
        assert!(load.breaker_admits(at(second), None), "the mark keeps no request away");
    }
}

/// Whatever status an engine gives to all requests of several callers is marked after ten seconds,
/// once; the first success ends the mark.
#[test]
fn a_rank_that_fails_each_request_of_several_callers_is_marked() {
    for status in [307, 400, 401, 403, 404, 405, 410, 422, 500, 502] {
        let mut rank = Lone::new();
        for second in 0..60 {
            rank.fail(u8::try_from(second % 3).unwrap(), status, second);
            rank.look(second);
            assert_eq!(rank.load().is_failing(), second >= 10, "{status} after {second} s");
        }
        rank.serve(1);
        rank.look(60);
        assert_eq!(rank.changes, [(10, true), (60, false)], "{status}");
        assert!(!rank.load().is_failing());
    }
}

/// A single caller may repeat a wrong body, and not a wrong path or key alone.
#[test]
fn a_lone_caller_is_evidence_by_the_status() {
    for (status, is_marked) in [(400, false), (413, false), (422, false), (401, true), (404, true)]
    {
        let mut rank = Lone::new();
        for second in 0..60 {
            rank.fail(7, status, second);
            rank.look(second);
        }
        assert_eq!(rank.load().is_failing(), is_marked, "{status}");
    }
}

/// While a caller is served, failed requests of other callers mark no rank, however many.
#[test]
fn callers_with_wrong_requests_mark_no_rank_that_serves() {
    for (failures, statuses) in [(1, [404; 2]), (30, [404, 400]), (500, [401, 500])] {
        let mut rank = Lone::new();
        for second in 0..120 {
            for failure in 0..failures {
                let status = statuses[failure % 2];
                rank.fail(u8::try_from(failure % 2).unwrap(), status, second);
            }
            if second % 8 == 0 {
                rank.serve(9);
            }
            rank.look(second);
            assert!(!rank.load().is_failing(), "{failures} {statuses:?} after {second} s");
        }
    }
}

#[test]
fn a_burst_of_wrong_requests_marks_no_idle_rank() {
    let mut rank = Lone::new();
    (0..100).for_each(|_| rank.fail(1, 404, 0));
    (0..1_000).for_each(|second| rank.look(second));
    assert_eq!(rank.changes, []);
}

/// A rank that was left alone, or whose process is another one, loses its mark.
#[test]
fn a_mark_ends_without_requests_and_with_a_new_process() {
    for forgets in [false, true] {
        let mut rank = Lone::new();
        for second in 0..=12 {
            rank.fail(1, 404, second);
            rank.look(second);
        }
        if forgets {
            rank.load().forget_failures();
        }
        (13..400).for_each(|second| rank.look(second));
        let end = if forgets { 13 } else { 312 };
        assert_eq!(rank.changes, [(10, true), (end, false)]);
    }
}

/// Under steady load a request always runs: it is no hope for ever.
#[test]
fn a_running_request_keeps_the_mark_away_for_a_time_only() {
    let mut rank = Lone::new();
    assert!(rank.load().try_acquire(RoomLimits::default(), RoomDemand::default()).is_some());
    for second in 0..60 {
        rank.fail(u8::try_from(second % 3).unwrap(), 404, second);
        rank.look(second);
        assert_eq!(rank.load().is_failing(), second >= 30, "after {second} s");
    }
}

/// Failures of requests count, whatever their weight.
#[test]
fn two_failures_are_no_proof() {
    for status in [404, 500] {
        let mut rank = Lone::new();
        rank.serve(1);
        for (count, second) in (1..).zip([0, 12, 24, 36]) {
            rank.fail(1, status, second);
            rank.look(second);
            assert_eq!(rank.load().is_failing(), count == 4, "{status}, {count} failures");
        }
    }
}

/// M1: the log named the 401 of a rank, and no 500 after it. Statuses in turn are no flood.
#[test]
fn another_status_of_a_marked_rank_is_a_change() {
    let statuses = |second: u64| match second {
        0..20 => 401,
        20..60 => 500,
        _ if second.is_multiple_of(2) => 500,
        _ => 401,
    };
    let mut rank = Lone::new();
    let mut changes = Vec::new();
    for second in 0..120 {
        rank.fail(u8::try_from(second % 3).unwrap(), statuses(second), second);
        let change = rank.failing.observe(RANK, rank.board.rank(RANK).unwrap(), at(second));
        match change {
            Some(MarkChange::Set(held)) => changes.push((second, 0, held.status)),
            Some(MarkChange::Status(change)) => {
                changes.push((second, change.before, change.held.status));
            }
            _ => {}
        }
    }
    assert_eq!(changes[..3], [(10, 0, 401), (20, 401, 500), (61, 500, 401)]);
    assert_eq!(changes.len(), 3 + 5, "one each ten seconds: {changes:?}");
    let worker = test_support::worker();
    let held = HeldFailures { status: 0, ..rank.load().held().unwrap() };
    let event = StatusChange { before: 401, held }.log(&test_support::rank(0), &worker);
    let wanted = format!("{} fails requests without an answer, before with 401: ", worker.name);
    assert!(event.kind == "failing" && event.text.starts_with(&wanted), "{event:?}");
}

/// M2: the live page and `top` show the change of a mark, with the status and what to do.
#[test]
fn a_change_of_a_mark_is_an_event() {
    let worker = test_support::worker();
    let rank = test_support::rank(0);
    let held = HeldFailures {
        score: 9,
        status: 404,
        is_one_model: false,
        is_one_caller: false,
        until: NanosSinceStart(0),
        pauses: 0,
    };
    let event = MarkChange::Set(held).log(&rank, &worker);
    let wanted = format!("{} fails every request with 404: ", worker.name);
    assert!(event.kind == "failing" && event.text.starts_with(&wanted), "{event:?}");
    assert!(event.text.ends_with(failure_help(404, false, false)), "{event:?}");
    assert!(event.slow_start.is_none());
    let event = MarkChange::Served.log(&rank, &worker);
    let wanted = format!("{} fails requests no more", worker.name);
    assert_eq!((event.kind, event.text), ("serving", wanted));
}
