//! Writes gathered messages with the tokens of a version.

use super::calls;
use super::gather::PromptMessages;
use super::message::{ContentPart, MessageContent, MistralMessage, MistralRole};
use super::version::{MistralEncoder, MistralVersion};
use crate::chat::error::RenderError;
use crate::chat::printing::python_json::write_string;
use MistralVersion::{V3, V7, V11, V13, V15};

/// Parts of a prompt beside the messages.
pub(super) struct Frame<'a> {
    /// The tools that the request offers, as JSON.
    pub(super) tools: Option<String>,
    pub(super) effort: Option<&'a str>,
}

/// Writes the prompt of the messages.
pub(super) fn write(
    encoder: &MistralEncoder,
    gathered: &PromptMessages<'_>,
    frame: &Frame<'_>,
    out: &mut Vec<u8>,
) -> Result<(), RenderError> {
    let version = encoder.version;
    let messages = &gathered.messages;
    let is_user = |message: &MistralMessage<'_>| message.role == MistralRole::User;
    let last_user = messages.iter().rposition(is_user);
    let framed_user = if version >= V13 { messages.iter().position(is_user) } else { last_user };
    out.extend_from_slice(b"<s>");
    for (index, message) in messages.iter().enumerate() {
        let mut text = String::new();
        match message.role {
            MistralRole::System => {
                text.push_str("[SYSTEM_PROMPT]");
                write_content(encoder, &message.content, &mut text)?;
                text.push_str("[/SYSTEM_PROMPT]");
            }
            MistralRole::User => {
                if Some(index) == framed_user {
                    write_frame(frame, &mut text);
                }
                text.push_str("[INST]");
                if let Some(system) = gathered.system.as_ref().filter(|_| Some(index) == last_user)
                    && !system.is_empty()
                {
                    text.push_str(system);
                    text.push_str("\n\n");
                }
                write_content(encoder, &message.content, &mut text)?;
                text.push_str("[/INST]");
            }
            MistralRole::Assistant => write_answer(encoder, message, &mut text)?,
            MistralRole::Tool => write_result(encoder, message, &mut text)?,
        }
        out.extend_from_slice(text.as_bytes());
    }
    Ok(())
}

fn write_frame(frame: &Frame<'_>, text: &mut String) {
    if let Some(tools) = &frame.tools {
        text.push_str("[AVAILABLE_TOOLS]");
        text.push_str(tools);
        text.push_str("[/AVAILABLE_TOOLS]");
    }
    if let Some(effort) = frame.effort {
        text.push_str("[MODEL_SETTINGS]{\"reasoning_effort\": ");
        write_string(effort, false, text);
        text.push_str("}[/MODEL_SETTINGS]");
    }
}

fn write_content(
    encoder: &MistralEncoder,
    content: &MessageContent<'_>,
    text: &mut String,
) -> Result<(), RenderError> {
    let chunks = match content {
        MessageContent::Text(part) => {
            text.push_str(part);
            return Ok(());
        }
        MessageContent::Chunks(chunks) => chunks,
    };
    for chunk in chunks {
        match chunk {
            ContentPart::Text(part) => text.push_str(part),
            ContentPart::Think(..) if encoder.version < V13 || !encoder.has_think_tokens => {
                return Err(RenderError::Unsupported("the tokenizer has no tokens for reasoning"));
            }
            ContentPart::Think(part, is_closed) => {
                text.push_str("[THINK]");
                text.push_str(part);
                text.push_str(if *is_closed { "[/THINK]" } else { "" });
            }
        }
    }
    Ok(())
}

/// An answer of the model: text, calls, or both.
fn write_answer(
    encoder: &MistralEncoder,
    message: &MistralMessage<'_>,
    text: &mut String,
) -> Result<(), RenderError> {
    let is_silent = message.content.is_none();
    let has_calls = !message.calls.is_empty();
    if is_silent && !has_calls || encoder.version == V3 && !is_silent && has_calls {
        return Err(RenderError::Unsupported("the engine refuses an answer of this form"));
    }
    match &message.content {
        MessageContent::Text(part) => text.push_str(part.trim_end_matches(' ')),
        chunks @ MessageContent::Chunks(_) => write_content(encoder, chunks, text)?,
    }
    if has_calls {
        write_calls(encoder.version, message, text)?;
    }
    text.push_str(if message.is_continued { "" } else { "</s>" });
    Ok(())
}

fn write_calls(
    version: MistralVersion,
    message: &MistralMessage<'_>,
    text: &mut String,
) -> Result<(), RenderError> {
    match version {
        V3 | V7 => {
            text.push_str("[TOOL_CALLS][");
            for (index, call) in message.calls.iter().enumerate() {
                check_id(version, call.id)?;
                text.push_str(if index == 0 { "{\"name\": " } else { ", {\"name\": " });
                write_string(call.name, false, text);
                text.push_str(", \"arguments\": ");
                call.write_arguments(text)?;
                text.push_str(", \"id\": ");
                write_string(call.id, false, text);
                text.push('}');
            }
            text.push(']');
        }
        V11 | V13 | V15 => {
            for call in &message.calls {
                check_id(version, call.id)?;
                text.push_str("[TOOL_CALLS]");
                text.push_str(call.name);
                if version == V11 {
                    text.push_str("[CALL_ID]");
                    text.push_str(call.id);
                }
                text.push_str("[ARGS]");
                call.write_arguments(text)?;
            }
        }
    }
    Ok(())
}

/// The result of a tool.
fn write_result(
    encoder: &MistralEncoder,
    message: &MistralMessage<'_>,
    text: &mut String,
) -> Result<(), RenderError> {
    check_id(encoder.version, message.call_id)?;
    text.push_str("[TOOL_RESULTS]");
    match (encoder.version, &message.content) {
        (V3, MessageContent::Text(result)) => {
            text.push_str("{\"content\": ");
            calls::write_json_text(result, text)?;
            text.push_str(", \"call_id\": ");
            write_string(message.call_id, false, text);
            text.push('}');
        }
        (_, MessageContent::Chunks(_)) => {
            return Err(RenderError::Unsupported("a result of a tool with reasoning"));
        }
        (version, MessageContent::Text(result)) => {
            if version < V13 {
                text.push_str(message.call_id);
                text.push_str("[TOOL_CONTENT]");
            }
            text.push_str(result);
        }
    }
    text.push_str("[/TOOL_RESULTS]");
    Ok(())
}

/// Ids that the engine takes: nine letters and digits, or any in newer versions.
fn check_id(version: MistralVersion, id: &str) -> Result<(), RenderError> {
    let fits = match version {
        V3 | V7 | V11 => id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()),
        V13 | V15 => !id.is_empty() && id != "null",
    };
    fits.then_some(()).ok_or(RenderError::Unsupported("the engine refuses this id"))
}
