//! State of one request, from its head to its answer.

pub(crate) mod labels;
pub(crate) mod noted_request;
pub(crate) mod open_trace;
pub(crate) mod quota_use;
pub(crate) mod rate_fields;
pub(crate) mod response_scan;
pub(crate) mod resumable;
pub(crate) mod slot;
pub(crate) mod work_meter;
