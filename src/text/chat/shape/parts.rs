//! Parts of a content: their text, and their form for templates.

use serde_json::{Value, json};

pub(super) fn part_text(part: &Value) -> Option<&str> {
    match part {
        Value::String(text) => Some(text),
        Value::Object(fields) => ["text", "refusal", "thinking"]
            .into_iter()
            .find_map(|key| fields.get(key).and_then(Value::as_str)),
        _ => None,
    }
}

/// Shapes a part: texts of every kind become `text` parts, and other parts only keep their kind.
pub(super) fn shaped_part(part: Value) -> Value {
    if let Some(text) = part_text(&part) {
        return json!({ "type": "text", "text": text });
    }
    media_part(&part).unwrap_or(part)
}

/// The kind of a medium as a part; `None` for other parts.
pub(super) fn media_part(part: &Value) -> Option<Value> {
    let kind = match part.get("type").and_then(Value::as_str)? {
        "image_url" | "input_image" | "image_pil" | "image_embeds" => "image",
        "video_url" => "video",
        "audio_url" | "input_audio" => "audio",
        _ => return None,
    };
    Some(json!({ "type": kind }))
}
