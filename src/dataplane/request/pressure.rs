//! Back pressure on a shard: `Retry-After` in refusals, and relief of rejection windows.
//! `src/router/request/pressure.rs` decides.

use crate::state::env::Env;
use crate::state::routing::RoutingState;
use crate::state::workers::Workers;
use forebay_base::ModelIndex;
use forebay_prompt::parse::Refusal;
use forebay_router::request::Stop;
use std::time::Duration;

/// `Retry-After` without an estimate of free room. Short, because a place may free at any moment.
const BACK_AFTER: Duration = Duration::from_secs(1);

/// Adds a `Retry-After` to every 429 that a later try may avoid.
pub(crate) fn with_time(routing: &RoutingState, stop: Stop) -> Stop {
    let timed = |refusal: Refusal| match (refusal.status(), refusal.retry_after()) {
        (429, None) => {
            let after = routing.stages.borrow_mut().later_by_chance(BACK_AFTER);
            refusal.with_retry_after(after)
        }
        _ => refusal,
    };
    match stop {
        Stop::BeforeBody(refusal) => Stop::BeforeBody(timed(refusal)),
        Stop::InBody(refusal) => Stop::InBody(timed(refusal)),
        Stop::Refused(refusal) => Stop::Refused(timed(refusal)),
        stop => stop,
    }
}

/// After an attempt the pools of its model may have room.
pub(crate) fn relieve(env: &Env, workers: &Workers, routing: &RoutingState, model: ModelIndex) {
    // A single load of a rarely written cache line: every request passes here.
    if !workers.board.windows().may_be_open(env.turn_began_at()) {
        return;
    }
    routing.informed().relieve_model(&workers.fleet(), model, env.now());
}
