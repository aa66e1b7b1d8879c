//! The log tells of workers that are new: at start of all of them together.

use super::super::reports::report;
use super::Control;
use forebay_config::Policy;
use tracing::{info, warn};

impl Control {
    /// Tells of workers that were not told of, or had not answered then. Waits for those of the
    /// start.
    pub(super) fn report_new(&mut self) {
        let Self { fleet, reported, unheard, setup, .. } = self;
        if !unheard.is_empty() {
            return;
        }
        let is_new = |index, has_answered| match reported.get(&index) {
            None => true,
            Some(had_answered) => has_answered && !had_answered,
        };
        let new: Vec<_> = fleet
            .found()
            .filter(|(index, worker)| is_new(*index, worker.description.is_some()))
            .collect();
        if new.is_empty() {
            return;
        }
        reported.extend(new.iter().map(|(index, worker)| (*index, worker.description.is_some())));
        let for_kv = setup.config.policy == Policy::Kv;
        for line in report(new.into_iter().map(|(_, worker)| worker), for_kv) {
            match line.help {
                None => info!(workers = line.workers, found = line.found, "workers found"),
                Some(help) => {
                    warn!(
                        workers = line.workers,
                        missing = line.found,
                        help,
                        "workers lack something"
                    );
                }
            }
        }
    }
}
