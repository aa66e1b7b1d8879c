//! The configuration: its types and defaults, the TOML file, the command line laid over it, and the
//! check that reports every finding at once. Runs once, in `main`, before any other thread; holds
//! no state; never prints a secret.

mod check;
mod check_disaggregation;
mod check_flow;
#[cfg(test)]
mod disaggregation_tests;
mod effective;
mod finding;
mod flags;
mod flow;
mod key;
mod nearest;
mod quantity;
mod reader;
mod reload;
mod schema;
mod setting;
mod token;
#[cfg(test)]
mod tests;
mod url;
mod worker;

pub use effective::{KeyEntry, all_keys, to_json, to_toml};
pub use finding::{Finding, Origin, Origins, Severity};
pub use flags::Flags;
pub use flow::{
    DisaggregationConfig, Fallback, FlowConfig, NatsConfig, QUEUE_CLASSES, QueueConfig, QueueMode,
    RejectionConfig, TenantConfig,
};
pub use key::{Flag, Form, Key};
pub use quantity::{format_duration, format_size, parse_duration, parse_size};
pub use reload::{Changes, ConfigSource, ReloadError, Reloader};
pub use schema::{
    ApproximateConfig, BreakerConfig, Config, EngineKind, HealthConfig, IndexConfig, KvConfig,
    LimitsConfig, LoadConfig, LoadSource, LogConfig, Policy, RetryConfig, TimeoutsConfig,
};
pub use setting::{Kind, Word};
pub use token::read_token;
pub use url::{WorkerUrl, WorkerUrlError};
pub use worker::{
    HandoffConfig, KvFlow, MOONCAKE_PORT, SIDE_CHANNEL_PORT, WorkerConfig, WorkerRole,
};

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
    let mut reading = reader::read_file(name, text);
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
