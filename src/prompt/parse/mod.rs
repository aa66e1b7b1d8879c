//! Bytes of a request to an [`ApiRequest`], or a [`Refusal`]. Sans-IO: no socket, no clock, no
//! allocation once the reused request has grown to size.
//!
//! [`route`] maps a path to an API, [`scan`] reads the body once and keeps spans into it,
//! [`Refusal`] is every error that the router itself returns. The body is never re-serialised: the
//! engine gets the bytes that were scanned. This module must never follow a body deeper than
//! [`forebay_base::limits::JSON_DEPTH_MAX`].

mod form;
mod form_type;
mod images;
mod lengths;
mod messages;
mod model_path;
mod owned;
mod parameters;
mod pin;
mod priority;
mod prompt;
mod query;
mod reason;
mod refuse;
mod rename;
mod request;
mod route;
mod scan;
mod scan_error;
mod session;
mod stored;
mod transfer;
mod hints;
mod whom;

pub use form::scan_form;
pub use form_type::{FormType, form_type};
pub use hints::{HintRules, RequestHints};
pub use messages::MESSAGES_MAX;
pub use model_path::ModelPath;
pub use pin::rank_pin;
pub use query::query_model;
pub use reason::Reason;
pub use refuse::Refusal;
pub use request::{ApiRequest, ApiShape, Endpoint, NOT_TEXT_BYTES, PromptSource};
pub use route::{
    CLIENT_ROUTES, ClientRoute, ENGINE_CALLS, is_engine_call, may_be_websocket, route,
};
pub use scan::{CACHE_SALT_BYTES_MAX, MODEL_BYTES_MAX, scan, scan_briefly};
pub use scan_error::ScanError;
pub use session::session_key;
pub use stored::StoredCall;
pub use whom::{KnownTokens, Principal};
