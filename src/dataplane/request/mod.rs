//! Path of a request: `serve` calls all phases in order.

pub(crate) mod attempt;
mod choice;
mod declined_answer;
pub(crate) mod deliver;
mod phases;
pub(crate) mod pressure;
pub(crate) mod queue_wait;
pub(crate) mod serve;
