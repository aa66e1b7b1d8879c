//! The live page's stream: a snapshot per second of the facts behind `/metrics` and `/workers`.
//! Owned by the control plane's loop, which calls [`LiveFeed::is_due`] at each tick. Without
//! viewers the loop makes no snapshot, only an entry of [`history`]. All viewers share the bytes of
//! a snapshot. Limits: `LIVE_VIEWERS_MAX` viewers. A viewer that does not read misses snapshots,
//! holds at most two unread, and is closed like any silent connection of the admin API.

mod events;
mod history;
mod ranks;
mod snapshot;
mod tenants;

pub use snapshot::LiveSources;

use crate::sources::ScrapeSources;
use axum::body::Bytes;
use events::Events;
use forebay_base::NanosSinceStart;
use forebay_base::limits::LIVE_VIEWERS_MAX;
use forebay_board::Windows;
use forebay_fleet::worker::FleetSnapshot;
use history::History;
use hyper::body::{Body, Frame};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use snapshot::SnapshotParts;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::mpsc::{Receiver, Sender, channel, error::TrySendError};

/// Snapshot period; slightly less than a second, for the loop ticks ten times a second.
const PERIOD: Duration = Duration::from_millis(950);
/// Unread snapshots per viewer.
const UNREAD_MAX: usize = 2;
/// Every tenth snapshot is whole, to resynchronize viewers.
const WHOLE_EVERY: u64 = 10;

/// All viewers, recent events and recent figures.
#[derive(Debug, Default)]
pub struct LiveFeed {
    viewers: Vec<Sender<Bytes>>,
    events: Events,
    shown_at: Option<NanosSinceStart>,
    shown_generation: u64,
    /// The next snapshot must be whole: a viewer is new or has missed a snapshot.
    is_whole_due: bool,
    /// The next snapshot has the history: a viewer is new.
    is_history_due: bool,
    history: History,
    shown_count: u64,
}

/// A snapshot as sent.
#[derive(Serialize)]
struct SentSnapshot<'a> {
    #[serde(flatten)]
    snapshot: Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    history: Option<&'a VecDeque<Box<RawValue>>>,
}

/// Body of a viewer's stream.
#[derive(Debug)]
pub struct LiveViewer(Receiver<Bytes>);

impl LiveFeed {
    /// Adds a viewer, which gets a whole snapshot next; `None` at the limit.
    pub fn join(&mut self) -> Option<LiveViewer> {
        self.viewers.retain(|viewer| !viewer.is_closed());
        if self.viewers.len() >= LIVE_VIEWERS_MAX {
            return None;
        }
        let (viewer, unread) = channel(UNREAD_MAX);
        self.viewers.push(viewer);
        self.is_whole_due = true;
        self.is_history_due = true;
        self.shown_at = None;
        Some(LiveViewer(unread))
    }

    /// Ends all streams: another process takes over the address.
    pub fn end(&mut self) {
        self.viewers.clear();
    }

    /// True if viewers must get a snapshot.
    pub fn is_due(&mut self, now: NanosSinceStart) -> bool {
        self.viewers.retain(|viewer| !viewer.is_closed());
        let is_time = self.shown_at.is_none_or(|at| now >= at.plus(PERIOD));
        is_time && !self.viewers.is_empty()
    }

    /// True if the figures of this moment must be remembered, for viewers that come later.
    #[must_use]
    pub fn is_history_due(&self, now: NanosSinceStart) -> bool {
        self.history.is_due(now, PERIOD)
    }

    /// Remembers the figures of this moment.
    pub fn remember(&mut self, sources: &ScrapeSources<'_>) {
        self.history.add(sources);
    }

    /// Makes a snapshot and sends it to all viewers.
    pub fn show(&mut self, sources: &LiveSources<'_, '_, '_>) {
        let fleet = &sources.scrape.fleet;
        let is_whole = std::mem::take(&mut self.is_whole_due)
            || fleet.fleet.generation != self.shown_generation
            || self.shown_count.is_multiple_of(WHOLE_EVERY);
        let parts =
            SnapshotParts { sources, is_whole, events: self.events.list(is_whole, fleet.now) };
        let is_history_due = std::mem::take(&mut self.is_history_due);
        let history = is_history_due.then(|| self.history.entries());
        let sent = SentSnapshot { snapshot: parts.shown(), history };
        let Ok(text) = serde_json::to_string(&sent) else { return };
        let text = Bytes::from(format!("data: {text}\n\n"));
        self.shown_at = Some(fleet.now);
        self.shown_generation = fleet.fleet.generation;
        self.shown_count += 1;
        let mut has_missed = false;
        self.viewers.retain(|viewer| match viewer.try_send(text.clone()) {
            Ok(()) => true,
            Err(TrySendError::Full(_)) => {
                has_missed = true;
                true
            }
            Err(TrySendError::Closed(_)) => false,
        });
        self.is_whole_due = has_missed;
    }

    /// Records events of a fleet change.
    pub fn changed(&mut self, before: &FleetSnapshot, now: NanosSinceStart, fleet: &FleetSnapshot) {
        self.events.compare(before, fleet, now);
    }

    /// Records windows that opened or closed.
    pub fn observe(&mut self, fleet: &FleetSnapshot, windows: &Windows, now: NanosSinceStart) {
        self.events.observe(fleet, windows, now);
    }

    /// Records a rank's ejection or return.
    pub fn ejected(&mut self, kind: &'static str, text: String, now: NanosSinceStart) {
        self.events.push(kind, text, now);
    }

    /// Records a reload of the configuration.
    pub fn reloaded(&mut self, text: String, now: NanosSinceStart) {
        self.events.push("reload", text, now);
    }
}

impl Body for LiveViewer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|text| text.map(|text| Ok(Frame::data(text))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_made_for_nobody_and_viewers_are_bounded() {
        let mut feed = LiveFeed::default();
        assert!(!feed.is_due(NanosSinceStart(0)));
        let viewers: Vec<_> = std::iter::from_fn(|| feed.join()).take(100).collect();
        assert_eq!(viewers.len(), LIVE_VIEWERS_MAX);
        assert!(feed.is_due(NanosSinceStart(0)), "at once for who has just come");
        feed.shown_at = Some(NanosSinceStart(0));
        assert!(!feed.is_due(NanosSinceStart(1)));
        assert!(feed.is_due(NanosSinceStart(0).plus(PERIOD)));
        drop(viewers);
        assert!(!feed.is_due(NanosSinceStart(0).plus(PERIOD)), "all have gone");
        assert!(feed.join().is_some());
    }
}
