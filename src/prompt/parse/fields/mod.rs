//! What header fields and queries of a request ask for.

pub(crate) mod model_path;
pub(crate) mod router_members;
pub(crate) mod parameters;
pub(crate) mod pin;
pub(crate) mod priority;
pub(crate) mod query;
pub(crate) mod session;
pub(crate) mod stored_call;
pub(crate) mod hints;
