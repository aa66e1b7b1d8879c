//! One timer per connection, moved lazily: setting a later deadline costs a store, not a timer
//! operation.

use forebay_base::{Clock, NanosSinceStart};
use forebay_net::Timer;
use std::task::{Context, Poll};
use std::time::Duration;

/// The moment at which the current wait of a connection is given up.
#[derive(Debug)]
pub struct Deadline {
    clock: Clock,
    at: NanosSinceStart,
    /// Time given to a wait that has not begun: most never do, and then nobody needs to look at the
    /// clock.
    given: Option<Duration>,
    timer: Timer,
}

impl Deadline {
    /// No deadline yet.
    #[must_use]
    pub const fn new(clock: Clock) -> Self {
        Self { clock, at: NanosSinceStart(u64::MAX), given: None, timer: Timer::new() }
    }

    /// Sets it to `after` from when it is next polled.
    pub const fn set(&mut self, after: Duration) {
        self.given = Some(after);
    }

    /// Sets it to a moment.
    pub const fn set_at(&mut self, at: NanosSinceStart) {
        self.given = None;
        self.at = at;
    }

    /// Moves it to `at`, unless it is earlier already.
    pub fn set_at_most(&mut self, at: NanosSinceStart) {
        self.begin();
        self.at = self.at.min(at);
    }

    /// The present, by the clock that decides.
    #[must_use]
    pub fn now(&self) -> NanosSinceStart {
        self.clock.now()
    }

    /// Ready when it has passed.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.begin();
        self.timer.poll_until(self.at, cx)
    }

    fn begin(&mut self) {
        if let Some(after) = self.given.take() {
            // The time of the turn: no clock is read for each wait.
            self.at = forebay_net::now().unwrap_or_else(|| self.clock.now()).plus(after);
        }
    }
}
