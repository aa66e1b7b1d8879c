//! What the control plane makes of the load board as time passes.

use super::ejection::Ejection;
use forebay_base::{NanosSinceStart, RankIndex};
use forebay_fleet::admit::DrainRates;
use forebay_fleet::worker::{CacheWrites, FleetSnapshot, LoadBoard};
use std::collections::BTreeSet;

#[derive(Debug, Default)]
pub(in crate::control) struct BoardWatch {
    pub(in crate::control) drain_rates: DrainRates,
    pub(in crate::control) ejection: Ejection,
    /// Ranks that fail what their siblings serve, as far as the log has named them.
    pub(in crate::control) named_outliers: BTreeSet<RankIndex>,
    cache_writes: CacheWrites,
}

impl BoardWatch {
    pub(in crate::control) fn observe(
        &mut self,
        fleet: &FleetSnapshot,
        board: &LoadBoard,
        now: NanosSinceStart,
    ) {
        self.drain_rates.observe(fleet, board, now);
        self.cache_writes.fade(fleet, board, now);
    }
}
