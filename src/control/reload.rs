//! The configuration read again while the router runs: on SIGHUP and `POST /admin/reload`. What may
//! change reaches the shards with the next fleet; what is wrong with the file, or needs a restart,
//! is logged and answered. Reads one small file on the control plane's thread; shards do not wait
//! for it.

use super::fleet::Fleet;
use forebay_admin::{ReloadRefused, Reloaded};
use forebay_config::{Finding, ReloadError, Reloader, Severity};
use std::sync::Arc;
use tracing::{error, info, warn};

/// Reads again and puts what may change into the fleet, which then has to be published.
pub(super) fn reload(
    reloader: Option<&mut Reloader>,
    fleet: &mut Fleet,
) -> Result<Reloaded, ReloadRefused> {
    let Some(reloader) = reloader else { return Err(ReloadRefused::NoSource) };
    let (changes, warnings) = match reloader.reload() {
        Ok(done) => done,
        Err(refused) => {
            match &refused {
                ReloadError::Unreadable(reason) => {
                    error!(reason, "not reloaded: the configuration stays as it was");
                }
                ReloadError::Faulty(findings) => {
                    findings.iter().for_each(log);
                    error!("not reloaded: the configuration stays as it was");
                }
            }
            return Err(ReloadRefused::Faulty(refused));
        }
    };
    warnings.iter().for_each(log);
    info!(applied = ?changes.applied, needs_restart = ?changes.restart, "configuration reloaded");
    let running = reloader.running();
    fleet.set_flow(Arc::new(running.flow.clone()));
    fleet.set_concurrency(&running.workers);
    Ok(Reloaded { changes, warnings })
}

fn log(finding: &Finding) {
    match finding.severity {
        Severity::Error => error!("{finding}"),
        Severity::Warning => warn!("{finding}"),
    }
}
