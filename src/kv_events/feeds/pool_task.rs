//! The task of a pool: posts changes to the slices and takes out expired blocks, whether or not a
//! feed is connected. Ends once no rank shares the pool any more.

use super::feed::{BATCHES_PER_TURN, BLOCKS_PER_TURN, Feed, RING_FULL_PAUSE};
use super::port::KvPort;
use crate::counters::FeedCounters;
use crate::ranks::shared_state::SharedPool;
use std::rc::Rc;
use std::time::Duration;
use tokio::task::yield_now;
use tokio::time::{MissedTickBehavior, interval, sleep};

/// Interval between two checks of a pool for expired blocks.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(1);

impl<P: KvPort> Feed<P> {
    pub(crate) async fn post_pool(&mut self) {
        let pool = self.state.borrow().pool().cloned();
        if let Some(pool) = pool {
            post(&pool, &self.port, &self.counters).await;
        }
    }
}

/// Runs a pool for as long as ranks share it. After the last rank has left, the task takes all
/// blocks out of the index, in turns. Start it with the pool, which ends with it.
pub async fn run_pool<P: KvPort>(pool: SharedPool, port: P, counters: Rc<FeedCounters>) {
    let mut ticks = interval(EXPIRY_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let now = ticks.tick().await;
        loop {
            let is_shared = Rc::strong_count(&pool) > 1;
            let is_done = if is_shared {
                pool.borrow_mut().expire(now, BLOCKS_PER_TURN)
            } else {
                pool.borrow_mut().shed(BLOCKS_PER_TURN)
            };
            post(&pool, &port, &counters).await;
            // A rank may have joined during the post.
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

/// Posts operations of the pool, from any feed. Taking, posting and dropping a batch has no await
/// in between, so that the order stays while several tasks post.
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
