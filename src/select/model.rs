//! The model that a request asks for, and with it the ranks that may serve it.

use crate::base::ModelIndex;
use crate::parse::{ApiRequest, Endpoint};
use crate::worker::{FleetSnapshot, Model};

/// A model of this name takes requests for any model: with health checks off the served names are unknown.
pub const ANY_MODEL: &str = "*";

/// Why no model is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoModel {
    /// No worker has said yet what it serves.
    NoneYet,
    /// No worker serves the named one.
    Unknown,
    /// The endpoint needs a name and the body has none.
    Missing,
}

/// The model a request asks for. Endpoints that engines serve without a model name get the first one.
///
/// # Errors
/// [`NoModel`] when there is none.
pub fn model<'a>(
    fleet: &'a FleetSnapshot,
    endpoint: Endpoint,
    request: &ApiRequest,
) -> Result<(ModelIndex, &'a Model), NoModel> {
    if let Some(any) = fleet.model(ANY_MODEL) {
        return Ok(any);
    }
    if request.has_model && endpoint != Endpoint::Models {
        let served = fleet.model(&request.model).filter(|(_, model)| !model.ranks.is_empty());
        let none = if fleet.models.is_empty() { NoModel::NoneYet } else { NoModel::Unknown };
        return served.ok_or(none);
    }
    let optional = matches!(
        endpoint,
        Endpoint::Generate | Endpoint::Tokenize | Endpoint::Detokenize | Endpoint::Models
    );
    if !optional {
        return Err(NoModel::Missing);
    }
    fleet.models.first().map(|model| (ModelIndex(0), model)).ok_or(NoModel::NoneYet)
}
