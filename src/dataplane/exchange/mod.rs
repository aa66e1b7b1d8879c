//! A request is a value: [`Exchange`]. Each phase consumes the exchange of the phase before and
//! makes the next. State of a request ends with its exchange; buffers belong to the connection.

pub(crate) mod buffers;
pub(crate) mod phase;
pub(crate) mod rate_fields;
pub(crate) mod request;
pub(crate) mod resumable;

use forebay_router::request::Stop;
use request::Request;

/// A request in one of its phases ([`phase`]).
pub(crate) struct Exchange<'c, P> {
    /// Parts that all phases have. Boxed: an exchange moves from phase to phase.
    pub(crate) request: Box<Request<'c>>,
    pub(crate) phase: P,
}

/// A request that no phase follows for: the router answers, or nothing does.
pub(crate) struct RefusedExchange<'c> {
    pub(crate) request: Box<Request<'c>>,
    pub(crate) stop: Stop,
}

impl<'c, P> Exchange<'c, P> {
    /// The next phase of the request.
    pub(crate) fn next<Q>(self, phase: Q) -> Exchange<'c, Q> {
        Exchange { request: self.request, phase }
    }

    /// The request ends here.
    pub(crate) fn stop(self, stop: impl Into<Stop>) -> RefusedExchange<'c> {
        RefusedExchange { request: self.request, stop: stop.into() }
    }
}
