//! [`RankFeed`](super::RankFeed): the batches applied before.

use super::super::sequence::{BatchArrival, Mark};
use super::{KvMessage, RankFeed};
use crate::paths::naming::BlockText;

impl<T: BlockText> RankFeed<T> {
    /// Compares a message with the messages applied before. Changes nothing.
    #[must_use]
    pub fn arrival(&self, message: &KvMessage<'_>) -> BatchArrival {
        self.sequence.judge(message.mark)
    }

    /// Number of the last batch applied.
    #[must_use]
    pub fn last_number(&self) -> Option<u64> {
        self.sequence.last()
    }

    /// The last batch applied.
    pub(crate) fn last_mark(&self) -> Option<Mark> {
        self.sequence.last_mark()
    }

    /// Number of the batch at which a replay begins.
    #[must_use]
    pub fn replay_from(&self) -> Option<u64> {
        self.sequence.replay_from()
    }

    /// Records that a replay was complete.
    pub fn replayed(&mut self) {
        self.sequence.confirm();
    }

    /// Remembers batches from now on, because the live stream may repeat batches of a replay.
    pub fn expect_repeats(&mut self) {
        self.sequence.expect_repeats();
    }

    /// Frees memory of a stream that has been silent for a while.
    pub fn rest(&mut self) {
        self.sequence.rest();
    }

    /// Stops remembering batches, because the live stream is past the replay.
    pub fn no_more_repeats(&mut self) {
        self.sequence.no_more_repeats();
    }
}
