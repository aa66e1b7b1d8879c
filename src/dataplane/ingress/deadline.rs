//! A timer per connection, moved lazily: setting a later deadline costs a store, not a timer
//! operation.

use forebay_base::{Clock, NanosSinceStart};
use forebay_net::Timer;
use std::task::{Context, Poll};
use std::time::Duration;

/// Deadline of a connection's current wait.
#[derive(Debug)]
pub struct Deadline {
    clock: Clock,
    at: NanosSinceStart,
    /// Timeout of a wait that has not begun: most waits never begin, and then no clock is read.
    given: Option<Duration>,
    timer: Timer,
}

impl Deadline {
    #[must_use]
    pub const fn new(clock: Clock) -> Self {
        Self { clock, at: NanosSinceStart(u64::MAX), given: None, timer: Timer::new() }
    }

    /// Sets the deadline to `after` its next poll.
    pub const fn set(&mut self, after: Duration) {
        self.given = Some(after);
    }

    /// Sets the deadline to a point in time.
    pub const fn set_at(&mut self, at: NanosSinceStart) {
        self.given = None;
        self.at = at;
    }

    /// Moves the deadline to `at`, unless it is earlier already.
    pub fn set_at_most(&mut self, at: NanosSinceStart) {
        self.begin();
        self.at = self.at.min(at);
    }

    /// The time of the clock that the deadline uses.
    #[must_use]
    pub fn now(&self) -> NanosSinceStart {
        self.clock.now()
    }

    /// Ready when the deadline has passed.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.begin();
        self.timer.poll_until(self.at, cx)
    }

    fn begin(&mut self) {
        if let Some(after) = self.given.take() {
            // Uses the time of the turn: no clock is read for each wait.
            self.at = forebay_net::now().unwrap_or_else(|| self.clock.now()).plus(after);
        }
    }
}
