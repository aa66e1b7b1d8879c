//! Ranks that fail requests: a line of the log with advice, and an event of the live page.

use super::RankEvent;
use super::failing_ranks::{FailingRanks, LoggedStatus, shown};
use forebay_admin::failure_help;
use forebay_base::{NanosSinceStart, RankIndex};
use forebay_board::{HeldFailures, LoadBoard};
use forebay_fleet::worker::FleetSnapshot;
use std::collections::BTreeMap;
use tracing::{info, warn};

/// Pauses after which a rank is logged: after a chance failure a rank serves again earlier.
const PAUSES_NAMED: u32 = 2;

/// Ranks that were logged.
#[derive(Debug, Default)]
pub(super) struct Outliers {
    named: BTreeMap<RankIndex, LoggedStatus>,
    failing: FailingRanks,
}

impl Outliers {
    /// Logs ranks that were paused again and again, ranks on which every request fails, and ranks
    /// that serve again.
    pub(super) fn log_changes(
        &mut self,
        fleet: &FleetSnapshot,
        board: &LoadBoard,
        now: NanosSinceStart,
    ) -> Vec<RankEvent> {
        let mut events = Vec::new();
        let named = &mut self.named;
        named.retain(|&rank, _| fleet.has(rank));
        self.failing.retain(|rank| fleet.has(rank));
        for (index, rank, worker) in fleet.present() {
            let Some(load) = board.rank(index) else { continue };
            if let Some(change) = self.failing.observe(index, load, now) {
                events.push(change.log(rank, worker));
            }
            let held = load.held();
            let dp_rank = rank.dp_rank.0;
            let logged = named.get_mut(&index);
            let change = held.zip(logged).and_then(|(held, logged)| logged.take_change(held, now));
            events.extend(change.map(|change| change.log(rank, worker)));
            match held.filter(|held| held.pauses >= PAUSES_NAMED) {
                Some(held) if !named.contains_key(&index) => {
                    named.insert(index, LoggedStatus::new(held.status, now));
                    let HeldFailures { status, pauses, .. } = held;
                    let has_key = worker.api_key.is_some();
                    warn!(
                        worker = &*worker.name,
                        dp_rank,
                        status = shown(status),
                        pauses,
                        help = failure_help(status, has_key, true),
                        "the rank fails requests that others serve: it gets single requests until \
                         it serves them"
                    );
                    let words = "is paused: it fails requests that others serve";
                    events.push(RankEvent::new("failing", rank, worker, words));
                }
                None if held.is_none() && named.remove(&index).is_some() => {
                    info!(worker = &*worker.name, dp_rank, "the rank is paused no more");
                    events.push(RankEvent::new("serving", rank, worker, "is paused no more"));
                }
                _ => {}
            }
        }
        events
    }
}
