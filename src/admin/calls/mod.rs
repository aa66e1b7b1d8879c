//! Calls of operators, and the JSON that answers them.

pub(crate) mod add_worker;
pub(crate) mod worker_drain;
pub(crate) mod drop_in;
pub(crate) mod engine_call;
pub(crate) mod engines;
pub(crate) mod flow;
pub(crate) mod prompt_faults;
pub(crate) mod rank_faults;
pub(crate) mod reload;
pub(crate) mod replicas;
pub(crate) mod roles;
pub(crate) mod sleep_refusal;
pub(crate) mod windows;
pub(crate) mod workers;
