//! Results of `POST /admin/reload`.

use axum::http::StatusCode;
use forebay_config::{Changes, Finding, ReloadError, Severity};
use serde_json::{Value, json};
use std::path::PathBuf;

/// Result of a reload.
#[derive(Clone, Debug)]
pub struct ReloadReport {
    /// Changes that were applied, and changes that need a restart.
    pub changes: Changes,
    /// Warnings of the check, and all findings on `discovery.file`.
    pub findings: Vec<Finding>,
    /// Absolute path of the file that was read; `None`: the router was started with flags alone.
    pub file: Option<PathBuf>,
}

/// Reason for a refused reload.
#[derive(Clone, Debug)]
pub enum ReloadRefusal {
    /// The router was started without a file or flag to read again.
    NoSource,
    /// The configuration cannot be read, or has errors.
    Faulty(ReloadError),
}

impl ReloadReport {
    pub(crate) fn shown(&self) -> Value {
        json!({
            "applied": self.changes.applied,
            "needs_restart": self.changes.restart,
            "findings": self.findings.iter().map(shown).collect::<Vec<_>>(),
            "file": self.file.as_ref().map(|file| file.display().to_string()),
        })
    }
}

impl ReloadRefusal {
    pub(crate) const fn status(&self) -> StatusCode {
        match self {
            Self::NoSource => StatusCode::CONFLICT,
            Self::Faulty(_) => StatusCode::BAD_REQUEST,
        }
    }

    pub(crate) fn shown(&self) -> Value {
        let (error, findings) = match self {
            Self::NoSource => {
                ("this router was started from a program, not from a file or flags", &[][..])
            }
            Self::Faulty(ReloadError::Unreadable(reason)) => (&**reason, &[][..]),
            Self::Faulty(ReloadError::Faulty(findings)) => {
                ("there are errors in the configuration", &**findings)
            }
        };
        let findings: Vec<Value> = findings.iter().map(shown).collect();
        json!({ "error": error, "findings": findings })
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
