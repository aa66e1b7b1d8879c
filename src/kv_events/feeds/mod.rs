//! The tasks of feeds, and requests for missed batches.

mod expiry;
pub(crate) mod feed;
mod follow;
#[cfg(test)]
mod feed_tests;
pub(crate) mod feed_size;
mod patience;
pub(crate) mod pool_task;
pub(crate) mod port;
mod recovery;
mod relay;
mod replays;
pub(crate) mod timers;
