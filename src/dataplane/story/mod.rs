//! Observers of a request: trace, access record, notes for `explain`, and what it costs its tenant.
//! No phase of the path depends on their result, but for the quota.

pub(crate) mod access_record;
pub(crate) mod bill;
pub(crate) mod note_request;
pub(crate) mod quota;
pub(crate) mod traces;
