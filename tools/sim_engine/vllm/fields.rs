//! Fields of a request's body. Unknown fields are ignored, and of a repeated field the last counts,
//! as in vLLM.

use super::error::ApiError;
use crate::config::EngineConfig;
use axum::http::HeaderMap;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::HashMap;

/// Top-level fields of a JSON body, not parsed any further.
pub(crate) struct Fields<'a>(HashMap<String, &'a RawValue>);

impl<'a> Fields<'a> {
    /// Fields of a body, which must be a JSON object and declared as JSON.
    pub(crate) fn of(headers: &HeaderMap, body: &'a [u8]) -> Result<Self, ApiError> {
        let declared = headers.get("content-type").and_then(|value| value.to_str().ok());
        if !declared.is_some_and(|value| value.trim_start().starts_with("application/json")) {
            let problem = "Unsupported Media Type: Only 'application/json' is allowed";
            return Err(ApiError::validation(problem, None));
        }
        serde_json::from_slice(body).map(Self).map_err(|error| {
            let at = format!("body.{}", error.column());
            let problem = format!(
                "{{'type': 'json_invalid', 'loc': '{at}', 'msg': 'JSON decode error', 'ctx': {{'error': '{error}'}}}}"
            );
            ApiError::validation(&problem, Some(at))
        })
    }

    /// A field as written; `None` when absent or null.
    pub(crate) fn raw(&self, name: &str) -> Option<&'a RawValue> {
        self.0.get(name).copied().filter(|value| value.get() != "null")
    }

    /// A field of a given type; a value of another type is the client's error.
    pub(crate) fn get<T: Deserialize<'a>>(&self, name: &str) -> Result<Option<T>, ApiError> {
        let parse = |value: &'a RawValue| serde_json::from_str(value.get());
        self.raw(name).map(parse).transpose().map_err(|error| {
            let problem =
                format!("{{'type': 'type_error', 'loc': 'body.{name}', 'msg': '{error}'}}");
            ApiError::validation(&problem, Some(format!("body.{name}")))
        })
    }

    /// The model name to answer with; an error if this engine serves another model.
    pub(crate) fn model(&self, config: &EngineConfig) -> Result<String, ApiError> {
        let served = config.model_name();
        let asked: Option<String> = self.get("model")?;
        match (asked, &config.model) {
            (Some(asked), Some(only)) if asked != *only => {
                Err(ApiError::unknown_model(&asked, served))
            }
            (asked, _) => Ok(asked.unwrap_or_else(|| served.to_owned())),
        }
    }
}
