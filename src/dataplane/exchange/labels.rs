//! What is known of a request for counters and its record.

use forebay_base::RankIndex;
use forebay_prompt::parse::{ApiShape, Endpoint};
use forebay_select::Because;

/// Status of a request whose client left before its answer began: nobody is told.
pub(crate) const CLIENT_GONE: u16 = 499;

/// What a request is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AskedApi {
    pub(crate) endpoint: Endpoint,
    /// Whose shape errors take.
    pub(crate) shape: ApiShape,
}

/// What is known of a request for counters and its record.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Labels {
    pub(crate) asked: Option<AskedApi>,
    pub(crate) model: Option<usize>,
    /// Is a stream asked for? `None` until the body tells.
    pub(crate) stream: Option<bool>,
    /// The rank of the last attempt.
    pub(crate) rank: Option<RankIndex>,
    /// Status of the answer, once there is one.
    pub(crate) status: u16,
    /// Time until the request had been read; `None` if it never was.
    pub(crate) read_ns: Option<u64>,
    /// Time in queues, all of them together.
    pub(crate) queued_ns: u64,
    /// Why the rank was chosen.
    pub(crate) because: Option<Because>,
}

impl Labels {
    pub(crate) fn endpoint(&self) -> Option<Endpoint> {
        self.asked.map(|asked| asked.endpoint)
    }

    pub(crate) fn shape(&self) -> ApiShape {
        self.asked.map_or(ApiShape::OpenAi, |asked| asked.shape)
    }
}
