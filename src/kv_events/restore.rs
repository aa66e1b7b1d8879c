//! Feeds that go on from a snapshot: what that told is posted at once, and then confirmed by the
//! engine's stream or forgotten, at the latest when its time is over.

use super::counters::ResetReason;
use super::feed::Feed;
use super::port::KvPort;
use super::rank::RankState;
use super::rank_copy::RestoredBlocks;
use super::shared_state::SharedState;
use super::slice_ops::SliceOps;
use super::status::FeedState;
use std::rc::Rc;
use tokio::time::{Instant, sleep_until};
use tracing::info;

/// What a snapshot tells of a rank, ready to go on with.
#[derive(Debug)]
pub struct Restored {
    /// Blocks and place in the stream.
    pub state: RankState<RestoredBlocks>,
    /// What tells the index of the blocks.
    pub ops: SliceOps,
    /// Forgotten if nothing has confirmed it by then.
    pub verified_by: Instant,
}

impl<P: KvPort> Feed<P> {
    /// What snapshots are taken of.
    #[must_use]
    pub fn state(&self) -> SharedState {
        Rc::clone(&self.state)
    }

    /// Goes on from a snapshot. The shards are told, and the blocks count, at once: a wrong one
    /// costs a miss. To be awaited before [`Feed::run`]; when dropped half-way, `run` does the
    /// rest.
    pub async fn restore(&mut self, restored: Restored) {
        let Restored { state, ops, verified_by } = restored;
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

    /// Nothing has confirmed what was restored.
    pub(super) fn give_up_restored(&mut self) {
        let reason = ResetReason::Unverified;
        self.state.borrow_mut().reset(reason, &self.counters, &mut self.ops);
        self.status.reset(0);
        info!(
            worker = &*self.worker,
            dp_rank = self.dp_rank.0,
            "restored blocks were not confirmed in time: they are forgotten"
        );
    }

    /// The engine is where the snapshot says.
    pub(super) fn confirm(&self) {
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

/// Ends when what was restored is unverified at that time; never otherwise.
pub(super) async fn overdue(state: SharedState, at: Instant) {
    let is_unverified = || state.borrow().is_unverified();
    if is_unverified() {
        sleep_until(at).await;
        if is_unverified() {
            return;
        }
    }
    std::future::pending::<()>().await;
}
