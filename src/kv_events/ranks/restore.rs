//! Feeds that continue from a snapshot. The blocks are posted at once. Then the engine's stream
//! confirms or removes them; unconfirmed blocks are removed when their time is over.

use super::rank::RankState;
use super::rank_copy::RestoredBlocks;
use super::shared_state::SharedState;
use crate::counters::ResetReason;
use crate::feeds::feed::Feed;
use crate::feeds::port::KvPort;
use crate::paths::slice_ops::SliceOps;
use crate::status::FeedState;
use std::rc::Rc;
use tokio::time::{Instant, sleep_until};
use tracing::info;

/// State of a rank from a snapshot, for [`Feed::restore`].
#[derive(Debug)]
pub struct FeedRestore {
    /// Blocks and place in the stream.
    pub state: RankState<RestoredBlocks>,
    /// Operations that store the blocks in the index.
    pub ops: SliceOps,
    /// Time at which unconfirmed blocks are removed.
    pub verified_by: Instant,
}

impl<P: KvPort> Feed<P> {
    /// State that snapshots copy.
    #[must_use]
    pub fn state(&self) -> SharedState {
        Rc::clone(&self.state)
    }

    /// Continues from a snapshot. The blocks are posted and count at once, because a wrong block
    /// only costs a miss. Await it before [`Feed::run`]; when dropped early, `run` posts the rest.
    pub async fn restore(&mut self, restored: FeedRestore) {
        let FeedRestore { state, ops, verified_by } = restored;
        let blocks = state.blocks.len();
        self.counters.restored(blocks);
        self.status.set_blocks(blocks);
        self.state.borrow_mut().restore(state, &self.counters);
        self.ops = ops;
        self.verified_by = verified_by;
        self.post().await;
        self.ops.shrink();
        self.settle(FeedState::Connecting).await;
    }

    /// Removes restored blocks that the stream did not confirm.
    pub(crate) fn give_up_restored(&mut self) {
        let reason = ResetReason::Unverified;
        self.state.borrow_mut().reset(reason, &self.counters, &mut self.ops);
        self.status.reset(0);
        info!(
            worker = &*self.worker,
            dp_rank = self.dp_rank.0,
            "restored blocks were not confirmed in time: they are forgotten"
        );
    }

    /// Confirms restored blocks, because the engine's stream contains the snapshot's last batch.
    pub(crate) fn confirm(&self) {
        if self.state.borrow_mut().confirm() {
            info!(
                worker = &*self.worker,
                dp_rank = self.dp_rank.0,
                blocks = self.state.borrow().block_count(),
                "restored blocks are confirmed by the engine"
            );
        }
    }
}

/// Ends at that time if restored blocks are unverified then; never otherwise.
pub(crate) async fn overdue(state: SharedState, at: Instant) {
    let is_unverified = || state.borrow().is_unverified();
    if is_unverified() {
        sleep_until(at).await;
        if is_unverified() {
            return;
        }
    }
    std::future::pending::<()>().await;
}
