//! A pool beside the feeds that share it: what has changed goes to the slices, what is too old
//! leaves, whether or not a feed is connected, and a pool that no rank shares any more ends.

use super::counters::FeedCounters;
use super::feed::{BATCHES_PER_TURN, BLOCKS_PER_TURN, Feed, RING_FULL_PAUSE};
use super::port::KvPort;
use super::shared_state::SharedPool;
use std::rc::Rc;
use std::time::Duration;
use tokio::task::yield_now;
use tokio::time::{MissedTickBehavior, interval, sleep};

/// How often a pool is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl<P: KvPort> Feed<P> {
    pub(super) async fn post_pool(&mut self) {
        let pool = self.state.borrow().pool().cloned();
        if let Some(pool) = pool {
            post(&pool, &self.port, &self.counters).await;
        }
    }
}

/// Follows a pool for as long as ranks share it. Once the last one has left, everything is taken
/// out of the index, a piece at a time. To be started with the pool, which lives no longer.
pub async fn keep_pool<P: KvPort>(pool: SharedPool, port: P, counters: Rc<FeedCounters>) {
    let mut looks = interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let now = looks.tick().await;
        loop {
            let is_shared = Rc::strong_count(&pool) > 1;
            let is_done = if is_shared {
                pool.borrow_mut().expire(now, BLOCKS_PER_TURN)
            } else {
                pool.borrow_mut().shed(BLOCKS_PER_TURN)
            };
            post(&pool, &port, &counters).await;
            // Meanwhile a rank may have come.
            if is_done && !is_shared && Rc::strong_count(&pool) == 1 {
                return;
            }
            if is_done {
                break;
            }
            yield_now().await;
        }
    }
}

/// Posts what the pool has, whichever feed it is from. A batch is taken, posted and struck off
/// without a pause, so that the order stays while several post.
async fn post<P: KvPort>(pool: &SharedPool, port: &P, counters: &FeedCounters) {
    let mut posted_count = 0_u32;
    loop {
        let next = pool.borrow().next_batch();
        let Some((slice, batch)) = next else { return };
        let count = batch.ops.len();
        if port.post(slice, batch).is_err() {
            counters.stall();
            sleep(RING_FULL_PAUSE).await;
            continue;
        }
        pool.borrow_mut().posted(slice, count);
        posted_count = posted_count.wrapping_add(1);
        if posted_count.is_multiple_of(BATCHES_PER_TURN) {
            yield_now().await;
        }
    }
}
