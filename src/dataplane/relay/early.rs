//! The head of an answer that goes out while its request still waits (`queue.sse_comments`): a
//! streaming client is told where it stands, and whatever becomes of the request then follows as
//! events. Once begun, no status can be told any more.

use super::{QueueStanding, StreamShape, encode_standing};
use forebay_base::NanosSinceStart;
use forebay_config::QueueConfig;
use forebay_http1::{AnswerFraming, ResponseHead};
use forebay_prompt::parse::{ApiRequest, Endpoint};

/// What the client of one request has before there is an answer.
#[derive(Clone, Copy, Debug, Default)]
pub enum Early {
    /// Nothing, however long it waits.
    #[default]
    Nothing,
    /// Nothing yet: it has not had to wait.
    Ready(StreamShape),
    /// The head of the answer.
    Begun(Begun),
    /// The beginning of a stream whose worker has failed.
    Broken(Begun),
}

/// A stream of events whose head is sent.
#[derive(Clone, Copy, Debug)]
pub struct Begun {
    /// How it tells of an error.
    pub shape: StreamShape,
    /// How its bytes are framed.
    pub framing: AnswerFraming,
    /// May another request follow on the connection?
    pub keep_alive: bool,
    /// When its head was sent.
    pub at: NanosSinceStart,
    /// The next comment is due.
    pub next_at: NanosSinceStart,
}

impl Early {
    /// What a client may have while its request waits.
    pub const fn of(config: &QueueConfig, endpoint: Endpoint, request: &ApiRequest) -> Self {
        match StreamShape::of(endpoint) {
            Some(shape) if config.sse_comments && request.stream => Self::Ready(shape),
            _ => Self::Nothing,
        }
    }

    /// Has the client the beginning of a stream whose worker has failed?
    pub const fn is_broken(&self) -> bool {
        matches!(self, Self::Broken(_))
    }

    /// The stream, once its head is sent.
    pub const fn begun(&self) -> Option<&Begun> {
        match self {
            Self::Begun(begun) | Self::Broken(begun) => Some(begun),
            Self::Nothing | Self::Ready(_) => None,
        }
    }
}

impl Begun {
    /// Can this answer be the rest of the stream?
    pub fn goes_on_with(response: &ResponseHead) -> bool {
        response.status == 200 && response.event_stream && response.content_length != Some(0)
    }

    /// Appends a comment that says where the request stands.
    pub fn encode(&self, standing: QueueStanding<'_>, out: &mut Vec<u8>) {
        let mut line = Vec::new();
        encode_standing(standing, &mut line);
        self.framing.push(&line, out);
    }
}
