//! Ranks that fail requests which their siblings serve: logged once, with advice.

use forebay_base::RankIndex;
use forebay_board::{HeldFailures, LoadBoard};
use forebay_fleet::worker::FleetSnapshot;
use std::collections::BTreeSet;
use tracing::{info, warn};

/// Pauses after which a rank is logged: after a chance failure a rank serves again earlier.
const PAUSES_NAMED: u32 = 2;

/// Ranks that were logged.
#[derive(Debug, Default)]
pub(super) struct Outliers {
    named: BTreeSet<RankIndex>,
}

impl Outliers {
    /// Logs ranks that were paused again and again, and ranks that serve again.
    pub(super) fn log_changes(&mut self, fleet: &FleetSnapshot, board: &LoadBoard) {
        let named = &mut self.named;
        named.retain(|&rank| fleet.has(rank));
        for (index, rank, worker) in fleet.present() {
            let Some(load) = board.rank(index) else { continue };
            let held = load.held();
            let dp_rank = rank.dp_rank.0;
            match held.filter(|held| held.pauses >= PAUSES_NAMED) {
                Some(held) if named.insert(index) => {
                    let HeldFailures { status, pauses, .. } = held;
                    let has_key = worker.api_key.is_some();
                    warn!(
                        worker = &*worker.name,
                        dp_rank,
                        status,
                        pauses,
                        help = help(status, has_key),
                        "the rank fails requests that others serve: it gets single requests until \
                         it serves them"
                    );
                }
                None if held.is_none() && named.remove(&index) => {
                    info!(worker = &*worker.name, dp_rank, "the rank serves requests again");
                }
                _ => {}
            }
        }
    }
}

/// Advice for a status code of the rank.
const fn help(status: u16, has_key: bool) -> &'static str {
    match status {
        401 | 403 if has_key => {
            "it refuses the key of the router: compare `api_key` of the worker with its `--api-key`"
        }
        401 | 403 => {
            "it refuses keys that others take: compare the `--api-key` of the workers, or set \
             `api_key` of the worker"
        }
        404 => "it does not serve the model or the path: compare GET /v1/models of the workers",
        300..=499 => "it refuses requests that others take: compare the flags of the workers",
        0 => "it does not answer: read its log",
        200..=299 => {
            "its answers are empty or hold an error: send it a request by hand, and read its log"
        }
        _ => "send it a request by hand, and read its log; drain it if it has to be restarted",
    }
}

#[cfg(test)]
mod tests {
    use super::help;

    #[test]
    fn the_help_names_a_key_or_a_flag() {
        assert!(help(401, true).contains("`api_key`") && help(403, false).contains("`--api-key`"));
        assert!(help(400, false).contains("flags") && help(404, true).contains("/v1/models"));
        assert!(help(200, false).contains("empty") && help(500, false).contains("drain"));
    }
}
