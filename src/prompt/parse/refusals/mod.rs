//! Answers of the router itself.

pub(crate) mod reason;
pub(crate) mod refuse;
