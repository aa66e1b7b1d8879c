//! The cost of a request on a rank.

pub(crate) mod cost;
pub(crate) mod prices;
mod speeds;
