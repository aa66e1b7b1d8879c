//! How much may wait.

use crate::base::{PoolIndex, QueueIndex, RankIndex};
use crate::config::QueueMode;
use crate::select::Binder;
use crate::worker::QueueLimits;

/// Bounds of a queue. The tokens that may wait are what the pool's caches hold, times the configured share, less what its
/// ranks have been given and what waits in its other queues.
pub(super) fn bounds(binder: &Binder<'_>, pool: PoolIndex, queue: QueueIndex) -> QueueLimits {
    let flow = &binder.fleet.flow;
    let pool = binder.fleet.pool(pool);
    let capacity = pool.map_or(0, |pool| pool.kv_tokens);
    let share = u64::from(flow.kv_demand_percent);
    let tokens_max = if capacity == 0 || share == 0 {
        0
    } else {
        let taken =
            pool.map_or(0, |pool| pool.ranks.iter().map(|&rank| taken(binder, rank, queue)).sum());
        // 0 would mean that there is no limit.
        (capacity.saturating_mul(share) / 100).saturating_sub(taken).max(1)
    };
    QueueLimits {
        depth_max: flow.queue.depth_max,
        bytes_max: u64::try_from(flow.queue.bytes_max).unwrap_or(u64::MAX),
        tokens_max,
    }
}

/// KV tokens given to a rank, and those that wait for it in a queue of its own other than `queue`.
fn taken(binder: &Binder<'_>, rank: RankIndex, queue: QueueIndex) -> u64 {
    let given = binder.board.rank(rank).map_or(0, |load| load.kv_tokens());
    let own = (binder.fleet.flow.queue.mode == QueueMode::Endpoint).then_some(QueueIndex(rank.0));
    let other = own.filter(|&own| own != queue).and_then(|own| binder.board.queue(own));
    given.saturating_add(other.map_or(0, |cell| cell.waiting_tokens()))
}
