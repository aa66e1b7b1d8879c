//! What header fields and queries of a request ask for.

pub(crate) mod model_path;
pub(crate) mod owned;
pub(crate) mod parameters;
pub(crate) mod pin;
pub(crate) mod priority;
pub(crate) mod query;
pub(crate) mod session;
pub(crate) mod stored;
pub(crate) mod hints;
