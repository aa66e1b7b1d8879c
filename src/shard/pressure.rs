//! Back pressure as a client hears it: what is refused before its body is read, what a full queue
//! answers, and when to come back.

use super::journey::Drawn;
use super::state::Shard;
use super::target::Target;
use crate::account::Count;
use crate::admit::later_by_chance;
use crate::base::{NanosSinceStart, PoolIndex, QueueIndex, RankIndex};
use crate::config::QueueMode;
use crate::parse::{Endpoint, Reason, Refusal};
use crate::queue::{Turned, is_relieved};
use crate::request::{self, Failed, Stop};
use crate::select::Binder;
use crate::worker::{FleetSnapshot, LoadBoard, Model, OpenedBy, Pool, QueueFull, WorkerState};
use std::sync::Arc;
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
pub(super) struct Entered(Arc<LoadBoard>);

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
    drawn: &Drawn,
) -> Result<Entered, Refusal> {
    let fleet = shard.fleet.borrow();
    let windows = shard.board.windows();
    if windows.may_be_open(now) && endpoint.is_inference() {
        // Who only prefills answers nobody: a pool of such ranks closes no way in by itself.
        let mut pools = fleet.answering_pools().peekable();
        let first = pools.peek().map(|&(pool, _)| pool);
        let all = pools.all(|(pool, _)| windows.open_until(pool, now).is_some());
        if let Some(pool) = first.filter(|_| all)
            && drawn.is_refused(shard, &fleet)
        {
            return Err(window(shard, &fleet, pool, now));
        }
    }
    if !shard.board.enter(fleet.flow.router_in_flight_max) {
        return Err(request::in_flight_full());
    }
    Ok(Entered(Arc::clone(&shard.board)))
}

/// The window of the pool that the request asks for.
pub(super) fn of_pool(
    shard: &Shard,
    fleet: &FleetSnapshot,
    pool: PoolIndex,
    drawn: &Drawn,
) -> Result<(), Refusal> {
    let now = shard.now();
    let windows = shard.board.windows();
    let open = windows.may_be_open(now) && windows.open_until(pool, now).is_some();
    if open && drawn.is_refused(shard, fleet) {
        Err(window(shard, fleet, pool, now))
    } else {
        Ok(())
    }
}

/// The window of the ranks that would compute its prompt, for a request that only a pair can serve.
/// Before its decode rank is taken: it would be given back at once. Who was let in before is not
/// asked again.
pub(super) fn of_pair(shard: &Shard, target: &Target<'_>) -> Result<(), Refusal> {
    let Target { fleet, model, journey, .. } = *target;
    let Some(pool) = model.prefill_pool.filter(|_| journey.is_new()) else { return Ok(()) };
    let is_up = |rank: RankIndex| {
        fleet.rank(rank).is_some_and(|(_, worker)| worker.state == WorkerState::Up)
    };
    if model.ranks.iter().any(|&rank| fleet.is_whole_only(rank) && is_up(rank)) {
        return Ok(());
    }
    of_pool(shard, fleet, pool, &journey.drawn)
}

/// Refused by an open window. It may close early, so the drain rate says when to come back, and the
/// clock while that is unknown.
fn window(shard: &Shard, fleet: &FleetSnapshot, pool: PoolIndex, now: NanosSinceStart) -> Refusal {
    let left = shard.board.windows().open_until(pool, now).map_or(0, |until| until.since(now));
    let after = back_after(shard, fleet, pool, now);
    Refusal::new(Reason::RejectedWindow).with_retry_after(
        after.unwrap_or_else(|| shard.later_by_chance(Duration::from_nanos(left))),
    )
}

/// Every 429 says when to come back.
pub(super) fn with_time(shard: &Shard, stop: Stop) -> Stop {
    let timed = |refusal: Refusal| match (refusal.status(), refusal.retry_after()) {
        (429, None) => refusal.with_retry_after(shard.later_by_chance(BACK_AFTER)),
        _ => refusal,
    };
    match stop {
        Stop::BeforeBody(refusal) => Stop::BeforeBody(timed(refusal)),
        Stop::InBody(refusal) => Stop::InBody(timed(refusal)),
        Stop::Refused(refusal) => Stop::Refused(timed(refusal)),
        stop => stop,
    }
}

/// Opens the rejection window of a pool that is closed to whoever comes.
pub(super) fn close(shard: &Shard, fleet: &FleetSnapshot, pool: PoolIndex, now: NanosSinceStart) {
    let length = fleet.flow.rejection_window;
    if !length.is_zero() {
        shard.board.windows().open(pool, OpenedBy::Here, now, now.plus(length));
        // Those who left meanwhile found it closed and had nothing to do.
        relieve_pool(shard, fleet, pool);
    }
}

/// What a request hears that finds neither a rank nor a queue.
pub(super) fn turned(
    shard: &Shard,
    fleet: &FleetSnapshot,
    pool: PoolIndex,
    turned: Turned,
) -> Refusal {
    let reason = match turned {
        Turned::NoWorker => {
            return request::no_worker("all that serve its model are down, or failed it");
        }
        Turned::NoRoom => Reason::RejectedBusy,
        Turned::Full(QueueFull::Depth | QueueFull::Bytes) => Reason::RejectedQueueFull,
        Turned::Full(QueueFull::Demand) => Reason::RejectedDemand,
        Turned::TooLate { .. } => Reason::RejectedDeadline,
    };
    come_back(shard, fleet, pool, Refusal::new(reason))
}

