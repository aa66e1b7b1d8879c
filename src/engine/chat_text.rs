//! Chat messages to the text that is tokenized. One function stands between the engine and the chat template, so that
//! it can change without the rest noticing.

use serde_json::Value;
use std::path::Path;

/// How this engine writes a chat as one text.
#[derive(Debug)]
pub(super) enum ChatText {
    /// `<|im_start|>role\ncontent<|im_end|>\n`, the layout of the built-in tokenizer.
    ChatMl,
}

impl ChatText {
    /// For the built-in tokenizer.
    pub(super) fn built_in() -> Result<Self, String> {
        Ok(Self::ChatMl)
    }

    /// For a model folder.
    pub(super) fn from_model_dir(_dir: &Path) -> Result<Self, String> {
        Ok(Self::ChatMl)
    }

    /// The text of a chat request's body.
    pub(super) fn render(&self, body: &[u8]) -> Result<String, String> {
        let body: Value = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        let messages =
            body.get("messages").and_then(Value::as_array).ok_or("messages is not a list")?;
        let mut text = String::new();
        for message in messages {
            let role =
                message.get("role").and_then(Value::as_str).ok_or("a message has no role")?;
            text.extend(["<|im_start|>", role, "\n"]);
            match message.get("content") {
                Some(Value::String(content)) => text.push_str(content),
                Some(Value::Array(parts)) => {
                    let parts = parts.iter().filter_map(|part| part.get("text")?.as_str());
                    text.push_str(&parts.collect::<Vec<_>>().join("\n"));
                }
                _ => {}
            }
            text.push_str("<|im_end|>\n");
        }
        if body.get("add_generation_prompt").and_then(Value::as_bool) != Some(false) {
            text.push_str("<|im_start|>assistant\n");
        }
        Ok(text)
    }
}
