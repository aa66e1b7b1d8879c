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

/// State of a request as a trial of a half-open breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeaseTrial {
    None,
    /// The request counts among the rank's trials until the lease is dropped.
    Held,
    /// The request does not count, or no longer: its rank has only refused requests, the answer
    /// has begun, or a [`FailedTrial`] counts in place of the lease.
    Released,
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
                BreakerClaim::FreeTrial => LeaseTrial::Released,
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
    pub fn prefill_due(&mut self, due_at: NanosSinceStart) {
        if let Some(left_tokens) = self.end_prefill()
            && let Some(past) = self.board.past(self.rank)
            && self.prefill.tokens > 0
        {
            past.prefill_due(left_tokens, due_at);
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
            self.trial = LeaseTrial::Released;
            if let Some(cell) = self.board.rank(self.rank) {
                cell.end_trial();
                self.board.room_made(self.rank);
            }
        }
    }

    /// The request has failed elsewhere as a trial: its result here is no trial's.
    pub fn end_trial(&mut self) {
        self.share_trial();
        self.trial = LeaseTrial::None;
    }

    /// The trial failed. The rank is to blame only if another rank serves the request.
    pub fn judge_open(&mut self, failure: RankFailure) -> FailedTrial {
        let is_held = self.trial == LeaseTrial::Held;
        if is_held {
            self.trial = LeaseTrial::Released;
        }
        FailedTrial { board: self.board.clone(), failure, is_held }
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
        if let Some(cell) = self.board.rank(self.rank) {
            cell.succeeded(self.requester);
        }
    }

    /// The rank accepted the request and answered, maybe with an error: the end of this lease
    /// counts as finished work.
    pub const fn judge_taken(&mut self) {
        self.served = true;
    }
}

/// A trial that an engine answered with an error, until another rank's answer decides whether the
/// rank or the request is to blame. Dropping it lets the next request try the rank.
#[derive(Debug)]
pub struct FailedTrial {
    board: ShardBoard,
    failure: RankFailure,
    /// Counts among the rank's trials.
    is_held: bool,
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
        if let Some(cell) = self.board.rank(self.failure.rank).filter(|_| self.is_held) {
            cell.end_trial();
            self.board.room_made(self.failure.rank);
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
            if self.trial == LeaseTrial::Held {
                cell.end_trial();
            }
            let served = self.served.then_some(self.requester.model);
            let held = std::mem::take(&mut self.held).unpin(&self.board, self.rank);
            self.board.give_back(self.rank, held, served);
        }
    }
}

#[cfg(test)]
#[path = "lease_tests.rs"]
mod tests;
