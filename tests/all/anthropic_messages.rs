//! Bodies of `/v1/messages` become the chats that vLLM makes of them, for each chat template.
//! `tests/data/chat_templates/README.md` names the source of the expected chats.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails must stop")]
#![allow(clippy::print_stderr, reason = "a summary for people")]

use forebay::parse::{ApiRequest, Endpoint, scan};
use forebay::render::{RenderMethod, Unrenderable, render};
use forebay::text::Vocabulary;
use forebay::text::chat::{ChatTemplate, EngineRules, SpecialTokens};
use forebay::worker::ModelText;
use serde_json::Value;
use std::fs;
use std::sync::Arc;

const TOKENIZER: &str = include_str!("../data/tokenizer/tokenizer.json");
const DIR: &str = "tests/data/chat_templates";

fn json(name: &str) -> Value {
    serde_json::from_str(&fs::read_to_string(format!("{DIR}/{name}.json")).unwrap()).unwrap()
}

fn model(name: &str, known: &Value, vocabulary: &Arc<Vocabulary>) -> ModelText {
    let source = fs::read_to_string(format!("{DIR}/{name}.jinja")).unwrap();
    let special = known["special"].as_object().unwrap();
    let special = special.iter().fold(SpecialTokens::new(), |special, (name, text)| {
        special.with(name, text.as_str().unwrap())
    });
    let rules = EngineRules::Vllm;
    let chat_template = Some(ChatTemplate::compile_for(&source, &special, rules).unwrap());
    ModelText { vocabulary: Arc::clone(vocabulary), chat_encoder: None, chat_template, rules }
}

#[expect(clippy::unwrap_in_result, reason = "a case that cannot be read is a fault of the test")]
fn prompt(
    body: &Value,
    endpoint: Endpoint,
    model: &ModelText,
) -> Result<(RenderMethod, String), Unrenderable> {
    let body = body.to_string();
    let mut request = ApiRequest::default();
    scan(body.as_bytes(), endpoint, &mut request).unwrap();
    let mut out = Vec::new();
    let rendered = render(&request, body.as_bytes(), model, &mut out)?;
    Ok((rendered, String::from_utf8(out).unwrap()))
}

#[test]
fn bodies_become_the_chats_of_vllm() {
    let vocabulary = Arc::new(Vocabulary::from_tokenizer_json(TOKENIZER).unwrap());
    let expected = json("messages");
    let mut faults = Vec::new();
    let [mut equal, mut parts, mut guessed, mut refused] = [0_usize; 4];
    for (name, known) in json("templates").as_object().unwrap() {
        let model = model(name, known, &vocabulary);
        let traits = &expected["templates"][name];
        for case in expected["bodies"].as_array().unwrap() {
            let merges = traits["merges"].as_bool().unwrap();
            let mut chat = case[if merges { "merged" } else { "inline" }].clone();
            let found = prompt(&case["body"], Endpoint::Messages, &model);
            if chat.is_null() {
                refused += 1;
                continue;
            }
            if case["body"]["thinking"]["type"] == "disabled" {
                chat["reasoning_effort"] = traits["disabled"].clone();
            }
            let wanted = prompt(&chat, Endpoint::ChatCompletions, &model);
            match (found, wanted) {
                (Ok((RenderMethod::TextPart, found)), Ok((_, wanted))) => {
                    parts += 1;
                    if !wanted.starts_with(&found) {
                        faults.push(format!("{name}, {}: {found:?}, {wanted:?}", case["case"]));
                    }
                }
                (Ok((_, found)), Ok((_, wanted))) if found == wanted => equal += 1,
                (Err(_), Ok(_)) => guessed += 1,
                (Err(_), Err(_)) => refused += 1,
                (found, wanted) => {
                    faults.push(format!("{name}, {}:\n {found:?},\n {wanted:?}", case["case"]));
                }
            }
        }
    }
    eprintln!("{equal} equal, {parts} up to an image, {guessed} guessed, {refused} refused");
    assert!(faults.is_empty(), "{}:\n{}", faults.len(), faults.join("\n"));
    // Results that name tools, a printed list, and tools that are taken away.
    assert!(guessed * 10 < equal && equal > 1_000, "{equal} equal, {guessed} guessed");
}

/// SGLang's own layer: texts and results keep their order, and its parsers decide on reasoning.
#[test]
fn bodies_become_the_chats_of_sglang() {
    let vocabulary = Arc::new(Vocabulary::from_tokenizer_json(TOKENIZER).unwrap());
    let source = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}";
    let rules = EngineRules::Sglang;
    let chat_template =
        Some(ChatTemplate::compile_for(source, &SpecialTokens::new(), rules).unwrap());
    let model = ModelText { vocabulary, chat_encoder: None, chat_template, rules };
    let text = |text: &str| serde_json::json!({ "type": "text", "text": text });
    let result = serde_json::json!({ "type": "tool_result", "tool_use_id": "t", "content": "r" });
    let user = |content: Value| serde_json::json!([{ "role": "user", "content": content }]);
    let body = |messages: Value| serde_json::json!({ "model": "m", "messages": messages });
    let of = |content: Vec<Value>| body(user(Value::Array(content)));
    let mut with_systems = of(vec![text("q")]);
    with_systems["system"] = vec![text("a"), text("x-anthropic-billing-header"), text("b")].into();
    let mut thinks = of(vec![text("q")]);
    thinks["thinking"] = serde_json::json!({ "type": "disabled" });
    let late = serde_json::json!([{ "role": "user", "content": "q" },
        { "role": "system", "content": "s" }, { "role": "user", "content": "r" }]);
    let thought = serde_json::json!({ "type": "thinking", "thinking": "t" });
    for (body, wanted) in [
        (of(vec![text("a"), result, text("b")]), Some("[user:a][tool:r][user:b]")),
        (with_systems, Some("[system:a\nx-anthropic-billing-header\nb][user:q]")),
        (of(vec![text("")]), Some("[user:]")),
        (thinks, None),
        (body(late), None),
        (of(vec![text("a"), thought]), None),
    ] {
        let found = prompt(&body, Endpoint::Messages, &model).ok().map(|(_, text)| text);
        assert_eq!(found.as_deref(), wanted, "{body}");
    }
}
