//! Reads the file, applies the flags, and checks the result.

use super::checks::check::check;
use super::keys::finding::{Finding, Severity};
use super::keys::flags::{Flags, Merge};
use super::reader::{FileReading, read_file};
use super::sections::schema::Config;
use super::values::url::WorkerUrl;

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
}

impl LoadedConfig {
    /// The configuration, unless a finding is an error.
    pub fn usable(self) -> Result<Config, Vec<Finding>> {
        let fatal = self.findings.iter().any(|finding| finding.severity == Severity::Error);
        if fatal { Err(self.findings) } else { Ok(self.config) }
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
    reading.findings.extend(check(&reading.config, &reading.origins));
    reading.findings.sort_by_key(Finding::position);
    let FileReading { config, findings, is_unread, .. } = reading;
    LoadedConfig { config, findings, is_unread }
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
