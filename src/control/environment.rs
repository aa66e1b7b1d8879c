//! Parts of the process that every owner reads: clock, configuration, load board, index, shards.

use super::ports::Ports;
use forebay_base::{Clock, NanosSinceStart, RouterId};
use forebay_board::LoadBoard;
use forebay_config::Config;
use forebay_index::IndexReader;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Period of the control plane's loop: each owner ticks this often.
pub(super) const TICK: Duration = Duration::from_millis(100);

/// Files or keys of TLS to workers, as a changed key of the configuration.
pub(super) const UPSTREAM_TLS: &str = "upstream_tls";

/// Files with keys of workers, as a changed key of the configuration.
pub(super) const WORKER_KEYS: &str = "worker.api_key_file";

/// Parts that the owners share. Only a reload changes a field, the configuration.
pub(super) struct Environment {
    pub(super) config: Arc<Config>,
    pub(super) clock: Clock,
    /// Random at each start.
    pub(super) router_id: RouterId,
    pub(super) board: Arc<LoadBoard>,
    pub(super) index: IndexReader,
    pub(super) ports: Rc<Ports>,
    /// The shards get a fleet at this time, even if some workers have not answered yet.
    pub(super) first_fleet_at: NanosSinceStart,
}

/// Keys of the configuration that a reload has changed.
pub(super) struct ChangedKeys<'a>(pub(super) &'a [String]);

impl ChangedKeys<'_> {
    /// Does a changed key begin with any of these prefixes?
    pub(super) fn any(&self, prefixes: &[&str]) -> bool {
        self.0.iter().any(|key| prefixes.iter().any(|prefix| key.starts_with(prefix)))
    }
}
