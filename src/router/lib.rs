//! The decisions on one request: the state machine ([`request`]), the queue of a pool ([`queue`]),
//! who keeps a response ([`kept`]), and what is sent to the worker ([`dispatch`]). No I/O.

pub mod dispatch;
pub mod kept;
pub mod queue;
pub mod request;
