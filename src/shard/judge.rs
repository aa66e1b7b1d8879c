//! account: tells breakers of a failed attempt, and the control plane. Whose fault an attempt is
//! stands in `src/router/request/blame.rs`.

use super::env::Env;
use super::pair::Paired;
use super::state::Shard;
use forebay_base::{RankIndex, WorkerIndex};
use forebay_fleet::account::Lease;
use forebay_router::dispatch::{RelayError, SendPlan};
use forebay_router::request::Judgement;

/// Tells the breakers of an attempt that failed before a byte of its answer was passed on.
pub(super) fn failed(
    shard: &Shard,
    lease: &mut Lease,
    plan: &SendPlan,
    paired: Option<&mut Paired<'_>>,
    error: RelayError,
) {
    let Some(paired) = paired else {
        if let Some(judgement) = Judgement::of_error(error) {
            tell(shard, lease, plan.worker, judgement);
        }
        return;
    };
    let (prefill, worker) = (paired.leg.rank(), paired.plan.worker);
    match paired.known(error).judged(&shard.workers.board, prefill, plan.rank) {
        // Its lease is with its leg.
        Some((rank, _)) if rank == prefill => rank_failed(shard, rank, worker),
        Some((_, judgement)) => tell(shard, lease, plan.worker, judgement),
        None => {}
    }
}

/// Tells the breaker of a lease's rank.
pub(super) fn tell(shard: &Shard, lease: &mut Lease, worker: WorkerIndex, judgement: Judgement) {
    match judgement {
        Judgement::Success => lease.judge_success(),
        Judgement::Refusal => lease.judge_refusal(),
        Judgement::Failure => {
            mark_failed(&shard.env, lease);
            shard.worker_failed(worker);
        }
    }
}

/// The worker broke off in the middle of an answer.
pub(super) fn broke_off(shard: &Shard, plan: &SendPlan, error: RelayError) {
    if error.blames_worker() {
        rank_failed(shard, plan.rank, plan.worker);
    }
}

fn rank_failed(shard: &Shard, rank: RankIndex, worker: WorkerIndex) {
    if shard.env.config().health.enabled
        && let Some(load) = shard.workers.board.rank(rank)
    {
        let breaker = &shard.env.config().breaker;
        load.failed(shard.env.now(), breaker.failures, breaker.open);
    }
    shard.worker_failed(worker);
}

/// Tells the rank's breaker; without health checks nothing is ever marked.
pub(super) fn mark_failed(env: &Env, lease: &mut Lease) {
    if env.config().health.enabled {
        let breaker = &env.config().breaker;
        lease.judge_failure(env.now(), breaker.failures, breaker.open);
    }
}
