//! Limits of ranks: declared, learned, and the room that a request takes.

pub(crate) mod learned_limit;
pub(crate) mod learned_limits;
pub(crate) mod limit_source;
pub(crate) mod room_limits;
