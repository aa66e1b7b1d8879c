//! Timetable of the end of the router: unready, draining, cut, given up.

use forebay_base::NanosSinceStart;
use forebay_config::TimeoutsConfig;
use forebay_mailbox::{DrainOrder, ShardCommand};
use std::time::Duration;

/// Time that a connection without a request has when a drain begins: a client that keeps it may
/// have sent its next request already.
const SILENCE_MAX: Duration = Duration::from_secs(1);
/// Time after the drain's deadline in which shards have to end.
const AFTER_DRAIN_MAX: Duration = Duration::from_secs(5);

/// An end that has begun.
#[derive(Clone, Copy, Debug)]
pub(super) struct Drain {
    /// Until then the router is unready, and still accepts connections.
    begins_at: NanosSinceStart,
    order: DrainOrder,
}

impl Drain {
    /// An end that waits for running requests. `has_heir`: another process has the sockets.
    pub(super) fn new(now: NanosSinceStart, timeouts: &TimeoutsConfig, has_heir: bool) -> Self {
        let begins_at = now.plus(timeouts.drain_delay);
        let order = DrainOrder {
            silent_until: begins_at.plus(SILENCE_MAX.min(timeouts.drain)),
            deadline: begins_at.plus(timeouts.drain),
            is_handed_over: false,
            has_heir,
        };
        Self { begins_at, order }
    }

    /// An end after which another process serves, so that clients have time.
    pub(super) fn handed_over(now: NanosSinceStart, timeouts: &TimeoutsConfig) -> Self {
        let deadline = now.plus(timeouts.drain);
        let order =
            DrainOrder { silent_until: deadline, deadline, is_handed_over: true, has_heir: true };
        Self { begins_at: now, order }
    }

    /// Another process serves by now.
    pub(super) fn is_handed_over(&self) -> bool {
        self.order.is_handed_over
    }

    /// The same end without any further wait.
    pub(super) fn cut(self, now: NanosSinceStart) -> Self {
        let order = DrainOrder { silent_until: now, deadline: now, ..self.order };
        Self { begins_at: now, order }
    }

    /// Command for the shards at that time.
    pub(super) fn command(&self, now: NanosSinceStart) -> ShardCommand {
        let drains = ShardCommand::Drain(self.order);
        if now >= self.begins_at { drains } else { ShardCommand::Unready }
    }

    /// True once it is too late for a shard to end.
    pub(super) fn is_given_up(&self, now: NanosSinceStart) -> bool {
        now > self.order.deadline.plus(AFTER_DRAIN_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_goes_from_step_to_step() {
        let s = |seconds| NanosSinceStart::default().plus(Duration::from_secs(seconds));
        let timeouts = TimeoutsConfig {
            drain: Duration::from_secs(30),
            drain_delay: Duration::from_secs(5),
            ..TimeoutsConfig::default()
        };
        let drain = Drain::new(s(10), &timeouts, true);
        assert_eq!(drain.command(s(14)), ShardCommand::Unready);
        let order = DrainOrder {
            silent_until: s(16),
            deadline: s(45),
            is_handed_over: false,
            has_heir: true,
        };
        assert_eq!(drain.command(s(15)), ShardCommand::Drain(order));
        assert_eq!([50, 51].map(|at| drain.is_given_up(s(at))), [false, true]);
        let cut = DrainOrder { silent_until: s(20), deadline: s(20), ..order };
        assert_eq!(drain.cut(s(20)).command(s(20)), ShardCommand::Drain(cut));
        assert!(Drain::handed_over(s(10), &timeouts).cut(s(20)).is_handed_over());
        let short = TimeoutsConfig { drain: Duration::from_millis(100), ..timeouts };
        let ShardCommand::Drain(order) = Drain::new(s(0), &short, false).command(s(9)) else {
            panic!()
        };
        assert_eq!(order.silent_until, order.deadline);
    }
}
