//! Observers of the load board: drain rates, cache writes, ejection, outliers.

use super::ejection::Ejection;
use super::outliers::Outliers;
use forebay_base::NanosSinceStart;
use forebay_board::admit::DrainRates;
use forebay_board::{CacheWrites, LoadBoard};
use forebay_fleet::worker::FleetSnapshot;

#[derive(Debug, Default)]
pub(super) struct BoardWatch {
    pub(super) drain_rates: DrainRates,
    pub(super) ejection: Ejection,
    pub(super) outliers: Outliers,
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
