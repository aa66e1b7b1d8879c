//! Chat messages to the text that is tokenized, through the model's own template. Used by the
//! encode thread.

use super::tokenizer::BUILT_IN_CONFIG;
use forebay_text::chat::{ChatTemplate, SpecialTokens, load_model_text};
use serde_json::Value;
use std::path::Path;

/// Renders chats as text for the tokenizer.
#[derive(Debug)]
pub(super) struct ChatText {
    template: Option<ChatTemplate>,
}

impl ChatText {
    /// For the built-in tokenizer.
    pub(super) fn built_in() -> Result<Self, String> {
        let config: Value =
            serde_json::from_str(BUILT_IN_CONFIG).map_err(|error| error.to_string())?;
        let source = config.get("chat_template").and_then(Value::as_str).unwrap_or_default();
        let template = ChatTemplate::compile(source, &SpecialTokens::default());
        Ok(Self { template: Some(template.map_err(|error| error.to_string())?) })
    }

    /// For a model folder.
    pub(super) fn from_model_dir(dir: &Path) -> Result<Self, String> {
        let parts = load_model_text(dir).map_err(|error| error.to_string())?;
        match parts.template_error {
            None => Ok(Self { template: parts.chat_template }),
            Some(error) => Err(error.to_string()),
        }
    }

    /// The text of a chat request's body.
    pub(super) fn render(&self, body: &[u8]) -> Result<String, String> {
        let template = self.template.as_ref().ok_or("the model has no chat template")?;
        let mut text = Vec::with_capacity(body.len());
        template.render_full(body, &mut text).map_err(|error| error.to_string())?;
        String::from_utf8(text).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chat_becomes_the_text_of_its_template() {
        let chat = ChatText::built_in().expect("loads");
        let body = br#"{"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Hi"}]}"#;
        let expected = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
        assert_eq!(chat.render(body).as_deref(), Ok(expected));
        assert!(chat.render(b"{}").is_err());
    }

    #[test]
    fn a_model_folder_without_template_refuses_chats_only() {
        let dir = tempfile::tempdir().expect("folder");
        crate::Tokenizer::write_built_in(dir.path()).expect("writes");
        let chat = ChatText::from_model_dir(dir.path()).expect("loads");
        assert!(chat.render(br#"{"messages":[{"role":"user","content":"x"}]}"#).is_ok());
        std::fs::write(dir.path().join("tokenizer_config.json"), "{}").expect("writes");
        let chat = ChatText::from_model_dir(dir.path()).expect("loads");
        let refused = chat.render(br#"{"messages":[{"role":"user","content":"x"}]}"#);
        assert_eq!(refused, Err("the model has no chat template".into()));
    }
}
