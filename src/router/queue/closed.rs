//! When a pool is closed to new requests, and until when: neither a rank nor a queue has room for
//! another request. Measured by the mean size of the requests in the pool, not by the refused
//! request: if that is large, or only some ranks can serve it, the next request may still fit.

use super::bounds::{is_at_low_water, is_full, limits};
use super::enter::{Entry, Rejection};
use forebay_base::{ModelIndex, NanosSinceStart, PoolIndex, QueueIndex, RankIndex};
use forebay_board::account::LeaseCost;
use forebay_board::{LoadBoard, QueueFull, WindowCause, WindowOrigin};
use forebay_config::QueueMode;
use forebay_fleet::tenant::TenantPart;
use forebay_fleet::worker::{FleetSnapshot, Leg, Model, Pool, WorkerState};
use forebay_select::Binder;

/// Smaller parts would open and close the window of a large fleet with every request.
const FREE_PLACES_PART: u64 = 32;

/// The closed pool among the pools that refused the request. After a decode leg, the prefill pool
/// counts too.
pub(crate) fn closed_pool(
    binder: &Binder<'_>,
    model: &Model,
    entry: &Entry,
) -> Option<(PoolIndex, WindowCause)> {
    let Entry::Rejected(leg, rejection) = *entry else { return None };
    // A lack of KV concerns the request, not the pool: smaller requests and requests with cached
    // prompts still fit.
    let cause = match rejection {
        Rejection::NoRoom => WindowCause::Places,
        Rejection::Full(QueueFull::Depth) => WindowCause::Depth,
        Rejection::Full(QueueFull::Bytes) => WindowCause::Bytes,
        _ => return None,
    };
    // Without a queue a decode rank is not taken for want of a prefill rank.
    let beside = model.prefill_pool.filter(|_| leg == Leg::Decode);
    let mut pools = [Some(model.pool_of(leg)), beside].into_iter().flatten();
    pools.find(|&pool| is_closed(binder, pool)).map(|pool| (pool, cause))
}

/// Would another request of mean size find neither a rank nor a place to wait?
#[must_use]
pub fn is_closed(binder: &Binder<'_>, pool: PoolIndex) -> bool {
    let Binder { fleet, board, now, .. } = *binder;
    let Some(ranks) = fleet.pool(pool).map(|pool| &pool.ranks) else { return false };
    let mut usable =
        ranks.iter().copied().filter(|&rank| is_usable(fleet, board, now, rank)).peekable();
    let Some(&first) = usable.peek() else { return false };
    let is_full =
        |rank| fleet.queue_of(rank).is_none_or(|queue| is_full(fleet, board, pool, queue));
    match fleet.config.flow.queue.mode {
        // All ranks share a queue, so it is tested only once.
        QueueMode::Pool => is_full(first) && usable.all(|rank| !takes(binder, pool, rank)),
        QueueMode::Endpoint | QueueMode::Off => {
            usable.all(|rank| is_full(rank) && !takes(binder, pool, rank))
        }
    }
}

/// Would a queue of the pool take another request of the tenant, within its share? Only called
/// while the pool's window is open. If only other replicas opened the window, the contents of their
/// queues are unknown here: the tenant may then fill half of the local queue. A window that an
/// operator opened is closed to all tenants.
pub(crate) fn has_share(
    fleet: &FleetSnapshot,
    board: &LoadBoard,
    pool: PoolIndex,
    now: NanosSinceStart,
    tenant: TenantPart,
) -> bool {
    let windows = board.windows();
    if windows.open_by_hand_until(pool, now).is_some() {
        return false;
    }
    let is_full_here = windows.open_by_until(pool, WindowOrigin::Here, now).is_some();
    let limits = limits(&fleet.config.flow.queue);
    let lets_in = |queue| {
        board.queue(queue).is_some_and(|cell| {
            cell.is_below_share(limits, tenant.tenant, tenant.weight)
                || !is_full_here
                    && cell.waiting_of(tenant.tenant) < u64::from(limits.depth_max.div_ceil(2))
        })
    };
    match fleet.config.flow.queue.mode {
        // No queue, so no tenant has a share of a queue.
        QueueMode::Off => false,
        QueueMode::Pool => lets_in(QueueIndex(pool.0)),
        QueueMode::Endpoint => {
            let mut ranks = fleet.pool(pool).map_or(&[][..], |pool| &pool.ranks).iter();
            ranks.any(|&rank| {
                is_usable(fleet, board, now, rank) && fleet.queue_of(rank).is_some_and(lets_in)
            })
        }
    }
}

/// May a rejection window close? Without a queue, once 1 of [`FREE_PLACES_PART`] places is free.
/// Otherwise once a queue is at its low water, counting only requests without a verdict.
#[must_use]
pub(crate) fn is_relieved(binder: &Binder<'_>, index: PoolIndex) -> bool {
    let Binder { fleet, board, now, .. } = *binder;
    let Some(pool) = fleet.pool(index) else { return true };
    let low = |queue| {
        let waiting = board.queue(queue).map_or(0, |cell| u64::from(cell.waiting()));
        is_at_low_water(fleet, board, index, queue, waiting)
    };
    match fleet.config.flow.queue.mode {
        QueueMode::Off => has_free_places(fleet, board, pool) && !is_closed(binder, index),
        QueueMode::Pool => low(QueueIndex(index.0)),
        QueueMode::Endpoint => {
            let mut usable = pool.ranks.iter().filter(|&&rank| is_usable(fleet, board, now, rank));
            usable.any(|rank| low(QueueIndex(rank.0)))
        }
    }
}

fn has_free_places(fleet: &FleetSnapshot, board: &LoadBoard, pool: &Pool) -> bool {
    let mut taken = 0_u64;
    let mut places = 0_u64;
    for &rank in &pool.ranks {
        let load = board.rank(rank);
        let room = fleet.room(rank);
        let places_max = load.map_or(room, |load| load.limited(room)).places_max;
        if places_max == 0 {
            return true;
        }
        taken += load.map_or(0, |load| u64::from(load.in_flight()));
        places += u64::from(places_max);
    }
    places.saturating_sub(taken) * FREE_PLACES_PART >= places
}

/// Is the rank up, and not paused for all callers?
fn is_usable(
    fleet: &FleetSnapshot,
    board: &LoadBoard,
    now: NanosSinceStart,
    rank: RankIndex,
) -> bool {
    fleet.rank(rank).is_some_and(|(_, worker)| worker.state == WorkerState::Up)
        && board.rank(rank).is_some_and(|load| load.breaker_admits(now, None))
}

/// Has the rank room for another request of its mean size, for some model of the pool, and no
/// request that waits for it? An engine may refuse a single model.
fn takes(binder: &Binder<'_>, pool: PoolIndex, rank: RankIndex) -> bool {
    let Some(load) = binder.board.rank(rank) else { return false };
    // By the mean of its running requests, not by the refused request: a single large prompt would
    // close the pool to all.
    let kv_tokens = load.kv_tokens() / u64::from(load.in_flight().max(1));
    let usual = LeaseCost { kv_tokens, ..LeaseCost::default() };
    !binder.is_awaited(rank)
        && models_of(binder.fleet, pool).any(|model| binder.has_room(rank, model, || usual))
}

fn models_of(fleet: &FleetSnapshot, pool: PoolIndex) -> impl Iterator<Item = ModelIndex> {
    let of_pool = move |model: &Model| model.pool == pool || model.prefill_pool == Some(pool);
    let models = fleet.models.iter().enumerate().filter(move |(_, model)| of_pool(model));
    models.filter_map(|(index, _)| u16::try_from(index).ok().map(ModelIndex))
}
