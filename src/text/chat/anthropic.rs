//! Bodies of `/v1/messages` for an encoder, which reads arguments of calls as text.

use super::error::RenderError;
use super::printing::python_json::write_python_json;
use super::shape::AnthropicRules;
use serde_json::{Map, Value};

/// Converts a body of `/v1/messages` to that of a chat, as vLLM does where no template decides.
///
/// # Errors
/// [`RenderError::Unsupported`] for numbers that the engine prints with other digits, and for what
/// the engine refuses.
pub(super) fn to_chat(
    body: &mut Map<String, Value>,
    disabled_effort: &'static str,
) -> Result<(), RenderError> {
    AnthropicRules { is_sglang: false, merges_systems: true, disabled_effort }.to_chat(body)?;
    let Some(Value::Array(messages)) = body.get_mut("messages") else { return Ok(()) };
    for message in messages {
        let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
        for call in calls.into_iter().flatten() {
            let Some(arguments) = call.pointer_mut("/function/arguments") else { continue };
            let mut text = String::new();
            write_python_json(arguments, true, &mut text);
            *arguments = Value::String(text);
        }
    }
    Ok(())
}
