//! Versions of Mistral's tokenizer, which differ in the form of a prompt.

use crate::chat::error::RenderError;
use serde_json::{Map, Value};

/// Version in `tekken.json`. Older tokenizers have no such file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MistralVersion {
    /// Mistral Nemo, Pixtral.
    V3,
    /// Mistral Small 3.
    V7,
    /// Mistral Small 3.2, Devstral, the first Magistral.
    V11,
    /// Ministral 3, later Magistral and Devstral.
    V13,
    /// Models with a reasoning effort.
    V15,
}

impl MistralVersion {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "v3" => Self::V3,
            "v7" => Self::V7,
            "v11" => Self::V11,
            "v13" => Self::V13,
            "v15" => Self::V15,
            _ => return None,
        })
    }
}

/// Encoder of a model of Mistral's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MistralEncoder {
    pub(super) version: MistralVersion,
    /// The tokenizer has tokens around reasoning.
    pub(super) has_think_tokens: bool,
    /// Values of `reasoning_effort`, the default first; empty for a model without the setting.
    efforts: Vec<String>,
}

impl MistralEncoder {
    /// Reads what counts of a `tekken.json`; `None` for versions that are not known.
    #[must_use]
    pub fn from_tekken(file: &Map<String, Value>) -> Option<Self> {
        let version = file.get("config")?.get("version")?.as_str()?;
        let version = MistralVersion::named(version)?;
        let tokens = file.get("special_tokens").and_then(Value::as_array);
        let token = |token: &'_ Value| token.get("token_str").and_then(Value::as_str).map(str::to_owned);
        let tokens: Vec<String> = tokens.into_iter().flatten().filter_map(token).collect();
        let has = |token: &str| tokens.iter().any(|known| known == token);
        let has_think_tokens = has("[THINK]") && has("[/THINK]");
        let builder = file.get("model_settings_builder").filter(|builder| !builder.is_null());
        let mut efforts = Vec::new();
        if version == MistralVersion::V15 {
            let effort = builder?.get("reasoning_effort").filter(|effort| !effort.is_null());
            if let Some(effort) = effort {
                efforts.push(effort.get("default")?.as_str()?.to_owned());
                let values = effort.get("values")?.as_array()?.iter();
                efforts.extend(values.filter_map(Value::as_str).map(str::to_owned));
            }
        }
        Some(Self { version, has_think_tokens, efforts })
    }

    pub(super) fn default_effort(&self) -> Option<&str> {
        self.efforts.first().map(String::as_str)
    }

    /// The effort that stands in the prompt.
    pub(super) fn effort<'a>(
        &'a self,
        asked: Option<&'a Value>,
    ) -> Result<Option<&'a str>, RenderError> {
        let Some(asked) = asked else { return Ok(self.default_effort()) };
        let refused = RenderError::Unsupported("the model has no such reasoning effort");
        let asked = asked.as_str().ok_or(refused)?;
        match self.efforts.iter().find(|known| *known == asked) {
            Some(effort) => Ok(Some(effort)),
            None if self.efforts.is_empty() => Ok(None),
            None => Err(RenderError::Unsupported("the model has no such reasoning effort")),
        }
    }
}
