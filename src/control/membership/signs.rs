//! Signs of workers beside the answers to probes: failed connections, bytes, load reports.

use super::super::environment::{Environment, TICK};
use super::probes::Probes;
use forebay_base::{NanosSinceStart, RankIndex};
use forebay_fleet::worker::FleetSnapshot;
use forebay_load::LoadReporter;

/// Passes signs on from the board and the load reports to the probes. A suspicion that the worker
/// was restarted begins a probe. A sign of life replaces a probe, and so does a load report since
/// the last tick.
pub(super) fn pass_on_signs(
    probes: &Probes,
    env: &Environment,
    published: &FleetSnapshot,
    reporter: &LoadReporter,
    now: NanosSinceStart,
) {
    let has_reported = |rank| {
        let report = reporter.reports().newest(rank).map(|report| report.at);
        report.is_some_and(|at| now < at.plus(2 * TICK))
    };
    for (rank, shown) in published.ranks.iter().enumerate() {
        let Some(rank) = RankIndex::try_from_index(rank) else { continue };
        let Some(load) = env.board.rank(rank) else { continue };
        if load.signs().take_suspicion() {
            probes.doubt(shown.worker);
        }
        if load.signs().take_life() || has_reported(rank) {
            probes.note_life(shown.worker, now);
        }
    }
}
