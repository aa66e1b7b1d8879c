//! Answers of the router itself, and the use of the connection afterwards.

pub(crate) mod discard;
pub(crate) mod early_head;
pub(crate) mod refusal;
pub(crate) mod unread_answer;
