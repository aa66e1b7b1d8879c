//! account: whose breaker hears of a failed attempt. A leg is blamed for what it did itself; one
//! that waited for the other leg is not. Where either may be the cause, what the two do with others
//! tells (`LoadBoard::doubt`), or nobody is blamed.

use super::env::Env;
use super::pair::Paired;
use super::state::Shard;
use forebay_base::{RankIndex, WorkerIndex};
use forebay_fleet::account::Lease;
use forebay_router::dispatch::{RelayError, SendPlan};
use forebay_router::request::Fault;

/// Tells the breakers of an attempt that failed before a byte of its answer was passed on.
pub(super) fn failed(
    shard: &Shard,
    lease: &mut Lease,
    plan: &SendPlan,
    paired: Option<&mut Paired<'_>>,
    error: RelayError,
) {
    let Some(paired) = paired else { return decode_failed(shard, lease, plan, error) };
    let (prefill, worker) = (paired.leg.rank(), paired.plan.worker);
    let blamed = match paired.known(error).fault() {
        Fault::Nobody => None,
        Fault::Decode => Some(plan.rank),
        Fault::Prefill => Some(prefill),
        Fault::Either => shard.workers.board.doubt(prefill, plan.rank),
    };
    match blamed {
        // Its lease is with its leg.
        Some(rank) if rank == prefill => rank_failed(shard, rank, worker),
        Some(_) if error == RelayError::PrefillFailed => worker_failed(shard, lease, plan),
        Some(_) => decode_failed(shard, lease, plan, error),
        None => {}
    }
}

fn decode_failed(shard: &Shard, lease: &mut Lease, plan: &SendPlan, error: RelayError) {
    if error.blames_worker() {
        worker_failed(shard, lease, plan);
    } else if error == RelayError::EngineBusy {
        // It answers, so it is no illness.
        lease.judge_refusal();
    }
}

fn worker_failed(shard: &Shard, lease: &mut Lease, plan: &SendPlan) {
    mark_failed(&shard.env, lease);
    shard.worker_failed(plan.worker);
}

/// The worker broke off in the middle of an answer.
pub(super) fn broke_off(shard: &Shard, plan: &SendPlan, error: RelayError) {
    if error.blames_worker() {
        rank_failed(shard, plan.rank, plan.worker);
    }
}

fn rank_failed(shard: &Shard, rank: RankIndex, worker: WorkerIndex) {
    if shard.env.config.health.enabled
        && let Some(load) = shard.workers.board.rank(rank)
    {
        let breaker = &shard.env.config.breaker;
        load.failed(shard.env.now(), breaker.failures, breaker.open);
    }
    shard.worker_failed(worker);
}

/// Tells the rank's breaker; without health checks nothing is ever marked.
pub(super) fn mark_failed(env: &Env, lease: &mut Lease) {
    if env.config.health.enabled {
        let breaker = &env.config.breaker;
        lease.judge_failure(env.now(), breaker.failures, breaker.open);
    }
}
