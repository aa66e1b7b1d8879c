//! Input of a match: the prompt, the index and the fleet.

use forebay_fleet::trust::ShapeTrust;
use forebay_fleet::worker::{FleetSnapshot, Model};
use forebay_index::IndexReader;
use forebay_prompt::parse::ApiRequest;
use forebay_prompt::render::RenderThread;

/// A prompt to match, with the index and the fleet to match it against.
#[derive(Clone, Copy, Debug)]
pub struct MatchRequest<'a> {
    pub index: &'a IndexReader,
    pub fleet: &'a FleetSnapshot,
    pub model: &'a Model,
    /// The request as scanned from `body`.
    pub request: &'a ApiRequest,
    pub body: &'a [u8],
    /// The thread that runs the match.
    pub place: RenderThread,
}

impl MatchRequest<'_> {
    /// Verdict about predicted hits of such requests.
    #[must_use]
    pub fn trust(&self) -> ShapeTrust {
        let trust = self.model.trust.as_ref();
        trust.map(|trust| trust.get(self.request.shape())).unwrap_or_default()
    }
}
