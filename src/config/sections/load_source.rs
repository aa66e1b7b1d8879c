//! Source of a worker's load reports.

use super::schema::Config;
use super::worker::WorkerConfig;
use crate::values::engine::LoadSource;

impl Config {
    /// Source by the worker's key, else by the global key.
    #[must_use]
    pub fn load_source(&self, worker: &WorkerConfig) -> LoadSource {
        match worker.load_source.unwrap_or(self.load.source) {
            // Without health checks workers are not queried unless a source is configured.
            LoadSource::Auto if !self.health.enabled => LoadSource::Off,
            source => source,
        }
    }
}
