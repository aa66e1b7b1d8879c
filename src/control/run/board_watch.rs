//! What the control plane makes of the load board as time passes.

use super::super::ejection::Ejection;
use forebay_base::{NanosSinceStart, RankIndex};
use forebay_fleet::admit::DrainRates;
use forebay_fleet::worker::{CacheWrites, FleetSnapshot, LoadBoard};
use std::collections::BTreeSet;

#[derive(Debug, Default)]
pub(super) struct BoardWatch {
    pub(super) drain_rates: DrainRates,
    pub(super) ejection: Ejection,
    /// Ranks that fail what their siblings serve, as far as the log has named them.
    pub(super) named_outliers: BTreeSet<RankIndex>,
    cache_writes: CacheWrites,
}

impl BoardWatch {
    pub(super) fn observe(
        &mut self,
        fleet: &FleetSnapshot,
        board: &LoadBoard,
        now: NanosSinceStart,
    ) {
        self.drain_rates.observe(fleet, board, now);
        self.cache_writes.fade(fleet, board, now);
    }
}
