//! A request's cost on a rank, given back exactly once on every path, when the guard is dropped.

use super::PromptPrefixes;
use super::held_tokens::HeldTokens;
use crate::{
    BreakerClaim, FailureScope, FailureWeight, PassedPrompts, PromptNumber, PromptSlot,
    RankFailure, RankLoad, ShardBoard,
};
use forebay_base::{NanosSinceStart, RankIndex};
use forebay_fleet::worker::{Requester, RoomDemand, RoomLimits};
use std::time::Duration;

/// Expected cost of a request on its rank, in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseCost {
    /// Prompt tokens that the rank has to compute: not found in its cache.
    pub prefill_tokens: u64,
    /// Prompt and output tokens that will occupy the KV cache.
    pub decode_tokens: u64,
    /// Tokens of `decode_tokens` that the rank does not hold yet. Other requests may share the
    /// rest.
    pub kv_tokens: u64,
    /// Prompt tokens that running requests on the rank already hold: they take no more of the
    /// cache.
    pub shared_tokens: u64,
}

impl LeaseCost {
    /// Room that the request takes of the rank's limits.
    #[must_use]
    pub const fn room_wanted(&self) -> RoomDemand {
        let kv_tokens = self.decode_tokens.saturating_sub(self.shared_tokens);
        RoomDemand { kv_tokens, prefill_tokens: self.prefill_tokens }
    }

    /// Prompt tokens that the request finds in the rank's cache.
    const fn reused_tokens(&self) -> u64 {
        self.decode_tokens.saturating_sub(self.kv_tokens)
    }
}

/// Rank, requester, cost and limits of a lease, for [`Lease::try_take`].
#[derive(Clone, Copy, Debug)]
pub struct LeaseRequest<'a> {
    /// The rank that the request is to be sent to.
    pub rank: RankIndex,
    /// The caller and the model of the request.
    pub requester: Requester,
    pub cost: LeaseCost,
    /// Limits of the rank.
    pub limits: RoomLimits,
    /// Names of the prompt's prefixes.
    pub prefixes: PromptPrefixes<'a>,
}

/// State of a request as the trial of a half-open breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeaseTrial {
    None,
    /// No other request may try the rank.
    Held,
    /// The answer has begun: the next request may try the rank.
    Shared,
    /// The trial has succeeded or failed.
    Judged,
}

/// Tokens that a request writes to the cache of its rank and reuses from it.
#[derive(Clone, Copy, Debug)]
struct CacheTokens {
    written: u64,
    reused: u64,
}

/// Content of the first bytes of an answer's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyStart {
    /// The first token of the answer.
    Token,
    /// An event ahead of the first token.
    Event,
    /// The whole answer, its last token included.
    Whole,
}

/// The prompt of a lease, until its first token.
#[derive(Debug)]
struct PrefillWait {
    /// Tokens that the rank has to compute.
    tokens: u64,
    /// Start of the wait for the first token; `None`: the wait is over.
    since: Option<NanosSinceStart>,
    /// The rank has a limit of prefill tokens: the end of the prefill makes room too, not only the
    /// end of the request.
    is_bounded: bool,
    /// The router will not see the first token.
    is_unseen: bool,
    /// Slot among unseen prompts; `None`: no slot.
    slot: Option<PromptSlot>,
    /// Number among all prompts of the rank.
    number: PromptNumber,
}

/// A place on a rank. Dropping it returns everything.
#[derive(Debug)]
pub struct Lease {
    board: ShardBoard,
    rank: RankIndex,
    requester: Requester,
    /// Tokens that the rank writes to its cache, and tokens that it finds there.
    cache_tokens: CacheTokens,
    held: HeldTokens,
    prefill: PrefillWait,
    trial: LeaseTrial,
    /// The engine accepted the request.
    served: bool,
}

impl Lease {
    /// Takes a place, unless a limit is reached or the rank's breaker refuses.
    #[must_use]
    pub fn try_take(
        board: &ShardBoard,
        wanted: LeaseRequest<'_>,
        now: NanosSinceStart,
    ) -> Option<Self> {
        let LeaseRequest { rank, requester, cost, limits, prefixes } = wanted;
        let cell = board.rank(rank)?;
        let past = board.past(rank)?;
        let reused_tokens = cost.reused_tokens();
        let model = Some(requester.model);
        let room = if cell.has_refused() { cell.room_at(limits, model, now) } else { limits };
        let wanted_tokens = cost.room_wanted().kv_tokens;
        let taken_tokens = cell.try_acquire(room, cost.room_wanted())?;
        let Some(claim) = cell.claim(now, requester) else {
            board.give_back(rank, taken_tokens, None);
            return None;
        };
        // A request that is larger than any cache takes the tokens that are left, and shares
        // nothing.
        let held = match limits.kv_tokens_max > 0 && taken_tokens == wanted_tokens {
            true => HeldTokens::pin(board, rank, cost.decode_tokens, taken_tokens, prefixes),
            false => HeldTokens::unshared(taken_tokens),
        };
        // Start the prefill before the prompt is counted: otherwise another shard would take the
        // rank's idle time for prefill time of this prompt.
        if cell.prefill_tokens() == 0 {
            past.prefill_began(cost.prefill_tokens, now);
        }
        let number = cell.add_prefill(cost.prefill_tokens);
        past.add(cost.kv_tokens, reused_tokens);
        Some(Self {
            board: board.clone(),
            rank,
            requester,
            cache_tokens: CacheTokens { written: cost.kv_tokens, reused: reused_tokens },
            held,
            prefill: PrefillWait {
                tokens: cost.prefill_tokens,
                since: Some(now),
                is_bounded: limits.prefill_tokens_max > 0,
                is_unseen: false,
                slot: None,
                number,
            },
            trial: match claim {
                BreakerClaim::Free => LeaseTrial::None,
                BreakerClaim::Trial => LeaseTrial::Held,
            },
            served: false,
        })
    }

