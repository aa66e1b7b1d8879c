//! Settings of a worker from the configuration, except the settings of its probe.

use forebay_config::{Config, KvFlow, LoadSource, WorkerConfig};
use std::sync::Arc;

/// Current settings, which a reload may change.
#[derive(Debug)]
pub(super) struct WorkerSettings {
    pub(super) concurrency_max: Option<u32>,
    pub(super) load_source: LoadSource,
    pub(super) topology: Option<Arc<str>>,
    pub(super) kv_flow: Option<KvFlow>,
    pub(super) kv_pool: Option<Arc<str>>,
    /// The configuration has the endpoints of KV events.
    pub(super) has_kv_events: bool,
}

impl WorkerSettings {
    pub(super) fn of(config: &Config, worker: &WorkerConfig) -> Self {
        Self {
            concurrency_max: worker.concurrency_max,
            load_source: config.load_source(worker),
            topology: worker.topology.as_deref().map(Into::into),
            kv_flow: worker.kv_transfer.kv_flow,
            kv_pool: worker.kv_pool.as_deref().map(Into::into),
            has_kv_events: !worker.kv_events.is_empty(),
        }
    }
}
