//! Tests of leases.

use super::*;
use crate::{BreakerRules, LoadBoard};
use forebay_base::ModelIndex;
use forebay_index::{BlockKey, KeySeed, PrefixMarks, RootName};

const REQUESTER: Requester = Requester { caller: 1, model: ModelIndex(0), is_forced: false };
const COST: LeaseCost =
    LeaseCost { prefill_tokens: 100, decode_tokens: 130, kv_tokens: 130, shared_tokens: 0 };

const NONE: RoomLimits = RoomLimits { places_max: 0, kv_tokens_max: 0, prefill_tokens_max: 0 };
const THREE: RoomLimits =
    RoomLimits { places_max: 3, kv_tokens_max: 2 * 130, prefill_tokens_max: 0 };

fn take_with(
    board: &ShardBoard,
    cost: LeaseCost,
    limits: RoomLimits,
    now: NanosSinceStart,
) -> Option<Lease> {
    take_of(board, cost, limits, &PrefixMarks::NONE, now)
}

/// Lease for a prompt with these prefixes, with one byte per token.
fn take_of(
    board: &ShardBoard,
    cost: LeaseCost,
    limits: RoomLimits,
    marks: &PrefixMarks,
    now: NanosSinceStart,
) -> Option<Lease> {
    let rank = RankIndex(0);
    let prefixes = PromptPrefixes { marks, bytes_per_token: 1.0 };
    let wanted = LeaseRequest { rank, requester: REQUESTER, cost, limits, prefixes };
    Lease::try_take(board, wanted, now)
}

fn marks(text: &[u8]) -> PrefixMarks {
    PrefixMarks::of(BlockKey::root(KeySeed(1), &RootName::default()), text)
}

/// The rank fails a request and is paused. Its sibling serves requests.
fn fail(board: &LoadBoard, lease: Lease, open: Duration) {
    let weight = FailureWeight::Failed;
    let failure = RankFailure {
        rank: lease.rank(),
        requester: REQUESTER,
        scope: FailureScope::Caller,
        weight,
        status: 500,
        is_trial: true,
    };
    let siblings = std::iter::once(RankIndex(1));
    let rules = BreakerRules { failures: 1, open };
    board.hold_against(failure, siblings, rules, NanosSinceStart(0));
    drop(lease);
}

fn state(board: &LoadBoard) -> (u32, u64, u64) {
    let cell = board.rank(RankIndex(0)).unwrap();
    (cell.in_flight(), cell.prefill_tokens(), cell.kv_tokens())
}

#[test]
fn everything_comes_back_on_drop() {
    let board = ShardBoard::from(LoadBoard::new());
    let mut lease = take_with(&board, COST, NONE, NanosSinceStart(0)).unwrap();
    assert_eq!(state(&board), (1, 100, 130));
    let asked = std::cell::Cell::new(0);
    let now = || NanosSinceStart(asked.replace(asked.get() + 1));
    lease.prefill_done(now);
    lease.prefill_done(now);
    assert_eq!(asked.get(), 1, "the time is asked for once");
    assert_eq!(state(&board), (1, 0, 130));
    drop(lease);
    assert_eq!(state(&board), (0, 0, 0));
}

#[test]
fn the_rank_is_as_fast_as_its_first_tokens_come() {
    let board = ShardBoard::from(LoadBoard::new());
    let at = |ms: u64| NanosSinceStart(ms * 1_000_000);
    let take = |ms| take_with(&board, COST, NONE, at(ms)).unwrap();
    let past = board.past(RankIndex(0)).unwrap();
    let left = |ms| past.prefill_left(state(&board).1, at(ms));
    // 100 tokens in 100 ms.
    take(1_000).prefill_done(|| at(1_100));
    let mut first = take(2_000);
    let second = take(2_000);
    assert_eq!((left(2_000), left(2_100)), (200, 140), "what came later counts in full");
    first.prefill_done(|| at(2_100));
    assert_eq!((left(2_100), left(2_200)), (100, 40));
    let own_ms = second.own_prefill_time().unwrap().as_millis();
    assert!((90..=110).contains(&own_ms), "{own_ms} ms for its own prompt");
    // The client leaves: a prefill without an end changes no speed.
    drop(second);
    let _third = take(9_000);
    assert_eq!((left(9_000), left(9_100)), (100, 40));
}

