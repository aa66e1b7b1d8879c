//! Prompt of a request, and its overlap with each rank.

pub(crate) mod prediction;
pub(crate) mod prompt_match;
