//! Back pressure on a shard: the limits before a body is read, and who hears that there is room
//! again. What is decided stands in `request/pressure.rs`.

use super::env::Env;
use super::routing::RoutingState;
use super::workers::Workers;
use forebay_base::{ModelIndex, NanosSinceStart};
use forebay_fleet::worker::ShardBoard;
use forebay_prompt::parse::{Endpoint, Refusal};
use forebay_router::request::{Stop, in_flight_full};
use std::time::Duration;

/// Told to clients where nothing is known of when there is room: short, because a place may free
/// any moment.
const BACK_AFTER: Duration = Duration::from_secs(1);

/// A request counted among those in flight in all shards (`limits.router_in_flight_max`).
#[derive(Debug)]
pub(super) struct Entered(ShardBoard);

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.in_flight().exit();
    }
}

/// The rejection window and the router's own limit, on the head alone. The model is not known yet:
/// only what closes all pools refuses here.
pub(super) fn before_body(
    workers: &Workers,
    routing: &RoutingState,
    endpoint: Endpoint,
    now: NanosSinceStart,
    is_drawn: &mut Option<bool>,
) -> Result<Entered, Refusal> {
    let fleet = workers.fleet.borrow();
    let mut stages = routing.stages.borrow_mut();
    if endpoint.is_inference() {
        stages.windows_of_all(&fleet, now, is_drawn)?;
    }
    if !stages.loads.board.in_flight().enter(fleet.config.flow.router_in_flight_max) {
        return Err(in_flight_full());
    }
    Ok(Entered(stages.loads.board.clone()))
}

/// Every 429 says when to come back.
pub(super) fn with_time(routing: &RoutingState, stop: Stop) -> Stop {
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

/// Somebody has made room in the pools of a model.
pub(super) fn relieve(env: &Env, workers: &Workers, routing: &RoutingState, model: ModelIndex) {
    // One load of a line that is hardly ever written: this is on the way of every request.
    if !workers.board.windows().may_be_open(env.now()) {
        return;
    }
    routing.informed().relieve_model(&workers.fleet(), model, env.now());
}