    #[must_use]
    pub const fn requester(&self) -> Requester {
        self.requester
    }

    /// Is this request the trial of a rank that may be paused?
    #[must_use]
    pub fn is_trial(&self) -> bool {
        self.trial != LeaseTrial::None
    }

    /// Prompt tokens that the rank has to compute.
    #[must_use]
    pub const fn prefill_tokens(&self) -> u64 {
        self.prefill.tokens
    }

    #[must_use]
    pub const fn rank(&self) -> RankIndex {
        self.rank
    }

    /// Bytes of the answer's body arrived.
    pub fn observe_body_bytes(&mut self, start: BodyStart, now: impl FnOnce() -> NanosSinceStart) {
        match start {
            BodyStart::Token => self.prefill_done(now),
            BodyStart::Event => drop(self.end_prefill()),
            BodyStart::Whole => self.observe_answer(),
        }
    }

    /// The first token arrived: the prompt is computed, and so are earlier prompts. Called with
    /// each chunk of the body, so the clock is read only once.
    pub fn prefill_done(&mut self, now: impl FnOnce() -> NanosSinceStart) {
        let Some(since) = self.prefill.since else { return };
        let tokens = self.prefill.tokens;
        let left_tokens = self.end_prefill();
        let before = self.pass_before();
        if let (Some(left_tokens), Some(past)) = (left_tokens, self.board.past(self.rank))
            && tokens > 0
        {
            let now = now();
            let left_tokens = left_tokens.saturating_sub(before.tokens);
            past.prefill_ended(tokens.saturating_add(before.tokens), left_tokens, now);
            past.waited(tokens, now.since(since));
        }
    }

    /// Expected time until the rank has computed this prompt and the prompts before it; `None`:
    /// unknown, or the prompt is computed.
    #[must_use]
    pub fn prefill_time(&self, now: NanosSinceStart) -> Option<Duration> {
        let past = self.board.past(self.rank)?;
        self.prefill.since?;
        past.prefill_time(past.prefill_left(self.board.rank(self.rank)?.prefill_tokens(), now))
    }

    /// Expected time to compute this prompt alone; `None`: unknown.
    #[must_use]
    pub fn own_prefill_time(&self) -> Option<Duration> {
        self.board.past(self.rank)?.prefill_time(self.prefill.tokens)
    }

    /// The expected time is over: the prompt no longer counts as waiting.
    pub fn prefill_due(&mut self, now: NanosSinceStart) {
        if let Some(left_tokens) = self.end_prefill()
            && let Some(past) = self.board.past(self.rank)
        {
            past.prefill_ended(self.prefill.tokens, left_tokens, now);
        }
    }

    /// The first byte of an answer without a visible first token arrived: the prompt is computed,
    /// and so are earlier prompts.
    pub fn observe_answer(&mut self) {
        if self.prefill.since.is_some() {
            self.end_prefill();
            self.pass_before();
        }
    }

    /// Engines compute prompts in the order of arrival.
    fn pass_before(&self) -> PassedPrompts {
        match self.board.rank(self.rank).is_some_and(RankLoad::has_unseen) {
            true => self.board.pass_unstreamed(self.rank, self.prefill.number, u32::MAX),
            false => PassedPrompts::default(),
        }
    }

    /// The answer has begun: the next request may try the rank too, before this request ends.
    pub fn share_trial(&mut self) {
        if self.trial == LeaseTrial::Held {
            self.trial = LeaseTrial::Shared;
            if let Some(cell) = self.board.rank(self.rank) {
                cell.trial_abandoned();
            }
        }
    }

    /// The trial failed. The rank is to blame only if another rank serves the request.
    pub fn judge_open(&mut self, failure: RankFailure) -> FailedTrial {
        self.judge_failure();
        FailedTrial { board: self.board.clone(), failure }
    }

