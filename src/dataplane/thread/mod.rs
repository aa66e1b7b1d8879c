//! Thread of a shard: tasks, inbox, slice of the index, and the queues that the shard owns.

pub(crate) mod configure;
pub(crate) mod drain;
pub(crate) mod inbox;
#[cfg(debug_assertions)]
pub(crate) mod planted_fault;
pub(crate) mod prefill_leg;
pub(crate) mod queues;
pub(crate) mod run;
pub(crate) mod slice;
