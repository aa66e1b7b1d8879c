//! Input of a match: the prompt, the index and the fleet.

use crate::cache_namespace;
use forebay_fleet::trust::ShapeTrust;
use forebay_fleet::worker::{ANY_MODEL, FleetSnapshot, Model};
use forebay_index::{BlockKey, GuessKind, IndexReader};
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
    pub thread: RenderThread,
}

impl MatchRequest<'_> {
    /// Verdict about predicted hits of such requests.
    #[must_use]
    pub fn trust(&self) -> ShapeTrust {
        let trusts = &self.fleet.serving.trusts;
        if trusts.is_empty() {
            return ShapeTrust::default();
        }
        trusts.of(&self.model.name, self.request.shape())
    }

    /// Root of the paths of guesses.
    pub(crate) fn guess_root(&self, kind: GuessKind) -> BlockKey {
        let roots = &self.model.roots.guesses;
        let root = match kind {
            GuessKind::Approximate => roots.approximate,
            GuessKind::Speculative => roots.speculative,
        };
        let root = self.index.salted(root, &cache_namespace(self.model, self.request));
        // A single entry of the fleet may cover many models.
        let is_any = &*self.model.name == ANY_MODEL;
        if is_any { self.index.salted(root, &self.request.model) } else { root }
    }
}
