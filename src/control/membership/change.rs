//! Changes of the workers, as the other owners get them.

use super::super::feeds::SleepOrder;
use forebay_base::WorkerIndex;

/// Work for other owners after a change of the workers.
#[must_use]
#[derive(Debug, Default)]
pub(crate) struct FleetChange {
    /// The shards need the fleet.
    pub(crate) publishes: bool,
    /// Plans of KV-event feeds and load reports have changed.
    pub(crate) replans: bool,
    pub(crate) slow_start: Option<SlowStart>,
    pub(crate) sleep_orders: Vec<SleepOrder>,
    /// URLs of configured workers that got no place.
    pub(crate) not_joined: Vec<String>,
    /// Workers that have left. Their places may have new workers already.
    pub(crate) gone: Vec<WorkerIndex>,
    /// Workers with caches that an order of the router emptied.
    pub(crate) emptied: Vec<WorkerIndex>,
}

/// A worker begins or ends its slow start.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SlowStart {
    Begin(WorkerIndex),
    End(WorkerIndex),
}

impl FleetChange {
    /// No other work than to publish the fleet.
    pub(super) fn published() -> Self {
        Self { publishes: true, ..Self::default() }
    }

    /// As [`Self::published`] if the condition holds, else no work.
    pub(super) fn published_if(publishes: bool) -> Self {
        Self { publishes, ..Self::default() }
    }

    /// Combines two successive changes.
    pub(super) fn and(mut self, later: Self) -> Self {
        self.publishes |= later.publishes;
        self.replans |= later.replans;
        self.slow_start = later.slow_start.or(self.slow_start);
        self.sleep_orders.extend(later.sleep_orders);
        self.not_joined.extend(later.not_joined);
        self.gone.extend(later.gone);
        self
    }
}