/// The same for a request that ends after it was let in: it waited too long, or engines had no room
/// for it.
pub(super) fn ended(shard: &Shard, fleet: &FleetSnapshot, pool: PoolIndex, stop: Stop) -> Stop {
    match stop {
        Stop::Refused(refusal)
            if matches!(refusal.reason(), Reason::RejectedQueueWait | Reason::RejectedBusy)
                && refusal.retry_after().is_none() =>
        {
            Stop::Refused(come_back(shard, fleet, pool, refusal))
        }
        stop => stop,
    }
}

/// How a request ends after its last attempt failed.
pub(super) fn failed(
    shard: &Shard,
    fleet: &FleetSnapshot,
    pool: PoolIndex,
    failed: Failed,
) -> Stop {
    ended(shard, fleet, pool, request::stop(fleet, failed))
}

/// Adds when to come back, as far as that is known: by the drain rate, and not before an engine
/// asks for it.
pub(super) fn come_back(
    shard: &Shard,
    fleet: &FleetSnapshot,
    pool: PoolIndex,
    refusal: Refusal,
) -> Refusal {
    match back_after(shard, fleet, pool, shard.now()) {
        Some(after) => refusal.with_retry_after(after),
        None => refusal,
    }
}

/// By the drain rate, and not before the engines ask for it; `None` if neither is known.
fn back_after(
    shard: &Shard,
    fleet: &FleetSnapshot,
    pool: PoolIndex,
    now: NanosSinceStart,
) -> Option<Duration> {
    let asked = engines_ask_for(shard, fleet, pool, now);
    let asked = asked.map(|asked| shard.later_by_chance(asked));
    shard.retry_after(fleet, pool, now).max(asked)
}

/// Time until the first of the engines that had no room is asked again, if all of them are left
/// alone.
fn engines_ask_for(
    shard: &Shard,
    fleet: &FleetSnapshot,
    pool: PoolIndex,
    now: NanosSinceStart,
) -> Option<Duration> {
    let left = |rank: &RankIndex| {
        let until = shard.board.rank(*rank).map(|load| load.busy_until());
        until.map_or(0, |until| until.since(now))
    };
    let soonest = fleet.pool(pool)?.ranks.iter().map(left).min().filter(|&nanos| nanos > 0);
    soonest.map(Duration::from_nanos)
}

/// Called by who has made room in a pool, or in its queues: the window ends with what it was opened
/// for. The home of a queue sees only those who stand in it, and nothing once it is empty.
pub(super) fn relieve(shard: &Shard, model: &Model) {
    // One load of a line that is hardly ever written: this is on the way of every request.
    if !shard.board.windows().may_be_open(shard.now()) {
        return;
    }
    let fleet = &*shard.fleet();
    relieve_pool(shard, fleet, model.pool);
    if let Some(pool) = model.prefill_pool {
        relieve_pool(shard, fleet, pool);
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
    let fleet = &*shard.fleet();
    if let Some(pool) = fleet.pool_of(queue) {
        relieve_pool(shard, fleet, pool);
    }
}

fn relieve_pool(shard: &Shard, fleet: &FleetSnapshot, pool: PoolIndex) {
    let now = shard.now();
    let windows = shard.board.windows();
    if !windows.may_be_open(now) || windows.open_by_until(pool, OpenedBy::Here, now).is_none() {
        return;
    }
    let mut reported = shard.reported.borrow_mut();
    reported.receive();
    let binder = Binder {
        fleet,
        board: &shard.board,
        reports: &reported.reports,
        policy: shard.config.policy,
        now,
        turn: &mut shard.turn.borrow_mut(),
        random: &mut shard.random.borrow_mut(),
    };
    if is_relieved(&binder, pool) {
        windows.close(pool, OpenedBy::Here, now);
    }
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

    fn later_by_chance(&self, after: Duration) -> Duration {
        later_by_chance(after, &mut self.random.borrow_mut())
    }

    /// Looks at how many requests of every pool have ended. Cheap when called often.
    pub(super) fn observe_drain(&self, now: NanosSinceStart) {
        self.drain_rates.borrow_mut().observe(&self.fleet(), &self.board, now);
    }

    /// Time until so many requests of a pool have ended; `None` while unknown.
    pub(super) fn projected_wait(
        &self,
        pool: PoolIndex,
        now: NanosSinceStart,
        ahead: u64,
    ) -> Option<Duration> {
        self.drain_rates.borrow().projected_wait(pool, now, ahead)
    }

    /// When a client of the pool may come back: after those who wait now, and one more, have ended.
    fn retry_after(
        &self,
        fleet: &FleetSnapshot,
        index: PoolIndex,
        now: NanosSinceStart,
    ) -> Option<Duration> {
        let pool = fleet.pool(index)?;
        let mut rates = self.drain_rates.borrow_mut();
        rates.observe_pool(index, pool, &self.board, now);
        let ahead = waiting(&self.board, fleet, index, pool) + 1;
        rates.retry_after(index, now, ahead, &mut self.random.borrow_mut())
    }
}

fn waiting(board: &LoadBoard, fleet: &FleetSnapshot, index: PoolIndex, pool: &Pool) -> u64 {
    let of = |queue| board.queue(queue).map_or(0, |cell| u64::from(cell.waiting()));
    match fleet.flow.queue.mode {
        QueueMode::Off => 0,
        QueueMode::Pool => of(QueueIndex(index.0)),
        QueueMode::Endpoint => {
            pool.ranks.iter().filter_map(|&rank| fleet.queue_of(rank)).map(of).sum()
        }
    }
}
