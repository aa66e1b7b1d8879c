//! The prompt of a request for a completion, as both wires write it.

use serde::Deserialize;

/// Prompt of `/v1/completions` in its four forms.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum EnginePrompt {
    Text(String),
    Ids(Vec<u32>),
    Texts(Vec<String>),
    IdLists(Vec<Vec<u32>>),
}
