//! Feeds whose ranks share a pool: what the pool's feeds have changed goes to the slices, and what
//! is too old leaves.

use super::feed::{BATCHES_PER_TURN, BLOCKS_PER_TURN, Feed, RING_FULL_PAUSE};
use super::port::KvPort;
use super::shared_state::SharedPool;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep};

impl<P: KvPort> Feed<P> {
    pub(super) fn pool(&self) -> Option<SharedPool> {
        self.state.borrow().pool().cloned()
    }

    /// Posts what the pool has, whichever feed it is from. A batch is taken, posted and struck off
    /// without a pause, so that the order stays while several feeds post.
    pub(super) async fn post_pool(&mut self) {
        let Some(pool) = self.pool() else { return };
        let mut posted_count = 0_u32;
        loop {
            let next = pool.borrow().next_batch();
            let Some((slice, batch)) = next else { return };
            let count = batch.ops.len();
            if self.port.post(slice, batch).is_err() {
                self.counters.stall();
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

    /// Takes out of the pool what is too old by now; returns when more may be.
    pub(super) async fn expire_pool(&mut self, now: Instant) -> Option<Instant> {
        let pool = self.pool()?;
        loop {
            let is_done = pool.borrow_mut().expire(now, BLOCKS_PER_TURN);
            self.post_pool().await;
            if is_done {
                return pool.borrow().next_expiry();
            }
            yield_now().await;
        }
    }
}
