//! Queues as all shards see them, and rejection windows.

pub(crate) mod queue_tenants;
pub(crate) mod queue_cell;
pub(crate) mod window;
