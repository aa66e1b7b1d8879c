//! Findings on a configuration and on its file of workers, for `serve`, `check` and `doctor`.

use super::logging::START;
use forebay_config::{Finding, LoadedConfig, Severity, WorkerConfig};
use std::io::{self, Write};
use tracing::{error, warn};

/// Writes every finding on its own line.
pub(super) fn write(findings: &[Finding], out: &mut impl Write) -> io::Result<()> {
    findings.iter().try_for_each(|finding| writeln!(out, "{finding}"))
}

/// Every finding in a line.
pub(super) fn lines(findings: &[Finding]) -> String {
    findings.iter().map(|finding| format!("{finding}\n")).collect()
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

/// The error of a file that keeps a command from the keys that it needs. Other errors are for
/// `check`: an order must not wait until they are mended.
pub(super) fn error_at<'a>(loaded: &'a LoadedConfig, key: &str) -> Option<&'a Finding> {
    let is_needed = |finding: &&Finding| {
        let is_error = finding.severity == Severity::Error;
        is_error && (loaded.is_unread || finding.what.contains(key))
    };
    loaded.findings.iter().find(is_needed)
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

/// Adds the workers of a source. As in the router, a worker of several sources is a single worker,
/// with the settings of the first source.
pub(super) fn add_workers(workers: &mut Vec<WorkerConfig>, of_source: Vec<WorkerConfig>) {
    for worker in of_source {
        if !workers.iter().any(|known| known.url == worker.url) {
            workers.push(worker);
        }
    }
}
