//! What one feed is doing, for `/workers` and the metrics. Written by the feed, read by the control
//! plane's loop, both on its thread.

use super::text_fit::TextFit;
use std::cell::Cell;
use std::time::Duration;
use tokio::time::Instant;

/// Where a feed is; the words are what `/workers` shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FeedState {
    /// Not connected: nothing is known of the rank.
    #[default]
    Connecting,
    /// Connected and asking for what was missed.
    Replaying,
    /// Following, but what a snapshot told is not confirmed yet.
    Unverified,
    /// Following.
    Live,
}

impl FeedState {
    /// Its word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Replaying => "replaying",
            Self::Unverified => "unverified",
            Self::Live => "live",
        }
    }
}

/// Figures of one feed since it was started.
#[derive(Debug, Default)]
pub struct FeedStatus {
    state: Cell<FeedState>,
    batch_at: Cell<Option<Instant>>,
    blocks: Cell<usize>,
    resets: Cell<u64>,
    losses: Cell<u64>,
    text: Cell<Option<TextFit>>,
}

impl FeedStatus {
    /// Where it is.
    #[must_use]
    pub fn state(&self) -> FeedState {
        self.state.get()
    }

    pub(super) fn enter(&self, state: FeedState) {
        self.state.set(state);
    }

    /// Time since the last batch, live or replayed; `None` before the first.
    #[must_use]
    pub fn quiet(&self) -> Option<Duration> {
        self.batch_at.get().map(|at| at.elapsed())
    }

    /// A batch came, after which so many blocks are held.
    pub(super) fn record_batch(&self, blocks: usize) {
        self.batch_at.set(Some(Instant::now()));
        self.blocks.set(blocks);
    }

    /// Blocks held.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.blocks.get()
    }

    /// Times its blocks were forgotten because the stream was not whole.
    #[must_use]
    pub fn resets(&self) -> u64 {
        self.resets.get()
    }

    pub(super) fn reset(&self, blocks: usize) {
        self.resets.set(self.resets.get().saturating_add(1));
        self.blocks.set(blocks);
    }

    /// Connections lost.
    #[must_use]
    pub fn losses(&self) -> u64 {
        self.losses.get()
    }

    pub(super) fn lost(&self) {
        self.losses.set(self.losses.get().saturating_add(1));
    }

    /// Do its blocks fit the tokenizer? `None` before any has shown it.
    #[must_use]
    pub fn text(&self) -> Option<TextFit> {
        self.text.get()
    }

    /// True when a mismatch begins.
    pub(super) fn judge(&self, text: Option<TextFit>) -> bool {
        let before = self.text.replace(text);
        text == Some(TextFit::Mismatch) && before != text
    }

    pub(super) fn set_blocks(&self, blocks: usize) {
        self.blocks.set(blocks);
    }
}
