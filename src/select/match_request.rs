//! What is matched, and against what.

use forebay_fleet::worker::{FleetSnapshot, Model};
use forebay_index::IndexReader;
use forebay_prompt::parse::ApiRequest;
use forebay_prompt::render::RenderThread;

/// A prompt that is to be matched, and against what.
#[derive(Clone, Copy, Debug)]
pub struct MatchRequest<'a> {
    /// All slices.
    pub index: &'a IndexReader,
    /// The ranks.
    pub fleet: &'a FleetSnapshot,
    /// The model that is asked for.
    pub model: &'a Model,
    /// The request as it was scanned.
    pub request: &'a ApiRequest,
    /// Its body.
    pub body: &'a [u8],
    /// Where this runs.
    pub place: RenderThread,
}
