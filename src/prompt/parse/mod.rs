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
mod fields;
mod prompt;
mod refusals;
mod rename;
mod request;
mod route;
mod scan;
mod scan_error;
mod transfer;
mod principal;

pub use fields::hints::{HintRules, RequestHints};
pub use fields::model_path::ModelPath;
pub use fields::pin::rank_pin;
pub use fields::query::query_model;
pub use fields::session::session_key;
pub use fields::stored_call::StoredCall;
pub use form::scan_form;
pub use form_type::{FormType, form_type};
pub use messages::MESSAGES_MAX;
pub use principal::{KnownTokens, Principal};
pub use refusals::reason::Reason;
pub use refusals::refuse::Refusal;
pub use request::{ApiRequest, ApiShape, Endpoint, NOT_TEXT_BYTES, PromptSource};
pub use route::{
    CLIENT_ROUTES, ClientRoute, ENGINE_CALLS, is_engine_call, may_be_websocket, route,
};
pub use scan::{CACHE_SALT_BYTES_MAX, MODEL_BYTES_MAX, scan, scan_briefly};
pub use scan_error::ScanError;
