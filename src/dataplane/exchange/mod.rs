//! A request is a value: [`Exchange`]. Each phase consumes the exchange of the previous phase and
//! returns the next. The state of a request ends with its exchange; buffers belong to the
//! connection.

pub(crate) mod buffers;
pub(crate) mod phase;
pub(crate) mod rate_fields;
pub(crate) mod request;
pub(crate) mod resumable;

use forebay_router::request::Stop;
use request::Request;

/// A request in a phase, see [`phase`].
pub(crate) struct Exchange<'c, P> {
    /// Parts shared by all phases. Boxed: an exchange moves from phase to phase.
    pub(crate) request: Box<Request<'c>>,
    pub(crate) phase: P,
}

/// A stopped request: the router answers, or no answer follows.
pub(crate) struct RefusedExchange<'c> {
    pub(crate) request: Box<Request<'c>>,
    pub(crate) stop: Stop,
}

impl<'c, P> Exchange<'c, P> {
    /// Moves the request to the next phase.
    pub(crate) fn next<Q>(self, phase: Q) -> Exchange<'c, Q> {
        Exchange { request: self.request, phase }
    }

    pub(crate) fn stop(self, stop: impl Into<Stop>) -> RefusedExchange<'c> {
        RefusedExchange { request: self.request, stop: stop.into() }
    }
}
