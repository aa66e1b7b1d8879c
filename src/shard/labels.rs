//! What is known of a request for counters and its record.

use forebay_base::RankIndex;
use forebay_prompt::parse::{ApiShape, Endpoint};
use forebay_select::Because;

/// Status of a request whose client left before its answer began: nobody is told.
pub(super) const CLIENT_GONE: u16 = 499;

/// What a request is for.
#[derive(Clone, Copy, Debug)]
pub(super) struct AskedApi {
    pub(super) endpoint: Endpoint,
    /// Whose shape errors take.
    pub(super) shape: ApiShape,
}

/// What is known of a request for counters and its record.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Labels {
    pub(super) asked: Option<AskedApi>,
    pub(super) model: Option<usize>,
    /// Is a stream asked for? `None` until the body tells.
    pub(super) stream: Option<bool>,
    /// The rank of the last attempt.
    pub(super) rank: Option<RankIndex>,
    /// Status of the answer, once there is one.
    pub(super) status: u16,
    /// Time until the request had been read; `None` if it never was.
    pub(super) read_ns: Option<u64>,
    /// Time in queues, all of them together.
    pub(super) queued_ns: u64,
    /// Why the rank was chosen.
    pub(super) because: Option<Because>,
}

impl Labels {
    pub(super) fn endpoint(&self) -> Option<Endpoint> {
        self.asked.map(|asked| asked.endpoint)
    }

    pub(super) fn shape(&self) -> ApiShape {
        self.asked.map_or(ApiShape::OpenAi, |asked| asked.shape)
    }
}
