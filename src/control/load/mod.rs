//! The tasks that fetch load reports: [`poll`] asks a worker over HTTP, [`push`] listens to what a
//! rank of SGLang publishes. `forebay_load` reads what comes. Limits: one answer of 8 MiB or one
//! message of 64 MiB under way per task. Must never take a worker out.

mod poll;
mod push;
mod tasks;
#[cfg(test)]
mod tests;

pub(super) use tasks::LoadTasks;
