//! The match of a prompt: its text, the held part of each rank, and its worth.

mod guesses;
pub(crate) mod match_request;
pub(crate) mod prompt_overlaps;
pub(crate) mod part_keys;
pub(crate) mod prompt;
pub(crate) mod prompt_size;
pub(crate) mod tiers;
pub(crate) mod reported_paths;
