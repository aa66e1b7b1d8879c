//! Sections of the configuration: their keys, types and defaults.

pub(crate) mod client;
pub(crate) mod discovery;
pub(crate) mod equipped_worker;
pub(crate) mod flow;
mod listening;
mod load_source;
pub(crate) mod replicas;
pub(crate) mod schema;
mod secret_files;
pub(crate) mod server_names;
pub(crate) mod tls;
pub(crate) mod traces;
pub(crate) mod upstream;
pub(crate) mod worker;
pub(crate) mod worker_defaults;
