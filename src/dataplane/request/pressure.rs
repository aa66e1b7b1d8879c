//! Back pressure on a shard: the time in refusals, and relief of windows. The decisions stand in
//! `src/router/request/pressure.rs`.

use crate::state::env::Env;
use crate::state::routing::RoutingState;
use crate::state::workers::Workers;
use forebay_base::ModelIndex;
use forebay_prompt::parse::Refusal;
use forebay_router::request::Stop;
use std::time::Duration;

/// `Retry-After` where nothing is known of when there is room: short, because a place may free any
/// moment.
const BACK_AFTER: Duration = Duration::from_secs(1);

/// Every 429 has a time to come back.
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

/// An attempt has ended: the pools of a model may have room.
pub(crate) fn relieve(env: &Env, workers: &Workers, routing: &RoutingState, model: ModelIndex) {
    // One load of a line that is hardly ever written: this is on the way of every request.
    if !workers.board.windows().may_be_open(env.now()) {
        return;
    }
    routing.informed().relieve_model(&workers.fleet(), model, env.now());
}