    /// Low estimate of [`prefill_time`](Self::prefill_time) in nanoseconds, for a token bill: the
    /// bill charges for the time after the prefill. 0 once the prompt is computed.
    #[must_use]
    pub fn prefill_expected_ns(&self, now: NanosSinceStart) -> u64 {
        let (Some(past), Some(cell), Some(_)) =
            (self.board.past(self.rank), self.board.rank(self.rank), self.prefill.since)
        else {
            return 0;
        };
        let prompts = self.board.unstreamed(self.rank);
        if self.prefill.slot.is_some_and(|slot| prompts.is_some_and(|all| !all.waits(slot))) {
            return 0;
        }
        let is_known = past.known_speed() > 0.0;
        let own = self.prefill.tokens;
        let tokens = if is_known { past.prefill_left(cell.prefill_tokens(), now) } else { own };
        past.prefill_time_least(tokens)
    }

    /// The first token will not be visible. The prompt counts as computed when a later prompt is
    /// computed, when the engine reports its first token, or when the answer arrives.
    pub fn set_unseen(&mut self) {
        if self.prefill.since.is_none() || self.prefill.is_unseen {
            return;
        }
        self.prefill.is_unseen = true;
        if let Some(cell) = self.board.rank(self.rank) {
            let PrefillWait { number, tokens, .. } = self.prefill;
            cell.add_unseen(tokens);
            let prompts = self.board.unstreamed_made(self.rank);
            self.prefill.slot = prompts.and_then(|all| all.enter(number, tokens));
        }
        if self.prefill.is_bounded {
            self.board.room_made(self.rank);
        }
    }

    /// Ends the wait of the prompt, computed or not. Returns the prefill tokens left on the rank;
    /// `None`: the wait was over before.
    pub fn end_prefill(&mut self) -> Option<u64> {
        self.prefill.since.take()?;
        let cell = self.board.rank(self.rank)?;
        if std::mem::take(&mut self.prefill.is_unseen) {
            if let Some(slot) = self.prefill.slot.take() {
                self.board.unstreamed(self.rank)?.remove(slot).then_some(())?;
            }
            cell.sub_unseen(self.prefill.tokens);
        }
        let left_tokens = cell.sub_prefill(self.prefill.tokens);
        if self.prefill.is_bounded {
            self.board.room_made(self.rank);
        }
        Some(left_tokens)
    }

    /// The rank served the request: failures held against the rank are reduced, and the end of this
    /// lease counts as finished work.
    pub fn judge_success(&mut self) {
        self.judge_taken();
        self.settle();
        if let Some(cell) = self.board.rank(self.rank) {
            cell.succeeded(self.requester);
        }
    }

    /// The rank accepted the request and answered, maybe with an error: the end of this lease
    /// counts as finished work.
    pub const fn judge_taken(&mut self) {
        self.served = true;
    }

    /// The rank failed the request: a trial is over.
    /// [`LoadBoard::hold_against`](crate::LoadBoard::hold_against) judges the failure.
    pub fn judge_failure(&mut self) {
        self.settle();
    }

    fn settle(&mut self) {
        if self.trial == LeaseTrial::Held {
            self.trial = LeaseTrial::Judged;
        }
    }
}

/// A trial that an engine answered with an error, until another rank's answer decides whether the
/// rank or the request is to blame. Dropping it lets the next request try the rank.
#[derive(Debug)]
pub struct FailedTrial {
    board: ShardBoard,
    failure: RankFailure,
}

impl FailedTrial {
    /// The failure of the tried rank, after another rank has served the request. A refusal (4xx)
    /// still counts for the caller alone: its prompts may be too long for this rank only.
    #[must_use]
    pub const fn served_elsewhere(&self) -> RankFailure {
        let scope = match (self.failure.scope, self.failure.weight) {
            (FailureScope::Caller, FailureWeight::Failed) => FailureScope::Model,
            (scope, _) => scope,
        };
        RankFailure { scope, is_trial: true, ..self.failure }
    }
}

impl Drop for FailedTrial {
    fn drop(&mut self) {
        if let Some(cell) = self.board.rank(self.failure.rank) {
            cell.trial_abandoned();
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.end_prefill();
        if let Some(past) = self.board.past(self.rank).filter(|_| !self.served) {
            past.sub(self.cache_tokens.written, self.cache_tokens.reused);
        }
        if let Some(cell) = self.board.rank(self.rank) {
            // The head of an answer does not end the trial of an ejected rank.
            let is_ejected = cell.ejected().is_some();
            if self.trial == LeaseTrial::Held || self.trial == LeaseTrial::Judged && is_ejected {
                cell.trial_abandoned();
            }
            let served = self.served.then_some(self.requester.model);
            let held = std::mem::take(&mut self.held).unpin(&self.board, self.rank);
            self.board.give_back(self.rank, held, served);
        }
    }
}

#[cfg(test)]
mod tests {
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
    fn fail(board: &LoadBoard, mut lease: Lease, open: Duration) {
        lease.judge_failure();
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

    const ROOM: RoomLimits =
        RoomLimits { places_max: 0, kv_tokens_max: 4_000, prefill_tokens_max: 0 };

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
}
