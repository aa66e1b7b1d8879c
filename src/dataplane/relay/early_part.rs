//! The head of an answer that goes out while its request still waits (`queue.sse_comments`): a
//! streaming client gets its position in the queue, and the outcome of the request follows as
//! events. After the head no other status can be sent.

use super::{QueueStanding, StreamShape, encode_standing};
use forebay_base::NanosSinceStart;
use forebay_config::QueueConfig;
use forebay_http1::{AnswerFraming, ResponseHead};
use forebay_prompt::parse::{ApiRequest, Endpoint};

/// Part of the answer that a client has before a worker answers.
#[derive(Clone, Copy, Debug, Default)]
pub enum EarlyPart {
    /// Nothing, however long the request waits.
    #[default]
    Nothing,
    /// Nothing so far: the request has not waited.
    Ready(StreamShape),
    /// The head of the answer.
    Begun(OpenEventStream),
    /// The beginning of a stream that its worker did not finish: a failure, or a move.
    Interrupted(OpenEventStream),
}

/// A stream of events, after its head was sent.
#[derive(Clone, Copy, Debug)]
pub struct OpenEventStream {
    /// Shape of an error in the stream.
    pub shape: StreamShape,
    /// How its bytes are framed.
    pub framing: AnswerFraming,
    /// May another request follow on the connection?
    pub keep_alive: bool,
    /// When its head was sent. Unused in [`EarlyPart::Interrupted`] without an early head: there it
    /// is the time of the break.
    pub begun_at: NanosSinceStart,
    pub comment_due_at: NanosSinceStart,
}

impl EarlyPart {
    /// What a client may have while its request waits.
    pub const fn of(config: &QueueConfig, endpoint: Endpoint, request: &ApiRequest) -> Self {
        match StreamShape::of(endpoint) {
            Some(shape) if config.sse_comments && request.stream => Self::Ready(shape),
            _ => Self::Nothing,
        }
    }

    /// Does the client have the beginning of a stream that its worker did not finish?
    pub const fn is_interrupted(&self) -> bool {
        matches!(self, Self::Interrupted(_))
    }

    /// The stream, once its head is sent.
    pub const fn open_stream(&self) -> Option<&OpenEventStream> {
        match self {
            Self::Begun(begun) | Self::Interrupted(begun) => Some(begun),
            Self::Nothing | Self::Ready(_) => None,
        }
    }
}

impl OpenEventStream {
    /// Can this answer be the rest of the stream?
    pub fn goes_on_with(response: &ResponseHead) -> bool {
        // An empty body would end the stream without a last chunk, see `relay::pump`.
        response.status == 200 && response.is_event_stream() && response.content_length != Some(0)
    }

    /// Appends a comment: position in the queue, waiting time, or worker of the prefill.
    pub fn encode_standing(&self, standing: QueueStanding<'_>, out: &mut Vec<u8>) {
        let mut line = Vec::new();
        encode_standing(standing, &mut line);
        self.framing.push(&line, out);
    }
}
