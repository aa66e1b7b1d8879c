//! Observers of the load board and of the shards' counters: drain rates, times to the first token,
//! cache writes, ejection, outliers.

use super::ejection::Ejection;
use super::outliers::Outliers;
use forebay_base::NanosSinceStart;
use forebay_board::account::{ShardCounters, TtftHistory};
use forebay_board::admit::DrainRates;
use forebay_board::{CacheWrites, LoadBoard};
use forebay_fleet::worker::FleetSnapshot;
use std::sync::Arc;

#[derive(Debug, Default)]
pub(super) struct BoardWatch {
    pub(super) drain_rates: DrainRates,
    pub(super) ttft_history: TtftHistory,
    pub(super) ejection: Ejection,
    pub(super) outliers: Outliers,
    cache_writes: CacheWrites,
}

impl BoardWatch {
    pub(super) fn observe(
        &mut self,
        fleet: &FleetSnapshot,
        board: &LoadBoard,
        counters: &[Arc<ShardCounters>],
        now: NanosSinceStart,
    ) {
        self.drain_rates.observe(fleet, board, now);
        self.ttft_history.observe(counters, fleet.ranks.len(), now);
        self.cache_writes.fade(fleet, board, now);
    }
}
