//! account: counts failures against ranks, and reports them to the control plane.
//! `src/router/request/blame.rs` and `meaning.rs` define which outcome counts as a failure.

use super::outbound::Dispatch;
use crate::pair::begin::PairDispatch;
use crate::state::shard::Shard;
use crate::story::facts::{AnswerFacts, AnswerFault};
use forebay_base::{RankIndex, WorkerIndex};
use forebay_board::account::{FailedTrial, Lease};
use forebay_board::{BreakerRules, FailureScope, FailureWeight, RankFailure};
use forebay_fleet::worker::Requester;
use forebay_router::dispatch::{RelayError, SendPlan};
use forebay_router::request::{Judgement, PairBlame, hold_against};

/// Judges the ranks of an attempt that failed before a byte of its answer was relayed.
pub(crate) fn failed(
    shard: &Shard,
    lease: &mut Lease,
    plan: &SendPlan,
    paired: Option<&mut PairDispatch<'_>>,
    error: RelayError,
) {
    let Some(paired) = paired else {
        if let Some(judgement) = Judgement::of_error(error) {
            judge(shard, lease, plan.worker, judgement);
        }
        return;
    };
    let prefill = paired.leg.rank();
    let worker = paired.plan.worker;
    let failed = paired.failed_pair(error);
    let Some(blame) = failed.judged(&shard.workers.board, prefill, plan.rank) else { return };
    let PairBlame { rank, judgement, is_shown } = blame;
    if rank == plan.rank && !is_shown {
        return judge(shard, lease, plan.worker, judgement);
    }
    let worker = if rank == prefill { worker } else { plan.worker };
    hold(shard, judgement.against(rank, lease.requester(), is_shown));
    shard.worker_failed(worker);
}

/// Judges the rank of a lease.
pub(crate) fn judge(shard: &Shard, lease: &mut Lease, worker: WorkerIndex, judgement: Judgement) {
    match judgement {
        Judgement::Success => lease.judge_success(),
        Judgement::Taken => lease.judge_taken(),
        Judgement::Refusal => {
            if let Some(load) = shard.workers.board.rank(lease.rank()) {
                load.answered();
            }
        }
        Judgement::Failure { .. } => {
            mark_failed(shard, lease, judgement);
            shard.worker_failed(worker);
        }
    }
}

/// Counts a success of both ranks once the decode rank of a pair begins to answer: the KV has
/// arrived. Where prefill does not wait for decode, no other sign shows that the prefill was
/// useful.
pub(crate) fn pair_works(
    shard: &Shard,
    paired: &PairDispatch<'_>,
    decode: RankIndex,
    of: Requester,
) {
    if paired.prefill_waits() || paired.is_refused {
        return;
    }
    let board = &shard.workers.board;
    if let Some(prefill) = board.rank(paired.leg.rank()) {
        prefill.succeeded(of);
    }
    if let Some(decode) = board.rank(decode) {
        decode.answered();
    }
}

/// Judges a worker that broke off mid-answer.
pub(crate) fn broke_off(shard: &Shard, going: Dispatch<'_>, error: RelayError) {
    let Dispatch { plan, facts, is_trial, .. } = going;
    if error.blames_worker() {
        let judgement = Judgement::failure(error.is_ranks_own());
        hold(shard, judgement.against(plan.rank, facts.requester(), is_trial));
        shard.worker_failed(plan.worker);
    }
}

/// Blames the tried rank: another rank has served the request of the failed trial.
pub(crate) fn served_elsewhere(shard: &Shard, trial: &FailedTrial) {
    hold(shard, Some(trial.served_elsewhere()));
}

/// Counts a failure against the rank of a lease.
pub(crate) fn mark_failed(shard: &Shard, lease: &Lease, judgement: Judgement) {
    hold(shard, judgement.against(lease.rank(), lease.requester(), lease.is_trial()));
}

/// Counts a failure. Without health checks no failure affects its rank.
fn hold(shard: &Shard, failure: Option<RankFailure>) {
    let Some(failure) = failure else { return };
    shard.env.counters.held(failure.scope.into());
    let config = shard.env.config();
    if config.health.enabled {
        let fleet = shard.workers.fleet();
        let board = &shard.workers.board;
        let rules = BreakerRules { failures: config.breaker.failures, open: config.breaker.open };
        hold_against(&fleet, board, failure, rules, shard.env.now());
    }
}

/// Clears the failure of a rank: the request is to blame.
pub(crate) fn forgive(shard: &Shard, rank: RankIndex) {
    if let Some(load) = shard.workers.board.rank(rank) {
        load.forgive();
    }
}

/// Judges the rank of an answer that was relayed to its end, unless the head has shown a fault.
/// `is_answer`: false for a body that is an error, or empty where tokens are expected.
pub(crate) fn judge_end(
    shard: &Shard,
    lease: &mut Lease,
    answer: &mut AnswerFacts,
    status: u16,
    is_answer: bool,
) {
    if answer.fault.is_some() {
        return;
    }
    match failed_at_end(status, is_answer) {
        Some(judgement) => {
            answer.fault = Some(AnswerFault::Body);
            mark_failed(shard, lease, judgement);
        }
        None if (200..300).contains(&status) => lease.judge_success(),
        None => {}
    }
}

/// Failure shown by a complete answer: status 2xx with an error, or without a body. A worker that
/// sends only such answers looks idle, and would attract traffic.
fn failed_at_end(status: u16, is_answer: bool) -> Option<Judgement> {
    let scope = FailureScope::Caller;
    let weight = FailureWeight::Failed;
    let is_failure = (200..300).contains(&status) && !is_answer;
    is_failure.then_some(Judgement::Failure { scope, weight, status })
}
