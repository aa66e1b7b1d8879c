//! Bodies that the scan refuses.

use forebay_json::JsonError;
use thiserror::Error;

/// Why a body was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ScanError {
    /// Not JSON.
    #[error(transparent)]
    Json(#[from] JsonError),
    /// A value, but no object.
    #[error("it is another JSON value")]
    NotObject,
    /// Key that only the router may set.
    #[error("only the router may set {key}")]
    Owned {
        /// The key that the client set.
        key: &'static str,
    },
    /// A response that the engine makes after its answer.
    #[error("`background` is true")]
    Background,
    /// Key that requires an object as its value.
    #[error("{key} is no object")]
    MemberNotObject {
        /// The key of that value.
        key: &'static str,
    },
    /// A form that engines may read in two ways, or not at all.
    #[error("{what}")]
    Form {
        /// What is wrong with it.
        what: &'static str,
    },
    /// Model name longer than [`super::MODEL_BYTES_MAX`].
    #[error("the model name is too long")]
    ModelTooLong,
}
