//! What a worker is, whether it is healthy, and how busy it says it is.
//!
//! One task per worker ([`probe`]) asks over HTTP what the worker is ([`describe`], [`described`],
//! [`capacity`]), watches its health, finds the text of its models ([`model_text`]), and asks the
//! registry of a prefill worker ([`kv_source`], [`registry`]). [`load_tasks`] fetches load reports:
//! [`poll`] asks a worker, [`push`] listens to a rank of SGLang. [`jwks`] fetches keys of tokens.
//! [`srv`] asks for SRV records ([`srv_message`]). Runs on the control plane's thread, which owns
//! what the notices tell. Limits: every answer is bounded in time and in bytes ([`http`]), a
//! message of a publisher has 64 MiB at most. Must never trust an answer, and never take a worker
//! out by itself.

mod capacity;
mod describe;
mod described;
#[cfg(test)]
mod described_tests;
mod exam;
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
mod reached;
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

pub use described::{
    Announced, DescribedRank, Description, Listing, ModelList, ServedModel, configured_model,
    numbered, read_models,
};
pub use exam::Examined;
pub use http::WorkerClients;
pub use jwks::JwksFetch;
pub use kv_source::{KvSource, Registration, Registry, RegistryKind};
pub use lacks::{Lack, lacks};
pub use load_tasks::LoadTasks;
pub use model_text::{FoundText, ModelTexts};
pub use probe::{Probe, ProbeNotice, Probing};
pub use signs::SignsOfLife;
pub use srv::srv_records;
pub use srv_message::{
    SrvAnswer, SrvFault, SrvTarget, answer as srv_answer, question as srv_question,
};
