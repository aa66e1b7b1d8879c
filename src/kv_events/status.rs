//! Status of a feed, for `/workers` and the metrics. Written by the feed, read by the control
//! plane's loop, both on the control plane's thread.

use super::ranks::text_fit::TextFit;
use std::cell::{Cell, RefCell};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// State of a feed; `/workers` shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FeedState {
    /// Not connected; the rank has no blocks, or unverified blocks of a snapshot.
    #[default]
    Connecting,
    /// Connected, and requesting missed batches.
    Replaying,
    /// Following events; blocks of a snapshot are not confirmed yet.
    Unverified,
    /// Following events, with no unverified blocks.
    Live,
}

impl FeedState {
    /// The word in `/workers`.
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

/// Figures of a feed since its start.
#[derive(Debug, Default)]
pub struct FeedStatus {
    state: Cell<FeedState>,
    /// Time of the last batch; before the first, the time from which on events are followed.
    sign_at: Cell<Option<Instant>>,
    blocks: Cell<usize>,
    breaks: FeedBreaks,
    text: Cell<Option<TextFit>>,
    /// Why the feed has no connection.
    fault: RefCell<Option<String>>,
    /// Wakes the feed to remove the rank's blocks.
    emptied: Notify,
}

/// Breaks of a feed's stream.
#[derive(Debug, Default)]
struct FeedBreaks {
    resets: Cell<u64>,
    restarts: Cell<u64>,
    losses: Cell<u64>,
}

impl FeedStatus {
    /// Removes the rank's blocks soon: the engine has emptied its cache by the router's order, and
    /// reports it only with its next step.
    pub fn empty(&self) {
        self.emptied.notify_one();
    }

    /// Returns after a call of [`Self::empty`].
    pub(super) async fn is_emptied(&self) {
        self.emptied.notified().await;
    }

    #[must_use]
    pub fn state(&self) -> FeedState {
        self.state.get()
    }

    pub(super) fn enter(&self, state: FeedState) {
        self.state.set(state);
        let follows = matches!(state, FeedState::Live | FeedState::Unverified);
        if follows && self.sign_at.get().is_none() {
            self.take_sign();
        }
    }

    fn take_sign(&self) {
        self.sign_at.set(Some(Instant::now()));
    }

    /// Time since the last batch, live or replayed. Before the first batch: since events are
    /// followed, because an endpoint that never sends is silent too.
    #[must_use]
    pub fn quiet(&self) -> Option<Duration> {
        self.sign_at.get().map(|at| at.elapsed())
    }

    /// Records the arrival of a batch, and the number of blocks after it.
    pub(super) fn record_batch(&self, blocks: usize) {
        self.take_sign();
        self.blocks.set(blocks);
    }

    /// Blocks of the rank, by engine hash and group.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.blocks.get()
    }

    /// Number of times that a broken stream cleared the rank's blocks.
    #[must_use]
    pub fn resets(&self) -> u64 {
        self.breaks.resets.get()
    }

    /// Number of times that another process published at the rank's endpoint.
    #[must_use]
    pub fn restarts(&self) -> u64 {
        self.breaks.restarts.get()
    }

    pub(super) fn restarted(&self) {
        self.breaks.restarts.set(self.breaks.restarts.get().saturating_add(1));
    }

    pub(super) fn reset(&self, blocks: usize) {
        self.breaks.resets.set(self.breaks.resets.get().saturating_add(1));
        self.blocks.set(blocks);
    }

    #[must_use]
    pub fn losses(&self) -> u64 {
        self.breaks.losses.get()
    }

    pub(super) fn lost(&self) {
        self.breaks.losses.set(self.breaks.losses.get().saturating_add(1));
    }

    /// Why the last attempt to connect failed, or why the connection ended; `None` once events
    /// come.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        self.fault.borrow().clone()
    }

    pub(super) fn set_fault(&self, fault: Option<String>) {
        *self.fault.borrow_mut() = fault;
    }

    /// Whether blocks and tokenizer fit; `None` before the first evidence.
    #[must_use]
    pub fn text(&self) -> Option<TextFit> {
        self.text.get()
    }

    /// Sets the fit of blocks and tokenizer. True when a mismatch begins, false when it ends.
    pub(super) fn set_text(&self, text: Option<TextFit>) -> Option<bool> {
        let is_mismatch = |text: Option<TextFit>| text == Some(TextFit::Mismatch);
        let before = is_mismatch(self.text.replace(text));
        (before != is_mismatch(text)).then_some(!before)
    }

    pub(super) fn set_blocks(&self, blocks: usize) {
        self.blocks.set(blocks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// M3: an endpoint that never sends is quiet from the time on that the router follows it. A
    /// lost connection is no batch.
    #[test]
    fn silence_before_the_first_batch_counts() {
        let status = FeedStatus::default();
        assert_eq!(status.quiet(), None, "not followed yet");
        status.enter(FeedState::Live);
        let followed = status.sign_at.get();
        assert!(status.quiet().is_some());
        while status.quiet() == Some(Duration::ZERO) {}
        status.enter(FeedState::Connecting);
        status.enter(FeedState::Live);
        assert_eq!(status.sign_at.get(), followed);
        status.record_batch(1);
        assert_ne!(status.sign_at.get(), followed);
    }
}
