//! Where the load reports of a worker come from.

use super::engine::LoadSource;
use super::schema::Config;
use super::worker::WorkerConfig;

impl Config {
    /// Where they come from, by the key of the worker, else by that of all.
    #[must_use]
    pub fn load_source(&self, worker: &WorkerConfig) -> LoadSource {
        match worker.load_source.unwrap_or(self.load.source) {
            // Without health checks nothing is asked of workers unless it is asked for.
            LoadSource::Auto if !self.health.enabled => LoadSource::Off,
            source => source,
        }
    }
}
