//! The event stream of a rank: batches in sequence, and the state that a snapshot restores.

mod block_sizes;
mod event_target;
pub(crate) mod rank_copy;
pub(crate) mod text_fit;
pub(crate) mod rank;
#[cfg(test)]
mod restore_tests;
pub(crate) mod restore;
pub(crate) mod restore_builder;
pub(crate) mod sequence;
pub(crate) mod shared_state;
