//! The date is an argument, and schemas have a limit.

use super::schema::{SchemaText, write_type};
use super::write_body;
use crate::Vocabulary;
use crate::chat::encoded_prompt::EncodedPrompt;
use crate::chat::{ChatApi, ChatEncoder};
use serde_json::{Map, Value, json};

fn vocabulary() -> Vocabulary {
    let text = include_str!("../../../../tests/data/tokenizer/tokenizer.json");
    Vocabulary::from_tokenizer_json(text).unwrap()
}

fn written(body: Value) -> Option<String> {
    let Value::Object(body) = body else { panic!("an object") };
    let vocabulary = vocabulary();
    let mut out = Vec::new();
    let mut prompt = EncodedPrompt::new(&mut out, &vocabulary);
    write_body(false, &body, "1999-12-31", &mut prompt).ok()?;
    prompt.finish().ok()?;
    Some(String::from_utf8(out).unwrap())
}

#[test]
fn the_date_is_that_of_the_caller() {
    let text = written(json!({ "messages": [{ "role": "user", "content": "hi" }] })).unwrap();
    assert!(text.contains("\nCurrent date: 1999-12-31\n"), "{text}");
    assert!(text.ends_with("<|start|>user<|message|>hi<|end|><|start|>assistant"), "{text}");
}

#[test]
fn indents_do_not_multiply_without_end() {
    let leaf = |index: usize| (format!("p{index}"), json!({ "description": "d" }));
    let object = |name: &str, value| Value::Object(Map::from_iter([(name.to_owned(), value)]));
    let mut schema = Value::Object(Map::from_iter((0..20_000).map(leaf)));
    for _ in 0..60 {
        let mut nested = object("properties", schema);
        nested["type"] = "object".into();
        schema = object("a", nested);
    }
    let function = |schema: &Value| json!({ "function": { "name": "f", "parameters": schema } });
    let messages = json!([{ "role": "user", "content": "hi" }]);
    let body = |schema: &Value| json!({ "tools": [function(schema)], "messages": messages });
    let parameters = |properties: Value| json!({ "type": "object", "properties": properties });
    assert_eq!(written(body(&parameters(schema))), None);
    let small = written(body(&parameters(json!({ "a": { "nullable": true } })))).unwrap();
    assert!(small.contains("a?: any | null,"), "{small}");
}

/// Each byte of a schema is searched for a `null` once at most, however deep the schema is.
#[test]
fn nested_nullable_schemas_are_searched_once() {
    for (depth, width) in [(50, 200), (100, 400), (400, 10)] {
        let names: Vec<String> = (0..width).map(|index| format!("value {index}")).collect();
        let mut schema = json!({ "type": "string", "enum": names, "nullable": true });
        for _ in 0..depth {
            schema = json!({ "nullable": true, "oneOf": [schema] });
        }
        let mut text = SchemaText::default();
        write_type(&schema, 0, &mut text).unwrap();
        let length = text.as_str().len();
        assert!(text.searched_bytes <= 2 * length, "{} of {length}", text.searched_bytes);
        assert!(length > 10 * width);
    }
}

/// The list of required names is as long as the properties: a set, not a search for each.
#[test]
fn a_tool_with_many_required_names_is_written() {
    let names: Vec<String> = (0..60_000).map(|index| format!("p{index}")).collect();
    let properties: serde_json::Map<String, Value> =
        names.iter().map(|name| (name.clone(), json!({ "type": "string" }))).collect();
    let parameters = json!({ "type": "object", "properties": properties, "required": names });
    let body = json!({ "messages": [{ "role": "user", "content": "hi" }], "tools": [
        { "type": "function", "function": { "name": "f", "parameters": parameters } }] });
    let mut out = Vec::new();
    let written = ChatEncoder::Harmony.render_full(
        ChatApi::Chat,
        body.to_string().as_bytes(),
        &vocabulary(),
        &mut out,
    );
    assert!(written.is_ok() && String::from_utf8(out).unwrap().contains("p59999: string"));
}

/// vLLM moves system messages of `/v1/messages` to the front, where no template decides.
#[test]
fn late_systems_of_messages_go_to_the_front_and_a_schema_is_an_object() {
    let body = json!({ "system": "S", "messages": [
        { "role": "user", "content": "hi" }, { "role": "system", "content": "late" },
        { "role": "user", "content": "x" }],
        "tools": [{ "name": "f", "input_schema": { "properties": { "a": {} } } }] });
    let mut out = Vec::new();
    ChatEncoder::Harmony
        .render_full(ChatApi::Messages, body.to_string().as_bytes(), &vocabulary(), &mut out)
        .unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(text.contains("Slate") && text.contains("(_: {\na?: any,\n})"), "{text}");
}
