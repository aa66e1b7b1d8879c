//! Findings on a configuration and on its file of workers, for `serve`, `check` and `doctor`.

use super::logging::START;
use forebay_config::{Finding, Severity};
use std::io::{self, Write};
use tracing::{error, warn};

/// Writes every finding on its own line.
pub(super) fn write(findings: &[Finding], out: &mut impl Write) -> io::Result<()> {
    findings.iter().try_for_each(|finding| writeln!(out, "{finding}"))
}

/// Logs every finding on its own line.
pub(super) fn log(findings: &[Finding]) {
    for Finding { severity, origin, what, help } in findings {
        match severity {
            Severity::Error => {
                error!(target: START, place = %origin, help, "configuration: {what}");
            }
            Severity::Warning => {
                warn!(target: START, place = %origin, help, "configuration: {what}");
            }
        }
    }
}

/// `2 errors, 1 warning`.
pub(super) fn summary(findings: &[Finding]) -> String {
    let count = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let plural = |count: usize, word: &str| match count {
        1 => format!("1 {word}"),
        count => format!("{count} {word}s"),
    };
    let errors = plural(count(Severity::Error), "error");
    format!("{errors}, {}", plural(count(Severity::Warning), "warning"))
}

/// True if any finding prevents a start.
pub(super) fn are_fatal(findings: &[Finding]) -> bool {
    findings.iter().any(|finding| finding.severity == Severity::Error)
}
