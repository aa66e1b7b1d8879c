//! Reads the file, applies the flags, and checks the result.

use super::checks::check::NO_WORKER;
use super::checks::contradictions::check_router;
use super::keys::finding::{Finding, Origin, Origins, Severity};
use super::keys::flags::{Flags, Merge};
use super::reader::{FileReading, read_file};
use super::sections::schema::Config;
use super::values::url::WorkerUrl;
use forebay_base::EncodingFault;
use std::io;

/// Contents of a configuration file.
#[derive(Clone, Copy, Debug)]
pub struct ConfigText<'a> {
    /// Name of the file for findings.
    pub name: &'a str,
    /// Text of the file.
    pub text: &'a str,
}

/// A configuration with its findings.
#[derive(Debug)]
pub struct LoadedConfig {
    /// Faulty keys have their defaults.
    pub config: Config,
    /// Sorted by place in the file.
    pub findings: Vec<Finding>,
    /// The file is no TOML: no key was read.
    pub is_unread: bool,
    /// Places of the keys.
    pub(crate) origins: Origins,
}

impl LoadedConfig {
    /// A file without a key that was read.
    pub(crate) fn unread(fault: Finding) -> Self {
        let origins = Origins::default();
        Self { config: Config::default(), findings: vec![fault], is_unread: true, origins }
    }

    /// A file in another encoding; `None` for any other error.
    pub(crate) fn of_encoding(name: &str, error: &io::Error) -> Option<Self> {
        let EncodingFault { line, column, what, help } = EncodingFault::of(error)?;
        let origin = Origin::File { name: name.to_owned(), line: *line, column: *column };
        Some(Self::unread(Finding::error(origin, what.clone(), *help)))
    }

    /// The configuration, unless a finding is an error.
    pub fn usable(self) -> Result<Config, Vec<Finding>> {
        let fatal = self.findings.iter().any(|finding| finding.severity == Severity::Error);
        if fatal { Err(self.findings) } else { Ok(self.config) }
    }

    /// Adds a warning at the place of a key, from a look at this machine.
    pub fn warn(&mut self, key: &str, what: impl Into<String>, help: impl Into<String>) {
        self.findings.push(Finding::warning(self.origins.of(key), what, help));
        self.findings.sort_by_key(Finding::position);
    }

    /// Warns of each core that is not `available` to this process. A warning, because the router
    /// may run on another machine than the check.
    pub fn check_cores(&mut self, available: &[usize]) {
        for core in self.config.missing_cores(available) {
            let CpuShortage { what, help } = CpuShortage::of(core, available);
            self.warn("cores", what, help);
        }
    }
}

/// Words on a core of `cores` that a process may not use.
#[derive(Debug)]
pub struct CpuShortage {
    /// The fault, without its place.
    pub what: String,
    /// Cores to choose from.
    pub help: String,
}

impl CpuShortage {
    /// Words on this core, beside the cores that the process may use.
    #[must_use]
    pub fn of(core: usize, available: &[usize]) -> Self {
        let what = format!("`cores`: this process may not use core {core}");
        let help = format!("available cores: {available:?}; `serve` needs each core of the list");
        Self { what, help }
    }
}

/// Reads the file, if any, applies the flags, and checks the result.
#[must_use]
pub fn load(source: Option<ConfigText<'_>>, flags: &Flags) -> LoadedConfig {
    let ConfigText { name, text } = source.unwrap_or(ConfigText { name: "", text: "" });
    let mut reading = read_file(name, text);
    Merge {
        config: &mut reading.config,
        origins: &mut reading.origins,
        findings: &mut reading.findings,
    }
    .apply(flags);
    respell(&mut reading.config);
    // A file without a single key would seem to lack all of them.
    let checked = if reading.is_unread {
        Vec::new()
    } else {
        check_router(&reading.config, &reading.origins)
    };
    let further: Vec<_> =
        checked.into_iter().filter(|finding| !follows(finding, &reading.findings)).collect();
    reading.findings.extend(further);
    reading.findings.sort_by_key(Finding::position);
    let FileReading { config, findings, is_unread, origins } = reading;
    LoadedConfig { config, findings, is_unread, origins }
}

/// True for a finding that only follows from a value that was not read: the key has its default,
/// which the operator did not write.
fn follows(finding: &Finding, unread: &[Finding]) -> bool {
    let is_cause = |fault: &Finding| {
        let key = fault.what.strip_prefix('`').and_then(|rest| rest.split('`').next());
        // A finding that begins with the key is about another value of it.
        let names = |key: &str| {
            let quoted = format!("`{key}`");
            finding.what.contains(&quoted) && !finding.what.starts_with(&quoted)
        };
        // Tables of workers that were not read are the reason of having none.
        let is_of_workers =
            key == Some("worker") || key == Some("workers") || fault.help.contains("`worker`");
        let is_lack = is_of_workers && finding.what == NO_WORKER;
        fault.origin == finding.origin || is_lack || key.is_some_and(names)
    };
    unread.iter().filter(|fault| fault.severity == Severity::Error).any(is_cause)
}

/// Normalizes URLs so that they can be compared as text.
pub(super) fn respell(config: &mut Config) {
    for worker in &mut config.workers {
        if let Ok(url) = WorkerUrl::parse(&worker.url) {
            worker.url = url.text();
        }
    }
}

impl Config {
    /// Reads and checks a file without flags.
    pub fn from_toml(text: &str) -> Result<Self, Vec<Finding>> {
        load(Some(ConfigText { name: "forebay.toml", text }), &Flags::default()).usable()
    }
}
