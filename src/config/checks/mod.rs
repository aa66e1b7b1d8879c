//! Checks of a whole configuration: every finding at once.

pub(crate) mod check;
mod admin;
mod client;
pub(crate) mod contradictions;
mod disaggregation;
mod flow;
mod kv_endpoints;
mod names;
mod pools;
mod replicas;
mod tls;
mod traces;
pub(crate) mod unused;
mod upstream;
mod worker_keys;
mod written_files;
mod keys;
#[cfg(test)]
mod disaggregation_tests;
#[cfg(test)]
mod tls_tests;
#[cfg(test)]
pub(crate) mod test_findings;
