//! Limits that the control plane learns from load reports.

pub(crate) mod learned_limit;
pub(crate) mod learned_limits;
