//! Phases of a request: arrived, admitted, received, targeted, matched, delivery, answered.

use super::resumable::Resumable;
use crate::state::workers::ShardFleet;
use forebay_base::NanosSinceStart;
use forebay_fleet::admit::AdmittedRequest as InFlightPlace;
use forebay_fleet::mailbox::RequestFacts;
use forebay_fleet::worker::ShardBoard;
use forebay_prompt::parse::Endpoint;
use forebay_router::request::{Newcomer, Split, WorkerReply};
use std::rc::Rc;

/// The head is read, and an endpoint has its path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadPhase {
    pub(crate) endpoint: Endpoint,
}

/// The caller is known, and the limits have room for the request.
#[derive(Debug)]
pub(crate) struct AdmissionPhase {
    pub(crate) endpoint: Endpoint,
    pub(crate) newcomer: Newcomer,
    pub(crate) places: LimitPlaces,
}

/// LimitPlaces of a request in the limits of the router and of its shard; given back when dropped.
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
    pub(crate) newcomer: Newcomer,
    pub(crate) places: LimitPlaces,
    /// Time of the last byte. Waits count from here: a client that sends slowly has no earlier
    /// place.
    pub(crate) read_at: NanosSinceStart,
}

/// The model is known, and the facts that ranks are chosen by.
pub(crate) struct TargetPhase {
    pub(crate) endpoint: Endpoint,
    pub(crate) newcomer: Newcomer,
    pub(crate) places: LimitPlaces,
    /// Fleet in which the model was found.
    pub(crate) fleet: Rc<ShardFleet>,
    pub(crate) facts: RequestFacts,
    pub(crate) resumable: Resumable,
}

/// The prompt is matched: ranks can be chosen.
pub(crate) struct MatchPhase {
    pub(crate) endpoint: Endpoint,
    pub(crate) newcomer: Newcomer,
    pub(crate) places: LimitPlaces,
    pub(crate) facts: RequestFacts,
    pub(crate) delivery: Delivery,
}

/// The request goes to ranks, again while no byte has reached the client.
#[derive(Debug, Default)]
pub(crate) struct Delivery {
    /// Parts of the body that a KV transfer needs, once these are looked for.
    pub(crate) split: Split,
    /// State that another rank needs to go on with the stream.
    pub(crate) resumable: Resumable,
    /// Answer of a worker to an attempt that failed.
    pub(crate) reply: WorkerReply,
}

/// The client has its answer, or the beginning of it and the end of its connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnswerPhase {
    pub(crate) after: After,
}

/// Use of the connection after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// The next request may come.
    KeepAlive,
    /// The answer is sent; end the connection so that it arrives.
    Linger,
    /// Nothing more to send: the client left, or the answer was cut off on purpose.
    Drop,
}
