//! Explanations of a prompt's route.

pub(crate) mod explain;
mod explain_words;
#[cfg(test)]
mod explain_tests;
pub(crate) mod explain_thread;
