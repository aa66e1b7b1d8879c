//! Responses that engines store for later requests, and their ranks.

use forebay_base::{ModelIndex, RankIndex, ResponseId, TenantIndex};

/// A stored response that an engine has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredResponse {
    /// Its id, as the engine reported it.
    pub id: ResponseId,
    /// Where later requests find it.
    pub place: ResponsePlace,
}

/// Place of a stored response, and its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponsePlace {
    /// The rank that made the response. All ranks at its address store it.
    pub rank: RankIndex,
    /// The model that made the response.
    pub model: ModelIndex,
    /// The tenant that owns the response: no other tenant can access it.
    pub tenant: TenantIndex,
}
