//! Discovers workers: engine, health and reported load.
//!
//! One task per worker ([`probe`]) queries the worker over HTTP ([`descriptions::describe`],
//! [`descriptions::description`], [`descriptions::capacity`]), checks its health, finds the
//! tokenizers and templates of its models ([`model_text`]), and queries the registry of a prefill
//! worker ([`descriptions::kv_source`], [`descriptions::registry`]). [`reports::load_tasks`]
//! fetches load reports: [`reports::poll`] queries a worker, [`reports::push`] subscribes to a rank
//! of SGLang. [`jwks`] fetches keys of tokens. [`names::srv`] resolves SRV records
//! ([`names::srv_message`]). Runs on the control plane's thread, which owns the results. Limits:
//! each response is bounded in time and in bytes ([`http`]), a publisher's message by
//! [`forebay_zmq::zmtp::MESSAGE_BYTES_MAX`]. Must never trust a response, and never remove a worker
//! by itself.

mod descriptions;
mod names;
mod http;
mod jwks;
mod reports;
mod look;
mod model_text;
mod trouble_help;
mod probe;
mod health_counts;
mod last_description;
mod signs;
mod worker_look;
#[cfg(any(test, feature = "test_support"))]
#[macro_use]
pub mod test_support;
#[cfg(test)]
mod tests;

pub use descriptions::contradictions::contradictions;
pub use descriptions::description::{
    DescribedRank, Description, Listing, ModelList, ServedModel, ServerTraits, configured_model,
    numbered, read_models,
};
pub use descriptions::engine_report::EngineReport;
pub use descriptions::event_announcement::EventAnnouncement;
pub use descriptions::examination::Examination;
pub use descriptions::kv_source::{KvSource, Registration, Registry, RegistryKind};
pub use descriptions::missing_features::{MissingFeature, lacks};
pub use descriptions::suspect_feeds::{EventSubject, SuspectFeed, shared_endpoints, suspect_feeds};
pub use http::{WorkerClients, cause_of};
pub use jwks::JwksFetch;
pub use model_text::{FoundText, ModelTexts};
pub use names::named_workers::{NamedWorkers, workers_of_name};
pub use names::resolver::{NamedResolver, name_fault};
pub use names::srv::srv_records;
pub use names::srv_message::{
    SrvAnswer, SrvFault, SrvTarget, answer as srv_answer, question as srv_question,
};
pub use probe::{Probe, ProbeFactory, ProbeNotice};
pub use reports::load_tasks::LoadTasks;
pub use signs::{LastChecks, SignsOfLife};
pub use trouble_help::{is_answer, trouble_help};
