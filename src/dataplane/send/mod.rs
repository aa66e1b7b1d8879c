//! One attempt at a worker: head and body that it is sent, its answer, and the blame.

pub(crate) mod answer_meaning;
pub(crate) mod blame;
pub(crate) mod outbound;
pub(crate) mod relay_answer;
pub(crate) mod tunnel;
