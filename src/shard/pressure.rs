//! Back pressure on a shard: the limits before a body is read, and who hears that there is room
//! again. What is decided stands in `request/pressure.rs`.

use super::state::Shard;
use forebay_base::{ModelIndex, NanosSinceStart, PoolIndex, QueueIndex, RankIndex};
use forebay_fleet::account::Count;
use forebay_fleet::worker::{FleetSnapshot, ShardBoard};
use forebay_prompt::parse::{Endpoint, Refusal};
use forebay_router::request::{Stop, in_flight_full};
use std::time::Duration;

/// An engine that had no room is left alone so long, or until one of our requests there ends.
const ENGINE_BUSY: Duration = Duration::from_millis(200);
/// However long it asks for.
const ENGINE_BUSY_MAX: Duration = Duration::from_secs(60);

/// Told to clients where nothing is known of when there is room: short, because a place may free
/// any moment.
const BACK_AFTER: Duration = Duration::from_secs(1);

/// A request counted among those in flight in all shards (`limits.router_in_flight_max`).
#[derive(Debug)]
pub(super) struct Entered(ShardBoard);

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.exit();
    }
}

/// The rejection window and the router's own limit, on the head alone. The model is not known yet:
/// only what closes all pools refuses here.
pub(super) fn before_body(
    shard: &Shard,
    endpoint: Endpoint,
    now: NanosSinceStart,
    is_drawn: &mut Option<bool>,
) -> Result<Entered, Refusal> {
    let fleet = shard.fleet.borrow();
    let mut stages = shard.stages.borrow_mut();
    if endpoint.is_inference() {
        stages.windows_of_all(&fleet, now, is_drawn)?;
    }
    if !stages.board.enter(fleet.flow.router_in_flight_max) {
        return Err(in_flight_full());
    }
    Ok(Entered(stages.board.clone()))
}

/// Every 429 says when to come back.
pub(super) fn with_time(shard: &Shard, stop: Stop) -> Stop {
    let timed = |refusal: Refusal| match (refusal.status(), refusal.retry_after()) {
        (429, None) => {
            let after = shard.stages.borrow_mut().later_by_chance(BACK_AFTER);
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
pub(super) fn relieve(shard: &Shard, model: ModelIndex) {
    // One load of a line that is hardly ever written: this is on the way of every request.
    if !shard.board.windows().may_be_open(shard.now()) {
        return;
    }
    let fleet = shard.fleet();
    let Some(model) = fleet.models.get(model.index()) else { return };
    relieve_pool(shard, &fleet, model.pool);
    if let Some(pool) = model.prefill_pool {
        relieve_pool(shard, &fleet, pool);
    }
}

/// The same for all pools: their workers or their limits are others now.
pub(super) fn relieve_all(shard: &Shard, fleet: &FleetSnapshot) {
    for (pool, _) in fleet.used_pools() {
        relieve_pool(shard, fleet, pool);
    }
}

/// The same for the pool of a queue that somebody has left.
pub(super) fn relieve_queue(shard: &Shard, queue: QueueIndex) {
    if !shard.board.windows().may_be_open(shard.now()) {
        return;
    }
    let fleet = shard.fleet();
    if let Some(pool) = fleet.pool_of(queue) {
        relieve_pool(shard, &fleet, pool);
    }
}

fn relieve_pool(shard: &Shard, fleet: &FleetSnapshot, pool: PoolIndex) {
    shard.informed().relieve(fleet, pool, shard.now());
}

impl Shard {
    /// The engine of a rank had no room, and with it none of the ranks that share its limit. Called
    /// after the lease was given back: the end of any other of our requests there ends this too.
    pub(super) fn engine_refused(&self, rank: RankIndex, retry_after_s: Option<u64>) {
        self.counters.add(Count::EngineRefusals, 1);
        let asked = retry_after_s.map_or(ENGINE_BUSY, Duration::from_secs);
        let now = self.now();
        let until = now.plus(asked.clamp(ENGINE_BUSY, ENGINE_BUSY_MAX));
        for load in self.fleet().ranks_full_with(rank).filter_map(|rank| self.board.rank(rank)) {
            load.refused(now, until);
        }
    }

    /// Looks at how many requests of every pool have ended. Cheap when called often.
    pub(super) fn observe_drain(&self, now: NanosSinceStart) {
        let mut stages = self.stages.borrow_mut();
        stages.drain_rates.observe(&self.fleet(), &self.board, now);
    }
}
