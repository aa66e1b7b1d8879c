//! Answers of the router itself, and what follows them on the connection.

pub(crate) mod discard;
pub(crate) mod early_head;
pub(crate) mod refusal;
