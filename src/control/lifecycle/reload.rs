//! The configuration read again while the router runs: on SIGHUP and `POST /admin/reload`. A faulty
//! file changes nothing. Findings, and keys that need a restart, are logged and returned. Reads
//! small files on the control plane's thread; shards do not wait for it.

use super::super::file_faults;
use super::admin_rules::AdminRules;
use super::client_access::ClientAccess;
use forebay_admin::{ReloadFigures, ReloadRefusal, ReloadReport};
use forebay_base::since_1970;
use forebay_config::{Config, Finding, ReloadError, Reloader, Severity, read_worker_file};
use forebay_tls::Acceptor;
use std::path::{Path, absolute};
use std::sync::Arc;
use std::time::Duration;
use tracing::{error, info, warn};

/// Sources of a reload.
pub(super) struct ReloadSource {
    /// `None` where the configuration came from no file or flags.
    reloader: Option<Reloader>,
    admin_rules: AdminRules,
    /// First error of the last reload, without folders; `None`: the router runs what it last read.
    fault: Option<String>,
    /// Time of the last good reload, or of the start, since 1970.
    succeeded_at: Duration,
}

impl ReloadSource {
    pub(super) fn new(reloader: Option<Reloader>, admin_rules: AdminRules) -> Self {
        Self { reloader, admin_rules, fault: None, succeeded_at: since_1970() }
    }

    /// Reads the configuration into `config` and the access of clients. The fleet then has to be
    /// published.
    pub(super) fn read(
        &mut self,
        config: &mut Arc<Config>,
        client_access: &mut ClientAccess,
    ) -> Result<ReloadReport, ReloadRefusal> {
        let Some(reloader) = &mut self.reloader else { return Err(ReloadRefusal::NoSource) };
        let (mut changes, warnings) = match reloader.reload() {
            Ok(done) => done,
            Err(refused) => {
                log_refusal(&refused);
                let file = reloader.file().unwrap_or(Path::new(""));
                self.fault = Some(fault_of(file, &refused));
                return Err(ReloadRefusal::Faulty(refused));
            }
        };
        self.fault = None;
        self.succeeded_at = since_1970();
        warnings.iter().for_each(log);
        let read = reloader.file().map(|file| absolute(file).unwrap_or_else(|_| file.to_owned()));
        let running = reloader.running();
        let keys = client_access.read_keys(running, &mut changes);
        client_access.reread_image_key(running, &mut changes);
        let restart = &changes.restart;
        info!(applied = ?changes.applied, needs_restart = ?restart, "configuration reloaded");
        *config = Arc::new(reloader.running_as(config));
        client_access.take_config(config, keys);
        for key in self.admin_rules.read_again(config) {
            changes.also_applied(key);
        }
        // The source itself is read, and its faults are logged, apart from the reload.
        let file = config.discovery.file.as_ref();
        let of_file = file.map(|path| read_worker_file(path, config).findings);
        let findings = warnings.into_iter().chain(of_file.into_iter().flatten()).collect();
        Ok(ReloadReport { changes, findings, file: read })
    }

    /// The refused reload with the first error, for operators and probes, without folders. The
    /// next start would fail at that error.
    pub(super) fn concern(&self) -> Option<String> {
        Some(format!("the last reload was refused: {}", self.fault.as_ref()?))
    }

    pub(super) const fn figures(&self) -> ReloadFigures {
        ReloadFigures { is_refused: self.fault.is_some(), succeeded_at: self.succeeded_at }
    }

    /// Certificates of the admin API, if it has any.
    pub(super) fn admin_acceptor(&self) -> Option<Acceptor> {
        self.admin_rules.acceptor()
    }

    /// The workers of these URLs have found no place: the next reload adds them again.
    pub(super) fn mark_not_joined(&mut self, urls: &[String]) {
        if let Some(reloader) = &mut self.reloader {
            urls.iter().for_each(|url| reloader.did_not_join(url));
        }
    }
}

fn fault_of(file: &Path, refused: &ReloadError) -> String {
    match refused {
        ReloadError::Unreadable(reason) => file_faults::unreadable(file, reason),
        ReloadError::Faulty(findings) => file_faults::of_file(file, findings).brief,
    }
}

fn log_refusal(refused: &ReloadError) {
    match refused {
        ReloadError::Unreadable(reason) => {
            error!(reason, "not reloaded: the configuration stays as it was");
        }
        ReloadError::Faulty(findings) => {
            findings.iter().for_each(log);
            error!("not reloaded: the configuration stays as it was");
        }
    }
}

/// Logs a finding in the form of a start.
fn log(finding: &Finding) {
    let Finding { severity, origin, what, .. } = finding;
    let help = finding.advice();
    match severity {
        Severity::Error => error!(place = %origin, help, "configuration: {what}"),
        Severity::Warning => warn!(place = %origin, help, "configuration: {what}"),
    }
}
