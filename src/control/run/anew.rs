//! A configuration that was read again reaches all that goes by it.

use super::super::environment::ChangedKeys;
use super::super::tls::take_connectors;
use super::Control;
use forebay_admin::{ReloadRefused, Reloaded};
use forebay_config::WorkerConfig;
use forebay_fleet::worker::WorkerState;
use std::sync::Arc;
use tracing::error;

/// What probes of workers go by.
const OF_PROBES: [&str; 7] = [
    "health.",
    "model_dir",
    "engine",
    "image_key_file",
    "worker.",
    "timeouts.connect",
    UPSTREAM_TLS,
];
/// Files or keys of TLS to workers.
const UPSTREAM_TLS: &str = "upstream_tls";

impl Control {
    pub(super) fn reload(&mut self) -> Result<Reloaded, ReloadRefused> {
        let done = self.read_again();
        self.note_reload(&done);
        done
    }

    fn read_again(&mut self) -> Result<Reloaded, ReloadRefused> {
        let mut done = self.lifecycle.read_config(&mut self.env.config)?;
        self.fleet.set_config(Arc::clone(&self.env.config));
        let tells_of_tls = done.changes.applied.iter().any(|key| key.contains("tls"));
        if self.renew_connectors() && !tells_of_tls {
            done.changes.also_applied(UPSTREAM_TLS);
        }
        self.go_by(&done.changes.applied);
        self.change_workers(&done.changes.workers);
        self.publish();
        Ok(done)
    }

    /// Reads the files of TLS to workers again; true if there is another one.
    fn renew_connectors(&mut self) -> bool {
        let config = &self.env.config;
        let is_configured = |url: &str| config.workers.iter().any(|worker| worker.url == url);
        // One that leaves may have lost its own files.
        let has_own_files = |worker: &WorkerConfig| worker.tls.has_files();
        let others = self.probes.workers();
        let others = others.filter(|worker| !is_configured(&worker.url) && !has_own_files(worker));
        let workers: Vec<WorkerConfig> = config.workers.iter().chain(others).cloned().collect();
        let read = match config.connectors_of(&workers) {
            Ok(read) => read,
            Err(fault) => {
                error!(%fault, "TLS to workers: not read again, the files from before stay in use");
                return false;
            }
        };
        let is_new = take_connectors(&mut self.setup.connectors, read);
        self.fleet.set_connectors(&self.setup.connectors);
        let clients = self.probes.clients();
        clients.forget(|authority| self.fleet.knows(authority));
        if let Err(error) = clients.renew(config, &workers, &self.setup.connectors) {
            error!(%error, "workers are asked about themselves as before");
        }
        is_new
    }

    /// Starts again what goes by one of these keys. Shards get theirs with the fleet.
    fn go_by(&mut self, changed: &[String]) {
        let config = Arc::clone(&self.env.config);
        let any = |prefixes: &[&str]| ChangedKeys(changed).any(prefixes);
        if any(&OF_PROBES) {
            let fleet = &self.fleet;
            let is_up = |worker| fleet.checked_state(worker) == Some(WorkerState::Up);
            self.probes.restart(&config, is_up);
        }
        if any(&["discovery.", UPSTREAM_TLS]) {
            let left = self.sources.look(&config);
            self.leave_with(&left, "the configuration");
        }
        self.feeds.reconfigure(&config, &ChangedKeys(changed), &self.fleet);
        self.lifecycle.follow_token_keys(&config, &ChangedKeys(changed));
    }
}
