//! Status of a feed, for `/workers` and the metrics. Written by the feed, read by the control
//! plane's loop, both on the control plane's thread.

use super::ranks::text_fit::TextFit;
use std::cell::{Cell, RefCell};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Advice for a feed that does not connect to an engine that is up.
pub const FEED_HELP: &str = "correct `kv_events`, or the publisher of the engine";

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
    /// A batch of the rank has come in the live stream.
    has_live_batch: Cell<bool>,
    blocks: Cell<usize>,
    breaks: FeedBreaks,
    text: Cell<Option<TextFit>>,
    fault: RefCell<Option<FeedFault>>,
    /// Wakes the feed to remove the rank's blocks.
    emptied: Notify,
}

/// Why a feed has no connection.
#[derive(Debug)]
struct FeedFault {
    /// Of the last attempt to connect.
    reason: String,
    /// End of the first failed attempt. Further attempts keep it: health checks that take longer
    /// than the time between attempts would never enclose the last attempt.
    failed_at: Instant,
    /// The next failed attempt sets `failed_at` anew: the state of the worker explains this
    /// failure, or no check began before the failure.
    is_renewed: bool,
    /// The worker is healthy, so its state does not explain the fault.
    is_of_feed: bool,
}

/// Health of a worker at the time of a fault, by the checks around that time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthAtFault {
    /// A check before and a check after the fault passed, and none failed between.
    Passed,
    /// The last check failed.
    Failed,
    /// The first of the passed checks began after the fault.
    Unchecked,
}

fn now() -> Instant {
    Instant::now()
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
        self.sign_at.set(Some(now()));
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

    /// Records a batch of the rank in the live stream.
    pub(super) fn mark_live_batch(&self) {
        self.has_live_batch.set(true);
    }

    /// True while the rank is followed and its live stream has not had a batch. Replays have no
    /// topic, so that they prove nothing of the stream.
    #[must_use]
    pub fn awaits_first_batch(&self) -> bool {
        let follows = matches!(self.state(), FeedState::Live | FeedState::Unverified);
        follows && !self.has_live_batch.get()
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
    /// come. `None` also until [`Self::weigh_fault`] has found the worker healthy: an engine that
    /// is gone has its own reason, and the reason of its feed follows from it.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        let fault = self.fault.borrow();
        fault.as_ref().filter(|fault| fault.is_of_feed).map(|fault| fault.reason.clone())
    }

    /// Decides whether a fault is the feed's own. `health` gets the time since the first failed
    /// attempt; its `None` changes nothing.
    pub fn weigh_fault(&self, health: impl FnOnce(Duration) -> Option<HealthAtFault>) {
        if let Some(fault) = self.fault.borrow_mut().as_mut()
            && let Some(health) = health(fault.failed_at.elapsed())
        {
            match health {
                HealthAtFault::Passed => fault.is_of_feed = true,
                HealthAtFault::Failed => fault.is_of_feed = false,
                HealthAtFault::Unchecked => {}
            }
            fault.is_renewed = health != HealthAtFault::Passed;
        }
    }

    /// A further attempt to connect has failed, or the connection has ended.
    pub(super) fn set_fault(&self, reason: String) {
        let mut fault = self.fault.borrow_mut();
        let before = fault.as_ref();
        let is_of_feed = before.is_some_and(|before| before.is_of_feed);
        let kept = before.filter(|before| !before.is_renewed);
        let failed_at = kept.map_or_else(now, |before| before.failed_at);
        *fault = Some(FeedFault { reason, failed_at, is_renewed: false, is_of_feed });
    }

    /// The feed follows events again.
    pub(super) fn clear_fault(&self) {
        *self.fault.borrow_mut() = None;
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

    /// M1: a feed's fault is shown once the worker is known to be healthy, and until it is not.
    #[test]
    fn a_fault_waits_for_the_state_of_the_worker() {
        use HealthAtFault::{Failed, Passed};
        let status = FeedStatus::default();
        status.weigh_fault(|_| Some(Passed));
        assert_eq!(status.fault(), None);
        status.set_fault("refused".to_owned());
        assert_eq!(status.fault(), None, "the engine may be gone");
        status.weigh_fault(|_| None);
        assert_eq!(status.fault(), None);
        status.weigh_fault(|_| Some(Passed));
        assert_eq!(status.fault().as_deref(), Some("refused"));
        status.set_fault("refused again".to_owned());
        status.weigh_fault(|_| None);
        assert_eq!(status.fault().as_deref(), Some("refused again"), "stays between checks");
        status.weigh_fault(|_| Some(Failed));
        assert_eq!(status.fault(), None, "the worker fails its checks");
        status.weigh_fault(|_| Some(Passed));
        status.clear_fault();
        status.set_fault("lost".to_owned());
        assert_eq!(status.fault(), None, "another loss");
    }

    /// M1: checks that take longer than the time between attempts. The fault is weighed by its
    /// first attempt, until the worker's state explains it.
    #[test]
    fn a_fault_keeps_the_time_of_its_first_attempt() {
        use HealthAtFault::{Failed, Passed, Unchecked};
        let status = FeedStatus::default();
        let fail = |reason: &str| {
            let before = now();
            while now() == before {}
            status.set_fault(reason.to_owned());
            status.fault.borrow().as_ref().unwrap().failed_at
        };
        let weigh = |health| status.weigh_fault(|_| health);
        let first = fail("refused");
        weigh(None);
        assert_eq!(fail("timed out"), first, "a check is on its way");
        weigh(Some(Unchecked));
        let second = fail("timed out");
        assert_ne!(second, first, "no check began before the first attempt");
        assert_eq!(fail("closed"), second);
        assert_eq!(status.fault(), None);
        weigh(Some(Passed));
        assert_eq!(status.fault().as_deref(), Some("closed"), "the last reason");
        assert_eq!(fail("closed"), second);
        weigh(Some(Failed));
        let third = fail("closed");
        assert_ne!(third, second, "the worker's state explains what was before");
        status.clear_fault();
        assert_ne!(fail("closed"), third, "another loss");
    }

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
