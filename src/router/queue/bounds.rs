//! Limits of a queue: requests, bytes and KV tokens that may wait.

use forebay_base::{PoolIndex, QueueIndex, RankIndex};
use forebay_board::{LoadBoard, QueueLimits};
use forebay_config::{QueueConfig, QueueMode};
use forebay_fleet::worker::FleetSnapshot;

/// Limits of a queue. Tokens that may wait: the capacity of the pool's caches times the configured
/// share, minus tokens leased at its ranks and tokens that wait in its other queues.
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

/// Limits of each queue, without the tokens.
pub(super) fn limits(queue: &QueueConfig) -> QueueLimits {
    let bytes_max = u64::try_from(queue.bytes_max).unwrap_or(u64::MAX);
    QueueLimits { depth_max: queue.depth_max, bytes_max, tokens_max: 0 }
}

/// KV tokens leased at a rank, and tokens that wait in the rank's own queue if that is not `queue`.
fn taken(fleet: &FleetSnapshot, board: &LoadBoard, rank: RankIndex, queue: QueueIndex) -> u64 {
    let given = board.rank(rank).map_or(0, |load| load.kv_tokens());
    let own = (fleet.config.flow.queue.mode == QueueMode::Endpoint).then_some(QueueIndex(rank.0));
    let other = own.filter(|&own| own != queue).and_then(|own| board.queue(own));
    given.saturating_add(other.map_or(0, |cell| cell.waiting_tokens()))
}

/// Is the queue at or below the configured part of its depth and its bytes? `waiting`: number of
/// queued requests that count. KV tokens are left out: they may be short for a large request and
/// not for a small request.
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

/// Has the queue no room for another request of its mean size? The size of the request that found
/// the queue full does not count: it may be larger than all queued requests.
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
