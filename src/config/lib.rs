//! The configuration: its types and defaults, the TOML file, the command line over it, and the
//! check that reports every finding at once. Runs once, in `main`, before any other thread; holds
//! no state; never prints a secret.

mod admin_address;
mod check;
mod check_admin;
mod check_client;
mod check_disaggregation;
mod check_doors;
mod check_flow;
mod check_names;
mod check_pools;
mod check_replicas;
mod check_tls;
mod check_traces;
mod check_upstream;
mod client;
mod check_keys;
#[cfg(test)]
mod disaggregation_tests;
mod discovery;
mod effective;
mod engine;
mod engine_address;
mod finding;
mod flags;
mod flow;
mod key;
mod listening;
mod load;
mod load_source;
mod nearest;
mod quantity;
mod reader;
mod record_format;
mod reload;
mod replicas;
mod schema;
mod setting;
mod table;
mod tls;
#[cfg(test)]
mod tls_tests;
mod token;
#[cfg(test)]
mod test_findings;
#[cfg(test)]
mod tests;
mod traces;
mod url;
mod upstream;
mod worker;
mod worker_file;

pub use admin_address::AdminAddress;
pub use client::{ClientConfig, CorsConfig, Forwarded, JwtConfig};
pub use discovery::DiscoveryConfig;
pub use effective::{KeyEntry, all_keys, changed_json, to_json, to_toml};
pub use engine::{EngineKind, LoadSource};
pub use engine_address::{EngineAddress, EngineHost, EngineLikeness};
pub use finding::{Finding, Origin, Origins, Severity};
pub use flags::Flags;
pub use flow::{
    DisaggregationConfig, Fallback, FlowConfig, QUEUE_CLASSES, QueueConfig, QueueMode,
    RejectionConfig, TenantConfig,
};
pub use key::{Flag, Form, Key};
pub use load::{ConfigText, LoadedConfig, load};
pub use quantity::{format_duration, format_size, parse_duration, parse_size};
pub use record_format::{RecordField, RecordFormat};
pub use reload::{ConfigSource, ReloadError, Reloader};
pub use replicas::{NatsConfig, ReplicasConfig};
pub use schema::{
    AdapterConfig, ApproximateConfig, BreakerConfig, Config, HealthConfig, IndexConfig, KvConfig,
    LimitsConfig, LoadConfig, LogConfig, ModelConfig, Policy, RetryConfig, SessionConfig,
    TimeoutsConfig,
};
pub use setting::{Kind, Word};
pub use table::{Changes, WorkerChanges};
pub use tls::{
    AdminTlsConfig, CertificateConfig, ClientAuth, ListenerConfig, TlsConfig, UpstreamTlsConfig,
};
pub use token::read_token;
pub use traces::TracesConfig;
pub use upstream::{Connectors, KnownConnectors, UpstreamFault};
pub use url::{JwksUrl, WorkerUrl, WorkerUrlError, shown_url};
pub use worker::{
    KvFlow, KvTransferConfig, MOONCAKE_PORT, SIDE_CHANNEL_PORT, WorkerConfig, WorkerRole,
    WorkerTlsConfig,
};
pub use worker_file::workers_of;
