//! Counts of a rank that leases and answers write.

pub(crate) mod cache_writes;
pub(crate) mod first_token_counts;
pub(crate) mod kv_report;
pub(crate) mod past;
pub(crate) mod pinned;
mod prompt_counts;
pub(crate) mod signs;
pub(crate) mod unstreamed;
