//! Counts of a rank. Leases, answers and the control plane write them.

pub(crate) mod cache_writes;
pub(crate) mod first_token_counts;
pub(crate) mod foreign_requests;
pub(crate) mod kv_report;
pub(crate) mod pinned_prefixes;
mod prompt_counts;
pub(crate) mod rank_past;
pub(crate) mod rank_signs;
pub(crate) mod unstreamed_prompts;
