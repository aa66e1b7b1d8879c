//! Model, adapter or stored response that a request is for; pages that the router answers.

pub(crate) mod adapter;
pub(crate) mod facts;
pub(crate) mod models;
pub(crate) mod naming;
pub(crate) mod own_page;
pub(crate) mod preflight;
pub(crate) mod stored_response;
pub(crate) mod target;
