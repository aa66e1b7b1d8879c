//! The configuration: its types and defaults, the TOML file, the command line laid over it, and the check that
//! reports every finding at once. Runs once, in `main`, before any other thread; holds no state; never prints
//! a secret.

mod schema;

pub use schema::{
    BreakerConfig, Config, EngineKind, HealthConfig, LimitsConfig, LogConfig, Policy, RetryConfig,
    TimeoutsConfig, Word, WorkerConfig,
};
