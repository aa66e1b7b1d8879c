//! The date is an argument, and schemas have a limit.

use super::write_body;
use serde_json::{Map, Value, json};

fn written(body: Value) -> Option<String> {
    let Value::Object(body) = body else { panic!("an object") };
    let mut out = Vec::new();
    write_body(false, &body, "1999-12-31", &mut out).ok()?;
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
