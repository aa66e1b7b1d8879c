//! Bytes of a request to an [`ApiRequest`], or a refusal. Sans-IO.

mod request;

pub use request::{ApiRequest, Endpoint, PromptSource};
