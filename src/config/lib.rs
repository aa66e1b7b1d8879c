//! The configuration: its types and defaults, the TOML file, the command line over it, and the
//! check that reports every finding at once. Runs once, in `main`, before any other thread; holds
//! no state; never prints a secret.

mod values;
mod checks;
mod sections;
mod keys;
mod load;
mod reader;
mod reload;
#[cfg(test)]
mod mistake_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod unused_key_tests;
mod worker_file;

pub use keys::effective::{KeyEntry, all_keys, changed_json, to_json, to_toml};
pub use keys::finding::{Finding, Origin, Origins, Severity};
pub use keys::flags::Flags;
pub use keys::key::{Flag, Form, Key};
pub use keys::nearest::{by_edits, nearest};
pub use keys::other_programs::keys_for;
pub use keys::setting::{Kind, Word};
pub use keys::table::{Changes, WorkerChanges};
pub use load::{ConfigText, CpuShortage, LoadedConfig, load};
pub use reload::{ConfigSource, ReloadError, Reloader};
pub use sections::client::{ClientConfig, CorsConfig, Forwarded, JwtConfig};
pub use sections::discovery::DiscoveryConfig;
pub use sections::equipped_worker::EquippedWorker;
pub use sections::flow::{
    DisaggregationConfig, Fallback, FlowConfig, QueueConfig, QueueMode, RejectionConfig,
    TenantConfig,
};
pub use sections::replicas::{NatsConfig, ReplicasConfig};
pub use sections::schema::{
    AdapterConfig, ApproximateConfig, BreakerConfig, Config, HealthConfig, IndexConfig, KvConfig,
    LimitsConfig, LoadConfig, LogConfig, ModelConfig, Policy, RetryConfig, SessionConfig,
    TimeoutsConfig,
};
pub use sections::tls::{
    AdminTlsConfig, CertificateConfig, ClientAuth, ListenerConfig, TlsConfig, UpstreamTlsConfig,
};
pub use sections::traces::TracesConfig;
pub use sections::upstream::{Connectors, KnownConnectors, UpstreamFault};
pub use sections::worker::{
    KvFlow, KvTransferConfig, MOONCAKE_PORT, SIDE_CHANNEL_PORT, WorkerConfig, WorkerRole,
    WorkerTlsConfig,
};
pub use sections::worker_defaults::WorkerDefaultsConfig;
pub use values::admin_address::AdminAddress;
pub use values::engine::{EngineKind, LoadSource};
pub use values::engine_address::{EngineAddress, EngineHost, EngineLikeness};
pub use values::header_file::{TraceField, read_header_file};
pub use values::pair_place::{PairObstacle, PairPlace};
pub use values::quantity::{format_duration, format_size, parse_duration, parse_size};
pub use values::record_format::{RecordField, RecordFormat};
pub use values::token::read_token;
pub use values::url::{JwksUrl, WorkerUrl, WorkerUrlError, shown_url};
pub use worker_file::read_worker_file;
