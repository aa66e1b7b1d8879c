//! Steps of the ejection on their way to the board and to the log. Each step that a viewer of the
//! live page sees becomes an [`RankEvent`].

use super::{Ejection, EjectionStep, RankLook};
use crate::environment::Environment;
use forebay_base::{NanosSinceStart, RankIndex, WorkerIndex};
use forebay_board::{EjectReason, RankLoad};
use forebay_fleet::worker::{FleetSnapshot, Rank, Worker};
use forebay_load::LoadReporter;
use std::time::Duration;
use tracing::{info, warn};

/// A rank was ejected, paused or readmitted, or fails requests.
#[derive(Debug)]
pub(crate) struct RankEvent {
    /// Kind of the event on the live page.
    pub(crate) kind: &'static str,
    pub(crate) text: String,
    /// Rank that serves again, and gets requests slowly at first.
    pub(crate) slow_start: Option<(WorkerIndex, RankIndex)>,
}

impl RankEvent {
    /// The number of the rank stands only where its worker has several.
    pub(in crate::reports) fn new(
        kind: &'static str,
        rank: &Rank,
        worker: &Worker,
        words: &str,
    ) -> Self {
        let name = &*worker.name;
        let text = match rank.dp_size {
            0 | 1 => format!("{name} {words}"),
            _ => format!("{name}, rank {}, {words}", rank.dp_rank.0),
        };
        Self { kind, text, slow_start: None }
    }
}

impl Ejection {
    /// Reads the signs of all ranks off the board and the load reports, and puts the decisions on
    /// the board.
    pub(crate) fn tick(
        &mut self,
        env: &Environment,
        fleet: &FleetSnapshot,
        reporter: &LoadReporter,
        now: NanosSinceStart,
    ) -> Vec<RankEvent> {
        let look = |rank| {
            env.board.rank(rank).map_or_else(RankLook::default, |load| RankLook {
                answers: load.signs().take_answers(),
                awaited: load.signs().take_awaited(),
                moved_at: reporter.moved_at(rank),
                first_bytes: load.signs().take_first_bytes(),
                is_restricted: load.is_restricted_to_all(),
                is_tried: load.is_tried(),
            })
        };
        let mut events = Vec::new();
        for (rank, step) in self.observe(fleet, now, look) {
            let event = logged(fleet, rank, step, now);
            let slow_start = put_on_board(env, fleet, rank, step);
            events.extend(event.map(|event| RankEvent { slow_start, ..event }));
        }
        for (rank, until) in self.ejected() {
            if let Some(load) = env.board.rank(rank) {
                load.keep_ejected(until);
            }
        }
        events
    }
}

/// The rank, if it serves again and starts slowly.
fn put_on_board(
    env: &Environment,
    fleet: &FleetSnapshot,
    rank: RankIndex,
    step: EjectionStep,
) -> Option<(WorkerIndex, RankIndex)> {
    let load: &RankLoad = env.board.rank(rank)?;
    match step {
        EjectionStep::Eject { reason, until } => load.eject(reason, until),
        EjectionStep::LetTry => load.let_try(),
        EjectionStep::Readmit => load.readmit(),
    }
    // A request that waits for this rank alone has to choose again, or can be sent now.
    env.board.room_made(rank);
    let (shown, _) = fleet.rank(rank)?;
    let starts_slowly = !env.config.health.slow_start.is_zero();
    (step == EjectionStep::Readmit && starts_slowly).then_some((shown.worker, rank))
}

/// Logs the step. A trial is no event.
fn logged(
    fleet: &FleetSnapshot,
    rank: RankIndex,
    step: EjectionStep,
    now: NanosSinceStart,
) -> Option<RankEvent> {
    let (shown, worker) = fleet.rank(rank)?;
    let name = &*worker.name;
    let dp_rank = shown.dp_rank.0;
    let (kind, words) = match step {
        EjectionStep::LetTry => return None,
        EjectionStep::Readmit => {
            info!(worker = name, dp_rank, "the rank is ejected no more");
            ("readmitted", "gets requests again")
        }
        EjectionStep::Eject { reason, until } => {
            let pause_ms = Duration::from_nanos(until.since(now)).as_millis();
            let words = match reason {
                EjectReason::Stalled => "is ejected: streams wait there, and nothing moves",
                EjectReason::Slow => "is ejected: its first bytes come far later than others",
            };
            let reason = reason.name();
            warn!(worker = name, dp_rank, reason, pause_ms, "the rank {words}");
            ("ejected", words)
        }
    };
    Some(RankEvent::new(kind, shown, worker, words))
}
