//! Feeds of ranks with tiers without removal events: expired blocks are taken out of the index, in
//! turns, between two messages.

use super::feed::{BLOCKS_PER_TURN, Feed};
use super::port::KvPort;
use tokio::task::yield_now;
use tokio::time::Instant;

impl<P: KvPort> Feed<P> {
    /// Takes out expired blocks; returns the time at which more may expire.
    pub(crate) async fn expire(&mut self) -> Option<Instant> {
        loop {
            let now = Instant::now();
            let counters = &self.counters;
            let ops = &mut self.ops;
            let is_done = self.state.borrow_mut().expire(now, BLOCKS_PER_TURN, counters, ops);
            if !self.ops.is_empty() {
                self.status.set_blocks(self.state.borrow().block_count());
                self.post().await;
            }
            if is_done {
                return self.state.borrow().next_expiry();
            }
            yield_now().await;
        }
    }
}
