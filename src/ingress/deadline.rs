//! One timer per connection, moved lazily: setting a later deadline costs a store, not a timer
//! operation.

use forebay_base::{Clock, NanosSinceStart};
use monoio::time::{Instant, Sleep, sleep_until};
use std::future::Future;
use std::pin::Pin;
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
    timer: Option<(Pin<Box<Sleep>>, NanosSinceStart)>,
}

impl Deadline {
    /// No deadline yet.
    #[must_use]
    pub const fn new(clock: Clock) -> Self {
        Self { clock, at: NanosSinceStart(u64::MAX), given: None, timer: None }
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

    /// The present, by the clock that decides.
    #[must_use]
    pub fn now(&self) -> NanosSinceStart {
        self.clock.now()
    }

    /// Ready when it has passed. The timer may fire early, for a deadline that has since moved;
    /// then it is set anew.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(after) = self.given.take() {
            self.at = self.clock.now().plus(after);
        }
        loop {
            let (sleep, _) = match &mut self.timer {
                Some((sleep, fires_at)) if *fires_at <= self.at => (sleep, fires_at),
                timer => {
                    let until =
                        Instant::now() + Duration::from_nanos(self.at.since(self.clock.now()));
                    match timer {
                        Some((sleep, fires_at)) => {
                            sleep.as_mut().reset(until);
                            *fires_at = self.at;
                            (sleep, fires_at)
                        }
                        None => {
                            let (sleep, fires_at) =
                                timer.insert((Box::pin(sleep_until(until)), self.at));
                            (sleep, fires_at)
                        }
                    }
                }
            };
            if sleep.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            if self.clock.now() >= self.at {
                return Poll::Ready(());
            }
            // Fired for an earlier deadline.
            self.timer = None;
        }
    }
}
