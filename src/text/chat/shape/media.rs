//! Conversations with images, sound or other content that is not text. The router does not know the
//! tokens of such content, so the prompt's text ends before it: the shaped body gets a mark there,
//! and the rendered text is cut at the mark. With `names`, images with a name do not end the text.

use crate::chat::rules::ContentFormat;
use forebay_base::limits::{IMAGE_NAME_BYTES_MAX, NAMED_IMAGES_MAX};
use memchr::memmem;
use serde_json::{Map, Value, json};

/// Mark of the end of the text. A client that sends it in a conversation with images gets a shorter
/// match.
const MARK: &str = "[[forebay:not-text]]";

/// Members of a body that change the tokens of an image, which then depend on more than its name.
const CHANGE_IMAGES: [&str; 2] = ["mm_processor_kwargs", "media_io_kwargs"];

/// Roles for which the template prints images at their position in the message.
const IMAGE_ROLES: [&str; 3] = ["system", "user", "assistant"];

/// Kinds of parts that are text or become text.
const TEXT_KINDS: [&str; 9] = [
    "text",
    "input_text",
    "output_text",
    "refusal",
    "thinking",
    "redacted_thinking",
    "tool_use",
    "tool_result",
    "tool_reference",
];

/// Marks the first content in the body that is not text; false if all content is text. With
/// `names`, skips images with a name and appends their names.
pub(in super::super) fn mark(
    body: &mut Map<String, Value>,
    format: ContentFormat,
    names: Option<&mut Vec<String>>,
) -> bool {
    let key = if body.contains_key("messages") { "messages" } else { "input" };
    let changes = |key: &&str| body.get(*key).is_some_and(|value| !value.is_null());
    let is_named = key == "messages" && !CHANGE_IMAGES.iter().any(changes);
    let mut names = names.filter(|_| is_named && format == ContentFormat::Parts);
    let Some(Value::Array(messages)) = body.get_mut(key) else { return false };
    messages.iter_mut().any(|message| mark_message(message, format, names.as_deref_mut()))
}

/// Cuts the text rendered from `start` on at the mark; false when the template did not print it.
pub(in super::super) fn cut(out: &mut Vec<u8>, start: usize) -> bool {
    let rendered = out.get(start..).unwrap_or_default();
    let Some(at) = memmem::find(rendered, MARK.as_bytes()) else { return false };
    out.truncate(start + at);
    true
}

fn mark_message(
    message: &mut Value,
    format: ContentFormat,
    mut names: Option<&mut Vec<String>>,
) -> bool {
    let Value::Object(fields) = message else { return false };
    let role = fields.get("role").and_then(Value::as_str).unwrap_or_default();
    let mut names = names.take().filter(|_| IMAGE_ROLES.contains(&role));
    if fields.get("audio").is_some_and(|audio| !audio.is_null()) {
        fields.insert("content".into(), MARK.into());
        return true;
    }
    // The result of a tool in `/v1/responses`.
    if let Some(Value::Array(parts)) = fields.get("output")
        && !parts.iter().all(is_text)
    {
        fields.insert("output".into(), MARK.into());
        return true;
    }
    let Some(Value::Array(parts)) = fields.get_mut("content") else { return false };
    let mut is_followed = |part: &Value| match (image_name(part), &mut names) {
        (Some(name), Some(names)) if names.len() < NAMED_IMAGES_MAX => {
            names.push(name.to_owned());
            true
        }
        _ => is_text(part),
    };
    let Some(position) = parts.iter().position(|part| !is_followed(part)) else { return false };
    let result = parts.get_mut(position).filter(|part| kind(part) == "tool_result");
    if let Some(Value::Object(result)) = result {
        result.insert("content".into(), MARK.into());
        return true;
    }
    // For templates of plain strings, the engine puts a placeholder somewhere into the message's
    // text.
    let position = if format == ContentFormat::Text { 0 } else { position };
    parts.insert(position, json!({ "type": "text", "text": MARK }));
    true
}

/// The name of an image, if it has a name.
fn image_name(part: &Value) -> Option<&str> {
    let name = part.get("uuid").filter(|_| kind(part) == "image_url")?.as_str()?;
    (1..=IMAGE_NAME_BYTES_MAX).contains(&name.len()).then_some(name)
}

fn is_text(part: &Value) -> bool {
    let Value::Object(fields) = part else { return part.is_string() };
    match fields.get("type").and_then(Value::as_str) {
        Some("tool_result") => match fields.get("content") {
            Some(Value::Array(parts)) => parts.iter().all(is_text),
            _ => true,
        },
        Some(kind) => TEXT_KINDS.contains(&kind),
        None => fields.get("text").is_some_and(Value::is_string),
    }
}

