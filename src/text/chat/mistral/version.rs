//! Versions of Mistral's tokenizer, which differ in the form of a prompt.

use crate::chat::error::RenderError;
use serde::Deserialize;
use serde_json::Value;

/// Version in `tekken.json`. Older tokenizers have no such file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MistralVersion {
    /// Mistral Nemo and Pixtral models.
    V3,
    /// Mistral Small 3 and 3.1.
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

/// The members of `tekken.json` that matter here. The vocabulary is skipped.
#[derive(Deserialize)]
struct TekkenFile {
    config: TekkenConfig,
    special_tokens: Option<Vec<SpecialToken>>,
    model_settings_builder: Option<SettingsBuilder>,
}

#[derive(Deserialize)]
struct TekkenConfig {
    version: String,
}

#[derive(Deserialize)]
struct SpecialToken {
    token_str: String,
}

/// Settings of a model that stand in its prompts.
#[derive(Deserialize)]
struct SettingsBuilder {
    reasoning_effort: Option<EffortSetting>,
}

#[derive(Deserialize)]
struct EffortSetting {
    default: String,
    values: Vec<String>,
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
    pub fn from_tekken(text: &str) -> Option<Self> {
        let file: TekkenFile = serde_json::from_str(text).ok()?;
        let version = MistralVersion::named(&file.config.version)?;
        let tokens = file.special_tokens.unwrap_or_default();
        let has = |wanted: &str| tokens.iter().any(|token| token.token_str == wanted);
        let has_think_tokens = has("[THINK]") && has("[/THINK]");
        let mut efforts = Vec::new();
        if version == MistralVersion::V15
            && let Some(effort) = file.model_settings_builder?.reasoning_effort
        {
            efforts.push(effort.default);
            efforts.extend(effort.values);
        }
        Some(Self { version, has_think_tokens, efforts })
    }

    /// Does the effort stand in prompts?
    pub(in crate::chat) fn has_effort(&self, effort: &str) -> bool {
        self.efforts.iter().any(|known| known == effort)
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
