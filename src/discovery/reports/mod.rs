//! Load reports that the router fetches or subscribes to.

pub(crate) mod load_tasks;
#[cfg(test)]
mod load_tests;
pub(crate) mod poll;
pub(crate) mod push;
