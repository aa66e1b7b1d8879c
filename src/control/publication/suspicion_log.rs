//! Log of ranks with KV events that may belong to another rank.

use forebay_base::WorkerIndex;
use forebay_fleet::worker::{FeedSuspicion, FleetSnapshot, Rank};
use tracing::{info, warn};

/// A line of the log about the KV events of a rank.
#[derive(Debug, PartialEq, Eq)]
enum SuspicionLine<'a> {
    /// The suspicion begins, or is about other endpoints than before.
    Begins(&'a FeedSuspicion),
    /// The suspicion ends. An end is no proof: the other engine may have left alone.
    Ends { other: Option<&'a str>, because: &'static str },
}

/// Logs each suspicion that begins or ends with a new fleet.
pub(super) fn log_suspicions(before: &FleetSnapshot, after: &FleetSnapshot) {
    for (place, rank) in after.ranks.iter().enumerate() {
        let was = before.ranks.get(place).and_then(|was| was.feed_suspicion.as_deref());
        let worker = after.workers.get(rank.worker.index()).map_or("", |worker| &*worker.name);
        if let Some(line) = line(was, rank, after) {
            line.write(worker, rank.dp_rank.0);
        }
    }
}

/// `was`: the suspicion about the rank in the fleet before.
fn line<'a>(
    was: Option<&'a FeedSuspicion>,
    rank: &'a Rank,
    after: &FleetSnapshot,
) -> Option<SuspicionLine<'a>> {
    let answers = |worker: WorkerIndex| {
        after.workers.get(worker.index()).is_some_and(|worker| worker.state.answers())
    };
    match (was, rank.feed_suspicion.as_deref()) {
        (Some(was), Some(is)) if was.is_like(is) => None,
        (_, Some(is)) => Some(SuspicionLine::Begins(is)),
        (Some(was), None) => {
            let other = was.other();
            let because = match (answers(rank.worker), other.map(|other| answers(other.worker))) {
                (false, _) => "the worker is down or gone",
                (true, Some(false)) => "the other worker is down or gone",
                (true, Some(true)) => "the endpoints have changed",
                (true, None) => "the feed is another, or its batches fit",
            };
            Some(SuspicionLine::Ends { other: other.map(|other| &*other.name), because })
        }
        (None, None) => None,
    }
}

impl SuspicionLine<'_> {
    fn write(self, worker: &str, dp_rank: u32) {
        match self {
            Self::Begins(suspicion) => warn!(
                worker,
                dp_rank,
                cause = suspicion.cause(),
                help = suspicion.help(),
                "suspect KV events: predictions for this rank may be wrong"
            ),
            Self::Ends { other, because } => {
                info!(worker, dp_rank, other, because, "KV events are suspect no more");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_fleet::worker::test_support::{self, rank, worker};
    use forebay_fleet::worker::{Worker, WorkerState};
    use std::sync::Arc;

    const CROSSED: Option<&str> = Some("tcp://h:7");

    /// Two workers with a rank each. `announced`: of a suspicion about the first rank.
    fn fleet(states: [WorkerState; 2], suspicion: Option<Option<&str>>) -> FleetSnapshot {
        let suspicion = suspicion.map(|announced| Arc::new(test_support::suspicion(announced)));
        let mut fleet = FleetSnapshot {
            workers: states.map(|state| Worker { state, ..worker() }).into(),
            ranks: vec![rank(0), rank(1)],
            ..FleetSnapshot::default()
        };
        fleet.ranks[0].feed_suspicion = suspicion;
        fleet
    }

    /// Issue 39: a pair whose worker left had no end, and a pair that then shared an endpoint had
    /// the line of KV events of its own again.
    #[test]
    fn each_suspicion_has_an_end_and_a_change_has_none() {
        let up = WorkerState::Up;
        let words = |before: Option<Option<&str>>, states, after| {
            let before = fleet([up, up], before);
            let after = fleet(states, after);
            let was = before.ranks[0].feed_suspicion.as_deref();
            line(was, &after.ranks[0], &after).map(|line| match line {
                SuspicionLine::Begins(suspicion) => suspicion.cause(),
                SuspicionLine::Ends { because, .. } => because.to_owned(),
            })
        };
        let begins = |announced| words(None, [up, up], Some(announced)).unwrap();
        assert!(begins(CROSSED).contains("announces tcp://h:7"), "{}", begins(CROSSED));
        assert_eq!(begins(None), "tcp://h:9 is followed for b too");
        assert_eq!(words(Some(CROSSED), [up, up], Some(CROSSED)), None);
        assert_eq!(words(Some(CROSSED), [up, up], Some(None)), Some(begins(None)));
        assert_eq!(words(None, [up, up], None), None);
        let ends = |states| words(Some(CROSSED), states, None).unwrap();
        assert_eq!(ends([up, up]), "the endpoints have changed");
        for state in [WorkerState::Down, WorkerState::Gone, WorkerState::Unknown] {
            assert_eq!(ends([up, state]), "the other worker is down or gone");
            assert_eq!(ends([state, up]), "the worker is down or gone");
        }
    }
}