#[test]
fn a_prompt_takes_its_time_and_that_of_those_before_it() {
    let board = ShardBoard::from(LoadBoard::new());
    let at = |ms: u64| NanosSinceStart(ms * 1_000_000);
    let take = |ms| take_with(&board, COST, NONE, at(ms)).unwrap();
    let millis = |lease: &Lease| lease.prefill_time(at(2_000)).map(|time| time.as_millis());
    assert_eq!(millis(&take(0)), None, "the speed is not known");
    take(1_000).prefill_done(|| at(1_100));
    let mut first = take(2_000);
    assert_eq!(millis(&first), Some(100));
    assert_eq!(millis(&take(2_000)), Some(200));
    first.end_prefill();
    assert_eq!(millis(&first), None);
    assert_eq!(state(&board), (1, 0, 130), "its place and its KV stay taken");
}

#[test]
fn what_the_engine_did_not_take_was_not_written() {
    let board = ShardBoard::from(LoadBoard::new());
    let cost = LeaseCost { decode_tokens: 500, kv_tokens: 200, ..COST };
    let take = || take_with(&board, cost, NONE, NanosSinceStart(0)).unwrap();
    let past = board.past(RankIndex(0)).unwrap();
    let mut served = take();
    drop(take());
    served.judge_success();
    drop(served);
    assert_eq!((past.written_tokens(), past.reused_tokens()), (200, 300));
    // Over the limit the request takes the tokens that are left, and still writes all tokens.
    let limits = RoomLimits { kv_tokens_max: 150, ..NONE };
    let cost = LeaseCost { prefill_tokens: 300, decode_tokens: 300, kv_tokens: 300, ..COST };
    let mut large = take_with(&board, cost, limits, NanosSinceStart(0));
    large.as_mut().unwrap().judge_success();
    assert_eq!((past.written_tokens(), past.reused_tokens()), (500, 300));
}

#[test]
fn the_limit_holds_under_threads() {
    let board = ShardBoard::from(LoadBoard::new());
    let peak = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let mut peak = 0;
                    for _ in 0..20_000 {
                        let lease = take_with(&board, COST, THREE, NanosSinceStart(0));
                        peak = peak.max(state(&board).0);
                        drop(lease);
                    }
                    peak
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).max().unwrap()
    });
    assert!(peak <= 3, "{peak} in flight with a limit of 3");
    assert_eq!(state(&board), (0, 0, 0));
}

const ROOM: RoomLimits = RoomLimits { places_max: 0, kv_tokens_max: 4_000, prefill_tokens_max: 0 };

/// Prompts of 1,024 shared and some own tokens; with answers 1,500 and 3,000 tokens.
#[test]
fn two_leases_take_their_common_prefix_once() {
    let prompts = [marks(&[1; 1_024]), marks(&[[1; 1_024], [2; 1_024]].concat())];
    for first_ends in [true, false] {
        let board = ShardBoard::from(LoadBoard::new());
        let pinned = board.pinned(RankIndex(0)).unwrap();
        let take = |at: usize, decode_tokens| {
            let shared_tokens = pinned.shared_tokens(&prompts[at]);
            let cost = LeaseCost { decode_tokens, shared_tokens, ..COST };
            take_of(&board, cost, ROOM, &prompts[at], NanosSinceStart(0)).unwrap()
        };
        let held = || state(&board).2;
        let first = take(0, 1_500);
        assert_eq!(held(), 1_500);
        let second = take(1, 3_000);
        assert_eq!(held(), 1_500 + 3_000 - 1_024);
        if first_ends {
            drop(first);
            assert_eq!(held(), 3_000, "the second holds the prefix alone");
            drop(second);
        } else {
            drop(second);
            assert_eq!(held(), 1_500);
            drop(first);
        }
        assert_eq!(state(&board), (0, 0, 0));
    }
}

/// The holder of the prefix ends between the check for room and the lease.
#[test]
fn a_prefix_that_has_gone_is_taken_in_full() {
    let board = ShardBoard::from(LoadBoard::new());
    let prompt = marks(&[1; 1_024]);
    let cost = LeaseCost { decode_tokens: 1_500, shared_tokens: 1_024, ..COST };
    let lease = take_of(&board, cost, ROOM, &prompt, NanosSinceStart(0));
    assert_eq!(state(&board).2, 1_500);
    drop(lease);
    assert_eq!(state(&board), (0, 0, 0));
}

#[test]
fn a_lease_that_takes_what_is_left_shares_nothing() {
    let board = ShardBoard::from(LoadBoard::new());
    let prompt = marks(&[1; 1_024]);
    let pinned = board.pinned(RankIndex(0)).unwrap();
    let take = |decode_tokens, limits| {
        let cost = LeaseCost { decode_tokens, ..COST };
        take_of(&board, cost, limits, &prompt, NanosSinceStart(0)).unwrap()
    };
    let large = take(5_000, RoomLimits { kv_tokens_max: 3_000, ..NONE });
    assert_eq!((state(&board).2, pinned.shared_tokens(&prompt)), (3_000, 0));
    drop(large);
    let unlimited = take(5_000, NONE);
    assert_eq!((state(&board).2, pinned.shared_tokens(&prompt)), (5_000, 0));
    drop(unlimited);
    assert_eq!(state(&board), (0, 0, 0));
}

