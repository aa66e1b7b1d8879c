//! Failures of ranks: breakers, ejection, blame and refusals.

pub(crate) mod breaker;
pub(crate) mod comparison_turn;
pub(crate) mod ejection;
pub(crate) mod refusal;
pub(crate) mod suspect;
pub(crate) mod tag;
