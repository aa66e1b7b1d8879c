//! A single attempt at a worker: head and body to send, its answer, and the blame.

pub(crate) mod added_fields;
pub(crate) mod answer_meaning;
pub(crate) mod blame;
pub(crate) mod outbound;
pub(crate) mod relay_answer;
pub(crate) mod tunnel;
