//! Phases of a request: arrived, admitted, received, targeted, matched, delivery, answered.

use super::resumable::Resumable;
use crate::state::workers::ShardFleet;
use forebay_base::NanosSinceStart;
use forebay_board::ShardBoard;
use forebay_board::admit::AdmittedRequest as InFlightPlace;
use forebay_mailbox::RequestFacts;
use forebay_prompt::parse::Endpoint;
use forebay_router::request::{NewRequest, Split, WorkerReply};
use std::rc::Rc;

/// The head is read and its path has an endpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadPhase {
    pub(crate) endpoint: Endpoint,
}

/// The caller is authenticated, and the limits have room for the request.
#[derive(Debug)]
pub(crate) struct AdmissionPhase {
    pub(crate) endpoint: Endpoint,
    pub(crate) new_request: NewRequest,
    pub(crate) places: LimitPlaces,
}

/// Places of a request in the limits of the router and of its shard. Returned when dropped.
#[derive(Debug)]
pub(crate) struct LimitPlaces {
    pub(crate) _router: RouterPlace,
    pub(crate) shard: InFlightPlace,
}

/// Place among the requests in flight of all shards (`limits.router_in_flight_max`).
#[derive(Debug)]
pub(crate) struct RouterPlace(pub(crate) ShardBoard);

impl Drop for RouterPlace {
    fn drop(&mut self) {
        self.0.in_flight().exit();
    }
}

/// Head and body are read, and the body is scanned.
#[derive(Debug)]
pub(crate) struct BodyPhase {
    pub(crate) endpoint: Endpoint,
    pub(crate) new_request: NewRequest,
    pub(crate) places: LimitPlaces,
    /// Time of the last byte. Queue waits count from here, so a slow upload gains no earlier place.
    pub(crate) read_at: NanosSinceStart,
}

/// The model and the facts for choosing ranks are known.
pub(crate) struct TargetPhase {
    pub(crate) endpoint: Endpoint,
    pub(crate) new_request: NewRequest,
    pub(crate) places: LimitPlaces,
    /// Fleet in which the model was found.
    pub(crate) fleet: Rc<ShardFleet>,
    pub(crate) facts: RequestFacts,
    pub(crate) resumable: Resumable,
}

/// The prompt is matched: ranks can be chosen.
pub(crate) struct MatchPhase {
    pub(crate) endpoint: Endpoint,
    pub(crate) new_request: NewRequest,
    pub(crate) places: LimitPlaces,
    pub(crate) facts: RequestFacts,
    pub(crate) delivery: Delivery,
}

/// The request is sent to ranks, with retries until a byte reaches the client.
#[derive(Debug, Default)]
pub(crate) struct Delivery {
    /// Parts of the body that a KV transfer needs, once inspected.
    pub(crate) split: Split,
    /// State for continuing the stream on another rank.
    pub(crate) resumable: Resumable,
    /// Worker's answer to a failed attempt.
    pub(crate) reply: WorkerReply,
}

/// The client has its answer, or its connection is to end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnswerPhase {
    pub(crate) after: ConnectionReuse,
}

/// Use of the connection after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionReuse {
    /// The next request may follow.
    KeepAlive,
    /// Close gracefully, so that the sent answer arrives.
    Linger,
    /// Nothing more to send: the client left, or the answer was cut off on purpose.
    Drop,
}
