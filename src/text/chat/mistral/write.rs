//! Writes gathered messages with the tokens of a version.

use super::calls;
use super::gather::PromptMessages;
use super::message::{ContentPart, MessageContent, MistralMessage, MistralRole};
use super::version::{MistralEncoder, MistralVersion};
use crate::chat::encoded_prompt::EncodedPrompt;
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
    out: &mut EncodedPrompt<'_>,
) -> Result<(), RenderError> {
    let version = encoder.version;
    let messages = &gathered.messages;
    let is_user = |message: &MistralMessage<'_>| message.role == MistralRole::User;
    let last_user = messages.iter().rposition(is_user);
    let framed_user = if version >= V13 { messages.iter().position(is_user) } else { last_user };
    out.push_mark("<s>");
    for (index, message) in messages.iter().enumerate() {
        match message.role {
            MistralRole::System => {
                out.push_mark("[SYSTEM_PROMPT]");
                write_content(encoder, &message.content, out)?;
                out.push_mark("[/SYSTEM_PROMPT]");
            }
            MistralRole::User => {
                if Some(index) == framed_user {
                    write_frame(frame, out);
                }
                out.push_mark("[INST]");
                if let Some(system) = gathered.system.as_ref().filter(|_| Some(index) == last_user)
                    && !system.is_empty()
                {
                    out.push(system);
                    out.push("\n\n");
                }
                write_content(encoder, &message.content, out)?;
                out.push_mark("[/INST]");
            }
            MistralRole::Assistant => write_answer(encoder, message, out)?,
            MistralRole::Tool => write_result(encoder, message, out)?,
        }
    }
    Ok(())
}

fn write_frame(frame: &Frame<'_>, out: &mut EncodedPrompt<'_>) {
    if let Some(tools) = &frame.tools {
        out.push_mark("[AVAILABLE_TOOLS]");
        out.push(tools);
        out.push_mark("[/AVAILABLE_TOOLS]");
    }
    if let Some(effort) = frame.effort {
        let mut setting = String::from("{\"reasoning_effort\": ");
        write_string(effort, false, &mut setting);
        out.push_mark("[MODEL_SETTINGS]");
        out.push(&setting);
        out.push("}");
        out.push_mark("[/MODEL_SETTINGS]");
    }
}

fn write_content(
    encoder: &MistralEncoder,
    content: &MessageContent<'_>,
    out: &mut EncodedPrompt<'_>,
) -> Result<(), RenderError> {
    let chunks = match content {
        MessageContent::Text(part) => {
            out.push(part);
            return Ok(());
        }
        MessageContent::Chunks(chunks) => chunks,
    };
    for chunk in chunks {
        match chunk {
            ContentPart::Text(part) => out.push(part),
            ContentPart::Think(..) if encoder.version < V13 || !encoder.has_think_tokens => {
                return Err(RenderError::Unsupported("the tokenizer has no tokens for reasoning"));
            }
            ContentPart::Think(part, is_closed) => {
                out.push_mark("[THINK]");
                out.push(part);
                if *is_closed {
                    out.push_mark("[/THINK]");
                }
            }
        }
    }
    Ok(())
}

/// An answer of the model: text, calls, or both.
fn write_answer(
    encoder: &MistralEncoder,
    message: &MistralMessage<'_>,
    out: &mut EncodedPrompt<'_>,
) -> Result<(), RenderError> {
    let is_silent = message.content.is_none();
    let has_calls = !message.calls.is_empty();
    if is_silent && !has_calls || encoder.version == V3 && !is_silent && has_calls {
        return Err(RenderError::Unsupported("the engine refuses an answer of this form"));
    }
    match &message.content {
        MessageContent::Text(part) => out.push(part.trim_end_matches(' ')),
        chunks @ MessageContent::Chunks(_) => write_content(encoder, chunks, out)?,
    }
    if has_calls {
        write_calls(encoder.version, message, out)?;
    }
    if !message.is_continued {
        out.push_mark("</s>");
    }
    Ok(())
}

fn write_calls(
    version: MistralVersion,
    message: &MistralMessage<'_>,
    out: &mut EncodedPrompt<'_>,
) -> Result<(), RenderError> {
    match version {
        V3 | V7 => {
            let mut calls = String::from("[");
            for (index, call) in message.calls.iter().enumerate() {
                check_id(version, call.id)?;
                calls.push_str(if index == 0 { "{\"name\": " } else { ", {\"name\": " });
                write_string(call.name, false, &mut calls);
                calls.push_str(", \"arguments\": ");
                call.write_arguments(&mut calls)?;
                calls.push_str(", \"id\": ");
                write_string(call.id, false, &mut calls);
                calls.push('}');
            }
            calls.push(']');
            out.push_mark("[TOOL_CALLS]");
            out.push(&calls);
        }
        V11 | V13 | V15 => {
            for call in &message.calls {
                check_id(version, call.id)?;
                out.push_mark("[TOOL_CALLS]");
                out.push(call.name);
                if version == V11 {
                    out.push_mark("[CALL_ID]");
                    out.push(call.id);
                }
                let mut arguments = String::new();
                call.write_arguments(&mut arguments)?;
                out.push_mark("[ARGS]");
                out.push(&arguments);
            }
        }
    }
    Ok(())
}

/// The result of a tool.
fn write_result(
    encoder: &MistralEncoder,
    message: &MistralMessage<'_>,
    out: &mut EncodedPrompt<'_>,
) -> Result<(), RenderError> {
    check_id(encoder.version, message.call_id)?;
    out.push_mark("[TOOL_RESULTS]");
    match (encoder.version, &message.content) {
        (V3, MessageContent::Text(result)) => {
            let mut text = String::from("{\"content\": ");
            calls::write_json_text(result, &mut text)?;
            text.push_str(", \"call_id\": ");
            write_string(message.call_id, false, &mut text);
            text.push('}');
            out.push(&text);
        }
        (_, MessageContent::Chunks(_)) => {
            return Err(RenderError::Unsupported("a result of a tool with reasoning"));
        }
        (version, MessageContent::Text(result)) => {
            if version < V13 {
                out.push(message.call_id);
                out.push_mark("[TOOL_CONTENT]");
            }
            out.push(result);
        }
    }
    out.push_mark("[/TOOL_RESULTS]");
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
