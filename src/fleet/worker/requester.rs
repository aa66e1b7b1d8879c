//! The source of a request, as far as the blame for its failure depends on it.

use forebay_base::ModelIndex;

/// The caller and the model of a request, for blame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requester {
    /// A hash of the tenant, or of the client's address where clients have no keys.
    pub caller: u32,
    pub model: ModelIndex,
    /// Every rank left for the request is paused: pauses do not apply.
    pub is_forced: bool,
}
