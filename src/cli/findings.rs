//! Findings on a configuration and on its file of workers, for `serve`, `check` and `doctor`.

use super::logging::START;
use forebay_config::{Finding, LoadedConfig, Origin, Severity, WorkerConfig, all_keys, by_edits};
use forebay_net::Driver;
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

/// Variables that commands or checks of the program read.
const READ_VARIABLES: [&str; 3] = [Driver::VARIABLE, "FOREBAY_ADMIN_TOKEN", "FOREBAY_HOLDS"];

/// Variables of the environment that have the words of a key or of a flag of `serve`, with a slip
/// or without. Neither is read from there.
pub(super) fn of_environment() -> Vec<Finding> {
    let variables = std::env::vars_os().filter_map(|(name, value)| {
        Some((name.into_string().ok()?, value.to_string_lossy().into_owned()))
    });
    of_variables(variables)
}

fn of_variables(variables: impl Iterator<Item = (String, String)>) -> Vec<Finding> {
    let advice = advice_by_words();
    let found = variables.filter_map(|(name, value)| {
        let unread = |help: String| {
            let what = format!("`{name}` of the environment is not read");
            Some(Finding::warning(Origin::Whole, what, help))
        };
        if name == Driver::VARIABLE && value != Driver::EPOLL {
            let what = format!("`{name}` is {value:?}, which has no effect");
            let help = "only \"epoll\" can be chosen; unset it for io_uring";
            return Some(Finding::warning(Origin::Whole, what, help));
        }
        if name == "RUST_LOG" {
            return unread("set `log.level` in the file, or give --log-level".to_owned());
        }
        let words = name.strip_prefix("FOREBAY_")?.to_ascii_lowercase();
        let is_known = advice.iter().any(|(known, _)| *known == words);
        if !is_known && (is_of_kubernetes(&words) || READ_VARIABLES.contains(&&*name)) {
            return None;
        }
        // A variable that is far from each word may be a script's own.
        let known = by_edits(&words, advice.iter().map(|(words, _)| &**words))?;
        let (_, help) = advice.iter().find(|(words, _)| *words == known)?;
        unread(help.clone())
    });
    found.collect()
}

/// Words of each key and of each flag of `serve`, with the advice for a variable of these words.
fn advice_by_words() -> Vec<(String, String)> {
    const FLAGS: [&str; 5] = ["config", "worker", "prefill", "decode", "kv_events"];
    let of_flag = |name: &str| (name.to_owned(), format!("give --{}", name.replace('_', "-")));
    let mut advice: Vec<_> = FLAGS.into_iter().map(of_flag).collect();
    for key in all_keys().iter().map(|entry| entry.key) {
        let help = format!("set `{}` in the file of --config", key.path);
        let flag = key.flag.map(|flag| flag.name.replace('-', "_"));
        for words in flag.into_iter().chain([key.path.replace('.', "_")]) {
            advice.push((words, help.clone()));
        }
    }
    advice
}

/// Kubernetes sets such variables for each service, also for a service of the router's name:
/// `FOREBAY_SERVICE_HOST`, `FOREBAY_PORT_8080_TCP_ADDR`.
fn is_of_kubernetes(words: &str) -> bool {
    let has_number = |rest: &str| rest.starts_with(|first: char| first.is_ascii_digit());
    words.ends_with("service_host")
        || words.contains("service_port")
        || words.ends_with("port")
        || words.split("port_").skip(1).any(has_number)
}

/// Logs every finding on its own line.
pub(super) fn log(findings: &[Finding]) {
    for finding in findings {
        let Finding { severity, origin, what, .. } = finding;
        let help = finding.advice();
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

#[cfg(test)]
mod tests {
    use super::of_variables;

    /// Other programs read keys from such variables. The variable was ignored silently.
    #[test]
    fn a_variable_in_the_words_of_a_key_is_named() {
        let found = |name: &str| {
            let value = if name == "FOREBAY_DRIVER" { "epoll" } else { "x" };
            let variable = (name.to_owned(), value.to_owned());
            let found = of_variables(std::iter::once(variable));
            found.iter().map(ToString::to_string).collect::<String>()
        };
        for (name, help) in [
            ("FOREBAY_LISTEN", "set `listen` in the file"),
            ("FOREBAY_LOG_LEVEL", "set `log.level` in the file"),
            ("FOREBAY_QUEUE_DEPTH_MAX", "set `queue.depth_max` in the file"),
            ("FOREBAY_NATS", "set `nats.url` in the file"),
            ("FOREBAY_CONFIG", "give --config"),
            ("RUST_LOG", "set `log.level` in the file"),
            ("FOREBAY_KV_EVENTS", "give --kv-events"),
            ("FOREBAY_WORKER_KV_PORT", "set `worker.kv_port` in the file"),
            ("FOREBAY_WORKERS", "give --worker"),
            ("FOREBAY_LISTNE", "set `listen` in the file"),
            ("FOREBAY_NATS_URLS", "set `nats.url` in the file"),
        ] {
            assert!(found(name).contains(help), "{name}: {}", found(name));
        }
        for name in ["FOREBAY_DRIVER", "FOREBAY_ADMIN_TOKEN", "FOREBAY_SERVICE_HOST"] {
            assert_eq!(found(name), "");
        }
        let uring = of_variables(std::iter::once(("FOREBAY_DRIVER".into(), "uring".into())));
        assert!(uring[0].what.contains("is \"uring\", which has no effect"), "{uring:?}");
        for name in [
            "FOREBAY_PORT",
            "FOREBAY_PORT_8080_TCP",
            "FOREBAY_PORT_8080_TCP_ADDR",
            "FOREBAY_ADMIN_SERVICE_HOST",
            "FOREBAY_SERVICE_PORT_HTTP",
            "FOREBAY_VERSION",
            "FOREBAY_IMAGE",
            "LISTEN",
            "FOREBAY_HOLDS",
        ] {
            assert_eq!(found(name), "");
        }
    }
}