fn kind(part: &Value) -> &str {
    part.get("type").and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marked(body: Value, format: ContentFormat) -> (bool, String) {
        let Value::Object(mut body) = body else { panic!("an object") };
        let found = mark(&mut body, format, None);
        (found, Value::Object(body).to_string())
    }

    fn chat(parts: &Value) -> Value {
        json!({ "messages": [{ "role": "system", "content": "s" },
            { "role": "user", "content": parts }] })
    }

    #[test]
    fn only_what_is_not_text_is_marked() {
        let text = json!({ "type": "text", "text": "a" });
        let image = json!({ "type": "image_url", "image_url": { "url": "data:" } });
        for parts in [
            json!("a"),
            json!([text]),
            json!(["a", { "text": "b" }]),
            json!([{ "type": "refusal", "refusal": "no" }]),
        ] {
            let before = chat(&parts);
            assert_eq!(marked(before.clone(), ContentFormat::Parts), (false, before.to_string()));
        }
        let (found, body) = marked(chat(&json!([text, image, text])), ContentFormat::Parts);
        let wanted = chat(&json!([text, { "type": "text", "text": MARK }, image, text]));
        assert_eq!((found, body), (true, wanted.to_string()));
        let (_, body) = marked(chat(&json!([text, image])), ContentFormat::Text);
        let wanted = chat(&json!([{ "type": "text", "text": MARK }, text, image]));
        assert_eq!(body, wanted.to_string());
        for odd in [json!({ "type": "hologram", "text": "x" }), json!({ "image": "x" }), json!(7)] {
            assert!(marked(chat(&json!([odd])), ContentFormat::Parts).0, "{odd}");
        }
    }

    #[test]
    fn results_of_tools_sound_and_other_apis_are_looked_at_too() {
        let result = |content: &Value| {
            let id = "t";
            json!([{ "type": "tool_result", "tool_use_id": id, "content": content }])
        };
        let image = json!({ "type": "image", "source": {} });
        assert!(
            !marked(chat(&result(&json!([{ "type": "text", "text": "a" }]))), ContentFormat::Parts)
                .0
        );
        let (found, body) = marked(chat(&result(&json!([image]))), ContentFormat::Parts);
        assert!(found && body.contains(&json!({ "content": MARK }).to_string()[1..]), "{body}");
        let sound = json!({ "messages": [{ "role": "assistant", "audio": { "id": "x" } }] });
        assert!(marked(sound, ContentFormat::Parts).0);
        let responses = json!({ "input": [{ "role": "user", "content": [{ "type": "input_image", "image_url": "x" }] }] });
        assert!(marked(responses, ContentFormat::Parts).0);
        for (kind, found) in [("input_text", false), ("input_image", true)] {
            let output = json!([{ "type": kind, "text": "x" }]);
            let item = json!({ "type": "function_call_output", "call_id": "1", "output": output });
            assert_eq!(marked(json!({ "input": [item] }), ContentFormat::Parts).0, found, "{kind}");
        }
    }

    #[test]
    fn images_with_names_are_passed_over_where_the_template_prints_parts() {
        let text = json!({ "type": "text", "text": "a" });
        let image = |name: &Value| json!({ "type": "image_url", "image_url": {}, "uuid": name });
        let long = "x".repeat(IMAGE_NAME_BYTES_MAX + 1);
        let names_of = |body: Value, format| {
            let (Value::Object(mut body), mut names) = (body, Vec::new()) else { panic!() };
            let found = mark(&mut body, format, Some(&mut names));
            (found, names.join(","), Value::Object(body).to_string())
        };
        let parts = json!([text, image(&json!("one")), text, image(&json!("two"))]);
        let before = chat(&parts).to_string();
        let followed = names_of(chat(&parts), ContentFormat::Parts);
        assert_eq!(followed, (false, "one,two".to_owned(), before));
        assert!(names_of(chat(&parts), ContentFormat::Text).0, "placed by the engine");
        for odd in [json!(""), json!(long), json!(7), Value::Null] {
            let parts = json!([image(&json!("one")), image(&odd), image(&json!("two"))]);
            let (found, names, body) = names_of(chat(&parts), ContentFormat::Parts);
            assert!(found && names == "one" && body.contains(MARK), "{odd}: {names}");
        }
        let many = vec![image(&json!("one")); NAMED_IMAGES_MAX + 1];
        let (found, names, _) = names_of(chat(&json!(many)), ContentFormat::Parts);
        assert!(
            found && names.split(',').count() == NAMED_IMAGES_MAX,
            "clients' names have a limit"
        );
        for key in CHANGE_IMAGES {
            let mut body = chat(&parts);
            body[key] = json!({ "a": 1 });
            assert!(names_of(body, ContentFormat::Parts).0, "{key}");
        }
        let of_tool = json!({ "messages": [{ "role": "tool", "content": parts }] });
        assert!(names_of(of_tool, ContentFormat::Parts).0);
        assert!(
            names_of(
                json!({ "input": [{ "role": "user", "content": parts }] }),
                ContentFormat::Parts
            )
            .0
        );
    }

    #[test]
    fn the_text_ends_at_the_first_mark() {
        let mut out = format!("before{MARK}between{MARK}after").into_bytes();
        assert!(cut(&mut out, 3));
        assert_eq!(out, b"before");
        assert!(!cut(&mut out, 0));
    }
}
