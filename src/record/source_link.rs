//! The connection to a source of a recording: when to connect again, and the lines of the log. A
//! connection is up once it has brought a message, or has lasted for [`STEADY`]. A server that
//! accepts each connection and ends it at once is a single loss in the log, and is tried ever more
//! seldom.

use std::cell::Cell;
use std::fmt::Display;
use std::rc::Rc;
use std::time::Duration;
use tracing::{info, warn};

/// A connection that has lasted for so long is up, also without a message.
pub const STEADY: Duration = Duration::from_secs(1);
/// Pause before the first reconnection; doubles up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// The connection to a source. The log has a line for each change of its state.
#[derive(Debug)]
pub struct SourceLink {
    endpoint: String,
    state: SourceLinkState,
    pause: Duration,
    is_reached: Rc<Cell<bool>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SourceLinkState {
    /// The log has no line yet.
    New,
    Up,
    Lost,
}

impl SourceLink {
    /// `endpoint`: for the log.
    #[must_use]
    pub fn new(endpoint: String) -> Self {
        Self { endpoint, state: SourceLinkState::New, pause: PAUSE_MIN, is_reached: Rc::default() }
    }

    /// True once a connection has come up, for the end of the recording.
    #[must_use]
    pub fn is_reached(&self) -> Rc<Cell<bool>> {
        Rc::clone(&self.is_reached)
    }

    /// The server has accepted the connection. It may end it at once.
    pub fn mark_reached(&self) {
        self.is_reached.set(true);
    }

    #[must_use]
    pub fn is_up(&self) -> bool {
        self.state == SourceLinkState::Up
    }

    /// The connection has brought a message, or has lasted for [`STEADY`].
    pub fn mark_up(&mut self) {
        self.pause = PAUSE_MIN;
        if !self.is_up() {
            info!(endpoint = self.endpoint, "recording");
            self.state = SourceLinkState::Up;
        }
    }

    /// The connection has ended, or did not come up. Returns the pause before the next attempt.
    pub fn mark_lost(&mut self, error: impl Display) -> Duration {
        if self.state != SourceLinkState::Lost {
            warn!(endpoint = self.endpoint, %error, "not connected; trying again");
            self.state = SourceLinkState::Lost;
        }
        let pause = self.pause;
        self.pause = (pause * 2).min(PAUSE_MAX);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_without_a_message_is_no_change() {
        let mut link = SourceLink::new("e".to_owned());
        let is_reached = link.is_reached();
        assert!(!is_reached.get());
        let mut pauses = Vec::new();
        for _ in 0..8 {
            link.mark_reached();
            pauses.push(link.mark_lost("it ended").as_millis());
        }
        assert_eq!(pauses, [50, 100, 200, 400, 800, 1_600, 2_000, 2_000]);
        assert!(is_reached.get() && !link.is_up());
        link.mark_up();
        assert!(link.is_up());
        assert_eq!(link.mark_lost("it ended").as_millis(), 50, "a message came");
    }
}
