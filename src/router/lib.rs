//! Decisions on a request: the state machine ([`request`]), the queue of a pool ([`queue`]), the
//! ranks that store responses ([`stored_response`]), and the request to the worker ([`dispatch`]).
//! No I/O.

pub mod dispatch;
pub mod queue;
pub mod request;
pub mod stored_response;
