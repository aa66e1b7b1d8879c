//! Prompts of Mistral's models as vLLM's `mistral_common` writes them: vLLM uses it, and never the
//! template, for repositories with `tekken.json` beside Mistral's own weights.

mod calls;
mod gather;
mod message;
mod version;
mod write;

pub use version::{MistralEncoder, MistralVersion};

use super::encoded_prompt::EncodedPrompt;
use super::error::RenderError;
use super::message::{ChatRole, MessageSpan};
use forebay_json::unescape_into;
use gather::gather;
use message::{MistralMessage, MistralRole};
use serde_json::{Map, Value};
use std::borrow::Cow;
use write::Frame;

/// Members with which the engine refuses a request.
const REFUSED_KEYS: [&str; 2] = ["chat_template", "chat_template_kwargs"];

/// Names of the files that hold the tokenizer.
pub(super) const TEKKEN: &str = "tekken.json";
const OLDER_TOKENIZER: &str = "tokenizer.model.v";
/// Start and end of the names of weights in Mistral's own form, and in any form.
const OWN_WEIGHTS: [&str; 2] = ["consolidated", ".safetensors"];
const WEIGHTS: &str = ".safetensors";

/// The encoder that vLLM uses for a directory with these files, and `None` where it uses the
/// template. `Some(None)`: an encoder of a version that is not known.
///
/// A directory without any weights is a copy of the tokenizer's files. The engine's has weights in
/// Mistral's own form then, as all of Mistral's repositories with these files.
pub(super) fn find_encoder(
    names: &[String],
    read: impl FnOnce(&str) -> Option<String>,
) -> Option<Option<MistralEncoder>> {
    let [start, end] = OWN_WEIGHTS;
    let is_own = |name: &String| name.starts_with(start) && name.ends_with(end);
    let has_others = || names.iter().any(|name| name.ends_with(WEIGHTS));
    if !names.iter().any(is_own) && has_others() {
        return None;
    }
    if names.iter().any(|name| name == TEKKEN) {
        return Some(read(TEKKEN).as_deref().and_then(MistralEncoder::from_tekken));
    }
    names.iter().any(|name| name.starts_with(OLDER_TOKENIZER)).then_some(None)
}

/// Appends the prompt of plain messages; false where the engine refuses them. `out` may have grown
/// then.
pub(super) fn write_plain(
    encoder: &MistralEncoder,
    messages: &[MessageSpan],
    body: &[u8],
    out: &mut EncodedPrompt<'_>,
) -> bool {
    let read: Option<Vec<MistralMessage<'_>>> =
        messages.iter().map(|message| plain_message(message, body)).collect();
    let Some(messages) = read else { return false };
    let frame = Frame { tools: None, effort: encoder.default_effort() };
    write_messages(encoder, &messages, &frame, out).is_ok()
}

fn plain_message<'a>(message: &MessageSpan, body: &'a [u8]) -> Option<MistralMessage<'a>> {
    let raw = message.raw(body)?;
    let text = if message.escaped {
        let mut text = Vec::with_capacity(raw.len());
        unescape_into(raw, &mut text);
        Cow::Owned(String::from_utf8(text).ok()?)
    } else {
        Cow::Borrowed(std::str::from_utf8(raw).ok()?)
    };
    let role = match message.role {
        ChatRole::System => MistralRole::System,
        ChatRole::User => MistralRole::User,
        ChatRole::Assistant => MistralRole::Assistant,
    };
    Some(MistralMessage::plain(role, text))
}

/// Appends the prompt of a chat. On an error, `out` may have grown.
pub(super) fn write_body(
    encoder: &MistralEncoder,
    body: &Map<String, Value>,
    out: &mut EncodedPrompt<'_>,
) -> Result<(), RenderError> {
    let set = |key: &str| body.get(key).filter(|value| !value.is_null());
    if REFUSED_KEYS.iter().any(|key| set(key).is_some()) {
        return Err(RenderError::Unsupported("the encoder takes no chat template"));
    }
    let sent = body.get("messages").and_then(Value::as_array).ok_or(RenderError::NoMessages)?;
    let mut messages = Vec::with_capacity(sent.len());
    for message in sent {
        messages.push(message::read(message)?);
    }
    let is_true = |key: &str| body.get(key) == Some(&Value::Bool(true));
    let continues = is_true("continue_final_message");
    if let Some(last) = messages.last_mut().filter(|_| continues) {
        if last.role != MistralRole::Assistant
            || body.get("add_generation_prompt").is_none_or(is_set)
        {
            return Err(RenderError::Unsupported("nothing that can be continued"));
        }
        last.is_continued = true;
    }
    let tools = set("tools").map(calls::tools_text).transpose()?;
    let frame = Frame { tools, effort: encoder.effort(set("reasoning_effort"))? };
    write_messages(encoder, &messages, &frame, out)
}

fn is_set(value: &Value) -> bool {
    value != &Value::Bool(false)
}

fn write_messages(
    encoder: &MistralEncoder,
    messages: &[MistralMessage<'_>],
    frame: &Frame<'_>,
    out: &mut EncodedPrompt<'_>,
) -> Result<(), RenderError> {
    message::check_order(messages)?;
    let gathered = gather(encoder.version, messages)?;
    write::write(encoder, &gathered, frame, out)
}
