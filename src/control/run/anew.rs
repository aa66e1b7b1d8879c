//! A configuration that was read again reaches all that goes by it.

use super::super::lifecycle;
use super::super::shown::TokenKeysSource;
use super::{Control, Parts};
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
        let Parts { reloader, tls, admin_rules, .. } = &mut self.setup;
        let config = &mut self.env.config;
        let reloader = reloader.as_mut();
        let tls = tls.server.as_mut();
        let mut done = lifecycle::reload(reloader, config, &mut self.fleet, tls)?;
        for key in admin_rules.read_again(config) {
            done.changes.also_applied(key);
        }
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
        let Parts { tls, .. } = &mut self.setup;
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
        let is_new = tls.take_connectors(read);
        self.fleet.set_connectors(&tls.connectors);
        let clients = self.probes.clients();
        clients.forget(|authority| self.fleet.knows(authority));
        if let Err(error) = clients.renew(config, &workers, &tls.connectors) {
            error!(%error, "workers are asked about themselves as before");
        }
        is_new
    }

    /// Starts again what goes by one of these keys. Shards get theirs with the fleet.
    fn go_by(&mut self, changed: &[String]) {
        let config = Arc::clone(&self.env.config);
        let any = |of: &[&str]| changed.iter().any(|key| of.iter().any(|of| key.starts_with(of)));
        if any(&OF_PROBES) {
            let fleet = &self.fleet;
            let is_up = |worker| fleet.checked_state(worker) == Some(WorkerState::Up);
            self.probes.restart(&config, is_up);
        }
        if any(&["health.", "load.", "worker.", UPSTREAM_TLS]) {
            self.reporter.set_age_max(config.load.age_max);
            self.loads.set_config(config.load, config.health.timeout);
            self.loads.adjust(self.fleet.load_plans());
        }
        if any(&["discovery.", UPSTREAM_TLS]) {
            let left = self.sources.look(&config);
            self.leave_with(&left, "the configuration");
        }
        if any(&["kv."]) {
            self.feeds.set_kv(&config.kv);
            self.feeds.adjust(self.fleet.feed_plans(), self.fleet.rank_count());
        }
        let is_outdated = |source: &TokenKeysSource| source.is_outdated(&config);
        if any(&["jwt."]) || self.token_keys.as_ref().is_some_and(is_outdated) {
            self.follow_token_keys(!any(&["jwt.jwks"]));
        }
    }

    fn follow_token_keys(&mut self, is_same_place: bool) {
        match TokenKeysSource::start(&self.env.config) {
            Ok(source) => {
                let rules = source.as_ref().map(TokenKeysSource::rules);
                self.fleet.set_token_rules(rules, is_same_place);
                self.token_keys = source;
            }
            Err(error) => error!("`jwt.jwks`: {error}; tokens are checked as before"),
        }
    }
}
