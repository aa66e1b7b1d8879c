//! When a pool is closed to whoever comes: no rank has room for one more, and no queue has either. By the measure of the
//! requests that are there, not of the one that was turned away: a request that is larger than others, or that only some
//! of the ranks can serve, says nothing about the next.

use super::bounds::is_full;
use crate::account::LeaseCost;
use crate::base::{PoolIndex, RankIndex};
use crate::config::QueueMode;
use crate::select::Binder;
use crate::worker::{Worker, WorkerState};

/// Would one more like those that are there find neither a rank nor a place to wait?
#[must_use]
pub fn is_closed(binder: &Binder<'_>, pool: PoolIndex) -> bool {
    let Binder { fleet, board, .. } = *binder;
    let Some(ranks) = fleet.pool(pool).map(|pool| &pool.ranks) else { return false };
    let mut usable = ranks.iter().copied().filter(|&rank| is_usable(binder, rank)).peekable();
    let Some(&first) = usable.peek() else { return false };
    let is_full =
        |rank| fleet.queue_of(rank).is_none_or(|queue| is_full(fleet, board, pool, queue));
    match fleet.flow.queue.mode {
        // Of one queue nobody has to ask twice.
        QueueMode::Pool => is_full(first) && usable.all(|rank| !takes(binder, rank)),
        QueueMode::Endpoint | QueueMode::Off => {
            usable.all(|rank| is_full(rank) && !takes(binder, rank))
        }
    }
}

/// Up, and its breaker is not open.
fn is_usable(binder: &Binder<'_>, rank: RankIndex) -> bool {
    let is_up = |(_, worker): (_, &Worker)| worker.state == WorkerState::Up;
    binder.fleet.rank(rank).is_some_and(is_up)
        && binder.board.rank(rank).is_some_and(|load| load.breaker_admits(binder.now))
}

/// Has the rank room for one more like those that it has, and nobody waits for it?
fn takes(binder: &Binder<'_>, rank: RankIndex) -> bool {
    let Some(load) = binder.board.rank(rank) else { return false };
    let kv_tokens = load.kv_tokens() / u64::from(load.in_flight().max(1));
    let usual = LeaseCost { kv_tokens, ..LeaseCost::default() };
    !binder.is_awaited(rank) && binder.has_room(rank, &usual)
}