#[test]
fn a_lease_that_the_breaker_refuses_holds_no_prefix() {
    let board = ShardBoard::from(LoadBoard::new());
    let prompt = marks(&[1; 1_024]);
    let take = || take_of(&board, COST, ROOM, &prompt, NanosSinceStart(10));
    fail(&board, take().unwrap(), Duration::from_secs(1));
    assert!(take().is_none());
    assert_eq!(state(&board), (0, 0, 0));
    assert_eq!(board.pinned(RankIndex(0)).unwrap().shared_tokens(&prompt), 0);
}

#[test]
fn an_unseen_prompt_leaves_the_prefill_limit_once() {
    let board = ShardBoard::from(LoadBoard::new());
    let load = board.rank(RankIndex(0)).unwrap();
    let limits = RoomLimits { prefill_tokens_max: 150, ..NONE };
    let take = || take_with(&board, COST, limits, NanosSinceStart(0));
    let mut first = take().unwrap();
    let mut second = take().unwrap();
    assert!(take().is_none(), "200 tokens are to be computed");
    first.set_unseen();
    first.set_unseen();
    let third = take().unwrap();
    assert!(take().is_none());
    drop((first, third));
    second.prefill_done(|| NanosSinceStart(1));
    second.set_unseen();
    assert!(load.takes_prefill(limits));
    drop(second);
    assert_eq!(state(&board), (0, 0, 0));
}

#[test]
fn an_open_breaker_lets_one_trial_through() {
    let board = ShardBoard::from(LoadBoard::new());
    let second = Duration::from_secs(1);
    let take = |at| take_with(&board, COST, NONE, NanosSinceStart(at));
    fail(&board, take(0).unwrap(), second);
    assert!(take(10).is_none(), "open");
    let trial = take(2_000_000_000).unwrap();
    assert!(take(2_000_000_000).is_none(), "one trial at a time");
    drop(trial);
    let mut trial = take(2_000_000_000).unwrap();
    trial.judge_success();
    assert!(take(2_000_000_001).is_some(), "closed again");
}

#[test]
fn a_trial_is_given_up_only_by_the_request_that_has_it() {
    let board = ShardBoard::from(LoadBoard::new());
    let second = Duration::from_secs(1);
    let take = |at| take_with(&board, COST, NONE, NanosSinceStart(at));
    let older = take(0).unwrap();
    fail(&board, take(0).unwrap(), second);
    let trial = take(2_000_000_000).unwrap();
    drop(older);
    assert!(take(2_000_000_000).is_none(), "the client of another request has left");
    drop(trial);
    assert!(take(2_000_000_000).is_some());
}

#[test]
fn only_what_the_engine_took_is_an_end() {
    let board = ShardBoard::from(LoadBoard::new());
    let load = board.rank(RankIndex(0)).unwrap();
    let take = || take_with(&board, COST, NONE, NanosSinceStart(0)).unwrap();
    load.refused(REQUESTER.model, NanosSinceStart(0));
    let held = load.busy_until(None);
    assert_ne!(held, NanosSinceStart(0));
    drop(take());
    assert_eq!((load.ended(), load.busy_until(None)), (0, held), "the hold goes on");
    let mut served = take();
    served.judge_success();
    drop(served);
    assert_eq!((load.ended(), load.busy_until(None)), (1, NanosSinceStart(0)));
}

#[test]
fn a_trial_that_a_sibling_serves_speaks_of_all_callers_unless_it_was_refused() {
    let board = ShardBoard::from(LoadBoard::new());
    let scope = |scope, weight| {
        let mut lease = take_with(&board, COST, NONE, NanosSinceStart(0)).unwrap();
        let rank = lease.rank();
        let requester = REQUESTER;
        let status = 0;
        let failure = RankFailure { rank, requester, scope, weight, status, is_trial: false };
        let failure = lease.judge_open(failure).served_elsewhere();
        assert!(failure.is_trial);
        failure.scope
    };
    assert_eq!(scope(FailureScope::Caller, FailureWeight::Failed), FailureScope::Model);
    assert_eq!(scope(FailureScope::Caller, FailureWeight::Refused), FailureScope::Caller);
    assert_eq!(scope(FailureScope::Rank, FailureWeight::Failed), FailureScope::Rank);
}
