//! The configuration read again while the router runs: on SIGHUP and `POST /admin/reload`. What may
//! change reaches the shards with the next fleet; what is wrong with the file, or needs a restart,
//! is logged and answered. Reads one small file on the control plane's thread; shards do not wait
//! for it.

use super::fleet::Fleet;
use axum::http::StatusCode;
use forebay_config::{Finding, ReloadError, Reloader, Severity};
use serde_json::{Value, json};
use std::sync::Arc;
use tracing::{error, info, warn};

/// Nothing was taken over; what the client is told.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) status: StatusCode,
    pub(super) body: Value,
}

/// Reads again and puts what may change into the fleet, which then has to be published.
pub(super) fn reload(reloader: Option<&mut Reloader>, fleet: &mut Fleet) -> Result<Value, Refused> {
    let Some(reloader) = reloader else {
        let what = "this router was started from a program, not from a file or flags";
        return Err(refused(StatusCode::CONFLICT, what, &[]));
    };
    let (changes, warnings) = match reloader.reload() {
        Ok(done) => done,
        Err(ReloadError::Unreadable(reason)) => {
            error!(reason, "not reloaded: the configuration stays as it was");
            return Err(refused(StatusCode::BAD_REQUEST, &reason, &[]));
        }
        Err(ReloadError::Faulty(findings)) => {
            findings.iter().for_each(log);
            error!("not reloaded: the configuration stays as it was");
            let what = "there are errors in the configuration";
            return Err(refused(StatusCode::BAD_REQUEST, what, &findings));
        }
    };
    warnings.iter().for_each(log);
    info!(applied = ?changes.applied, needs_restart = ?changes.restart, "configuration reloaded");
    let running = reloader.running();
    fleet.set_flow(Arc::new(running.flow.clone()));
    fleet.set_concurrency(&running.workers);
    Ok(json!({
        "applied": changes.applied,
        "needs_restart": changes.restart,
        "findings": warnings.iter().map(shown).collect::<Vec<_>>(),
    }))
}

fn refused(status: StatusCode, error: &str, findings: &[Finding]) -> Refused {
    let findings: Vec<Value> = findings.iter().map(shown).collect();
    Refused { status, body: json!({ "error": error, "findings": findings }) }
}

fn log(finding: &Finding) {
    match finding.severity {
        Severity::Error => error!("{finding}"),
        Severity::Warning => warn!("{finding}"),
    }
}

fn shown(finding: &Finding) -> Value {
    let severity = match finding.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    };
    json!({
        "severity": severity,
        "where": finding.origin.to_string(),
        "what": finding.what,
        "help": finding.help,
    })
}
