//! Discovers workers: engine, health and reported load.
//!
//! One task per worker ([`probe`]) queries the worker over HTTP ([`describe`], [`description`],
//! [`capacity`]), checks its health, finds the tokenizers and templates of its models
//! ([`model_text`]), and queries the registry of a prefill worker ([`kv_source`], [`registry`]).
//! [`load_tasks`] fetches load reports: [`poll`] queries a worker, [`push`] subscribes to a rank of
//! SGLang. [`jwks`] fetches keys of tokens. [`srv`] resolves SRV records ([`srv_message`]). Runs on
//! the control plane's thread, which owns the results. Limits: each response is bounded in time and
//! in bytes ([`http`]), a publisher's message by [`forebay_zmq::zmtp::MESSAGE_BYTES_MAX`]. Must
//! never trust a response, and never remove a worker by itself.

mod capacity;
mod describe;
mod description;
#[cfg(test)]
mod description_tests;
mod examination;
mod followed_name;
mod http;
mod jwks;
mod kv_source;
mod lacks;
mod load_tasks;
#[cfg(test)]
mod load_tests;
mod look;
mod lookup;
mod model_text;
mod poll;
mod probe;
mod push;
mod health_counts;
mod registry;
mod signs;
mod srv;
mod srv_message;
mod worker_look;
#[cfg(any(test, feature = "test_support"))]
#[macro_use]
pub mod test_support;
#[cfg(test)]
mod tests;

pub use description::{
    DescribedRank, Description, EventAnnouncement, Listing, ModelList, ServedModel, ServerTraits,
    configured_model, numbered, read_models,
};
pub use examination::Examination;
pub use http::WorkerClients;
pub use jwks::JwksFetch;
pub use kv_source::{KvSource, Registration, Registry, RegistryKind};
pub use lacks::{Lack, lacks};
pub use load_tasks::LoadTasks;
pub use model_text::{FoundText, ModelTexts};
pub use probe::{Probe, ProbeFactory, ProbeNotice};
pub use signs::SignsOfLife;
pub use srv::srv_records;
pub use srv_message::{
    SrvAnswer, SrvFault, SrvTarget, answer as srv_answer, question as srv_question,
};
