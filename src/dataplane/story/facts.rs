//! Facts of a request so far, for counters, records and traces.

use forebay_base::{NanosSinceStart, RankIndex};
use forebay_fleet::tenant::TokenUsage;
use forebay_prompt::parse::{ApiShape, Endpoint};
use forebay_router::request::Stop;
use forebay_select::ChoiceReason;

/// Status of a request whose client left before its answer began. Never sent.
pub(crate) const CLIENT_GONE: u16 = 499;

/// Status of a request that the end of a drain cut before its answer began. Never sent.
pub(crate) const DRAINED: u16 = 503;

/// API of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestedApi {
    pub(crate) endpoint: Endpoint,
    /// Shape of error bodies.
    pub(crate) shape: ApiShape,
}

/// Facts of a request so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Facts {
    /// `None` if the path has no endpoint.
    pub(crate) asked: Option<RequestedApi>,
    pub(crate) model: Option<usize>,
    /// Whether the request asks for a stream; `None` until the body is read.
    pub(crate) stream: Option<bool>,
    pub(crate) times: Times,
    /// Rank of the last attempt.
    pub(crate) rank: Option<RankIndex>,
    /// Reason for which the rank was chosen.
    pub(crate) choice_reason: Option<ChoiceReason>,
    pub(crate) answer: AnswerFacts,
}

/// Moments and times of a request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Times {
    pub(crate) started: NanosSinceStart,
    /// Time until the request had been read; `None` if it never was.
    pub(crate) read_ns: Option<u64>,
    /// Total time in queues.
    pub(crate) queued_ns: u64,
    /// Head of the answer from a worker.
    pub(crate) head_at: Option<NanosSinceStart>,
}

/// Answer of a request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AnswerFacts {
    /// Status of the answer.
    pub(crate) status: u16,
    /// Counted status of the worker's relayed head.
    pub(crate) counted: Option<u16>,
    /// Number of ranks that continued the stream.
    pub(crate) continued: u32,
    /// Billed tokens, once the request has ended, if counted.
    pub(crate) usage: Option<TokenUsage>,
    /// Fault of an answer with a 2xx that was relayed.
    pub(crate) fault: Option<AnswerFault>,
}

/// Fault of an answer with a 2xx: it counts as a failure of its rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnswerFault {
    /// Another content type than answers of the endpoint have.
    Form,
    /// No body, an object without members, or an error.
    Body,
}

impl AnswerFault {
    /// For `cause` of a record.
    pub(crate) const fn describe(self) -> &'static str {
        match self {
            Self::Form => "the content type of the worker's answer is wrong for the request",
            Self::Body => "the worker's answer is empty or holds an error",
        }
    }
}

impl Facts {
    pub(crate) fn endpoint(&self) -> Option<Endpoint> {
        self.asked.map(|asked| asked.endpoint)
    }

    pub(crate) fn shape(&self) -> ApiShape {
        self.asked.map_or(ApiShape::OpenAi, |asked| asked.shape)
    }

    /// Status that the client received, and the outcome as a word of a fixed list.
    pub(crate) fn outcome(&self, stop: Option<&Stop>) -> (u16, &'static str) {
        let AnswerFacts { status, counted, .. } = self.answer;
        match stop {
            None => (status, "answered"),
            Some(Stop::BeforeBody(refusal) | Stop::InBody(refusal) | Stop::Refused(refusal)) => {
                (refusal.status(), refusal.reason().as_str())
            }
            Some(Stop::Engine(answer)) => (answer.status, "engine-refused"),
            Some(Stop::ClientGone) => (counted.unwrap_or(CLIENT_GONE), "client-gone"),
            Some(Stop::Cut(_)) => (counted.unwrap_or(CLIENT_GONE), "cut"),
            Some(Stop::Drained) => (counted.unwrap_or(DRAINED), "cut"),
        }
    }
}
