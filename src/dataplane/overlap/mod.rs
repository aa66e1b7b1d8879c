//! Prompt of a request and the overlap that each rank has with it.

pub(crate) mod prediction;
pub(crate) mod prompt_match;
