//! The configuration: its types and defaults, the TOML file, the command line laid over it, and the check that
//! reports every finding at once. Runs once, in `main`, before any other thread; holds no state; never prints
//! a secret.

mod check;
mod effective;
mod file;
mod finding;
mod flags;
mod nearest;
mod quantity;
mod reader;
mod schema;
#[cfg(test)]
mod tests;
mod url;

pub use effective::{to_json, to_toml};
pub use finding::{Finding, Origin, Origins, Severity};
pub use flags::Flags;
pub use quantity::{format_duration, format_size, parse_duration, parse_size};
pub use schema::{
    ApproximateConfig, BreakerConfig, Config, EngineKind, HealthConfig, IndexConfig, KvConfig,
    LimitsConfig, LoadConfig, LoadSource, LogConfig, Policy, RetryConfig, TimeoutsConfig, Word,
    WorkerConfig,
};
pub use url::{WorkerUrl, WorkerUrlError};

/// A file as it was given.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// Its name, for findings.
    pub name: &'a str,
    /// Its text.
    pub text: &'a str,
}

/// A configuration and everything there is to say about it.
#[derive(Debug)]
pub struct Loaded {
    /// Faulty keys have their defaults.
    pub config: Config,
    /// In the order of the file.
    pub findings: Vec<Finding>,
}

impl Loaded {
    /// The configuration, unless one of the findings is an error.
    pub fn usable(self) -> Result<Config, Vec<Finding>> {
        let fatal = self.findings.iter().any(|finding| finding.severity == Severity::Error);
        if fatal { Err(self.findings) } else { Ok(self.config) }
    }
}

/// Reads the file if there is one, lays the flags over it, and checks the result.
#[must_use]
pub fn load(source: Option<Source<'_>>, flags: &Flags) -> Loaded {
    let Source { name, text } = source.unwrap_or(Source { name: "", text: "" });
    let mut reading = file::read_file(name, text);
    flags::Merge {
        config: &mut reading.config,
        origins: &mut reading.origins,
        findings: &mut reading.findings,
    }
    .apply(flags);
    reading.findings.extend(check::check(&reading.config, &reading.origins));
    reading.findings.sort_by_key(Finding::position);
    Loaded { config: reading.config, findings: reading.findings }
}

impl Config {
    /// Reads and checks a file without flags.
    pub fn from_toml(text: &str) -> Result<Self, Vec<Finding>> {
        load(Some(Source { name: "forebay.toml", text }), &Flags::default()).usable()
    }
}
