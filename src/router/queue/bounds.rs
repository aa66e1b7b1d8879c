//! How much may wait.

use forebay_base::{PoolIndex, QueueIndex, RankIndex};
use forebay_config::{QueueConfig, QueueMode};
use forebay_fleet::worker::{FleetSnapshot, LoadBoard, QueueLimits};

/// Bounds of a queue. The tokens that may wait are what the pool's caches hold, times the
/// configured share, less what its ranks have been given and what waits in its other queues.
pub(super) fn bounds(
    fleet: &FleetSnapshot,
    board: &LoadBoard,
    pool: PoolIndex,
    queue: QueueIndex,
) -> QueueLimits {
    let flow = &fleet.config.flow;
    let pool = fleet.pool(pool);
    let capacity = pool.map_or(0, |pool| pool.kv_tokens);
    let share = u64::from(flow.kv_demand_percent);
    let tokens_max = if capacity == 0 || share == 0 {
        0
    } else {
        let taken = pool.map_or(0, |pool| {
            pool.ranks.iter().map(|&rank| taken(fleet, board, rank, queue)).sum()
        });
        // 0 would mean that there is no limit.
        (capacity.saturating_mul(share) / 100).saturating_sub(taken).max(1)
    };
    QueueLimits { tokens_max, ..limits(&flow.queue) }
}

/// Bounds of each queue, without the tokens.
pub(super) fn limits(queue: &QueueConfig) -> QueueLimits {
    let bytes_max = u64::try_from(queue.bytes_max).unwrap_or(u64::MAX);
    QueueLimits { depth_max: queue.depth_max, bytes_max, tokens_max: 0 }
}

/// KV tokens given to a rank, and those that wait for it in a queue of its own other than `queue`.
fn taken(fleet: &FleetSnapshot, board: &LoadBoard, rank: RankIndex, queue: QueueIndex) -> u64 {
    let given = board.rank(rank).map_or(0, |load| load.kv_tokens());
    let own = (fleet.config.flow.queue.mode == QueueMode::Endpoint).then_some(QueueIndex(rank.0));
    let other = own.filter(|&own| own != queue).and_then(|own| board.queue(own));
    given.saturating_add(other.map_or(0, |cell| cell.waiting_tokens()))
}

/// Is the queue filled to no more than the configured part of its depth and its bytes? `waiting`:
/// how many of those that it holds count. KV tokens have no say: they are short for some requests
/// and not for others.
pub(super) fn is_at_low_water(
    fleet: &FleetSnapshot,
    board: &LoadBoard,
    pool: PoolIndex,
    queue: QueueIndex,
    waiting: u64,
) -> bool {
    let Some(cell) = board.queue(queue) else { return false };
    let percent = u64::from(fleet.config.flow.rejection.low_water_percent);
    let low = |held: u64, max: u64| held.saturating_mul(100) <= max.saturating_mul(percent);
    let bounds = bounds(fleet, board, pool, queue);
    low(waiting, u64::from(bounds.depth_max).max(1))
        && low(cell.waiting_bytes(), bounds.bytes_max.max(1))
}

/// Has the queue no room for one more like those that it holds? Not for the one that found it full:
/// that may be larger than all of them.
pub(super) fn is_full(
    fleet: &FleetSnapshot,
    board: &LoadBoard,
    pool: PoolIndex,
    queue: QueueIndex,
) -> bool {
    let Some(cell) = board.queue(queue) else { return true };
    let bounds = bounds(fleet, board, pool, queue);
    let waiting = u64::from(cell.waiting());
    let bytes = cell.waiting_bytes();
    let is_full = waiting >= u64::from(bounds.depth_max)
        || bytes.saturating_add(bytes / waiting.max(1)) > bounds.bytes_max.max(1);
    is_full && !is_at_low_water(fleet, board, pool, queue, waiting)
}
