//! Back pressure on a shard: the limits before a body is read, and who hears that there is room
//! again. What is decided stands in `request/pressure.rs`.

use crate::state::env::Env;
use crate::state::routing::RoutingState;
use crate::state::shard::Shard;
use crate::state::workers::Workers;
use forebay_base::{ModelIndex, NanosSinceStart};
use forebay_fleet::worker::ShardBoard;
use forebay_prompt::parse::{Endpoint, Refusal};
use forebay_router::request::{Newcomer, Stop, in_flight_full};
use std::time::Duration;

/// Told to clients where nothing is known of when there is room: short, because a place may free
/// any moment.
const BACK_AFTER: Duration = Duration::from_secs(1);

/// Of requests in flight.
const NO_LIMIT: u32 = 0;

/// A request counted among those in flight in all shards (`limits.router_in_flight_max`).
#[derive(Debug)]
pub(crate) struct Entered(ShardBoard);

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.in_flight().exit();
    }
}

/// The rejection window and the router's own limit, on the head alone. The model is not known yet:
/// only what closes all pools refuses here.
pub(crate) fn before_body(
    shard: &Shard,
    endpoint: Endpoint,
    now: NanosSinceStart,
    newcomer: &mut Newcomer,
) -> Result<Entered, Refusal> {
    let fleet = shard.workers.fleet.borrow();
    let mut stages = shard.routing.stages.borrow_mut();
    if endpoint.is_inference() {
        stages.windows_of_all(&fleet, now, newcomer)?;
    }
    let count = stages.loads.board.in_flight();
    let most = fleet.config.flow.router_in_flight_max;
    if !count.enter(most) {
        // What the tenants of other shards have is not known here: a share of this shard's part.
        let of_shard = usize::try_from(most).unwrap_or(usize::MAX) / shard.links.bells.len().max(1);
        if !shard.intake.in_flight.has_share(newcomer.tenant, of_shard) {
            return Err(in_flight_full());
        }
        let is_counted = count.enter(NO_LIMIT);
        debug_assert!(is_counted, "refused without a limit");
    }
    Ok(Entered(stages.loads.board.clone()))
}

/// Every 429 says when to come back.
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

/// Somebody has made room in the pools of a model.
pub(crate) fn relieve(env: &Env, workers: &Workers, routing: &RoutingState, model: ModelIndex) {
    // One load of a line that is hardly ever written: this is on the way of every request.
    if !workers.board.windows().may_be_open(env.now()) {
        return;
    }
    routing.informed().relieve_model(&workers.fleet(), model, env.now());
}
