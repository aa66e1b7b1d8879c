//! Prompts equal those of the Rust frontends of vLLM and SGLang, byte for byte: real templates
//! times cases, against what the frontends themselves render (`tests/data/rust_frontends`).

use crate::chat::{ChatRole, ChatTemplate, EngineRules, MessageSpan, SpecialTokens};
use serde_json::Value;
use std::collections::HashMap;
use std::fs;
use std::path::Path;

const DIRECTORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/rust_frontends");
/// Least share of the frontend's prompts that must be equal, in percent. The rest may be
/// unrendered, but not different.
const EQUAL_PERCENT_MIN: usize = 98;
/// Share of refused requests that are rendered, in percent. The engine answers these with 400.
const RENDERED_REFUSALS_PERCENT_MAX: usize = 10;

fn read(name: &str) -> String {
    fs::read_to_string(Path::new(DIRECTORY).join(name)).unwrap()
}

fn json(name: &str) -> Value {
    serde_json::from_str(&read(name)).unwrap()
}

fn compiled(known: &Value, rules: EngineRules) -> ChatTemplate {
    let special = known["special"].as_object().unwrap();
    let special = special
        .iter()
        .fold(SpecialTokens::new(), |all, (name, text)| all.with(name, text.as_str().unwrap()));
    ChatTemplate::compile_for(&read(known["file"].as_str().unwrap()), &special, rules).unwrap()
}

/// What came of all cases.
#[derive(Debug, Default)]
struct Tally {
    equal: usize,
    unrendered: usize,
    refused: usize,
    rendered_refusals: usize,
    by_plan: usize,
    faults: Vec<String>,
}

impl Tally {
    fn count(&mut self, place: &str, rendered: Option<&str>, expected: Option<&str>) {
        match (rendered, expected) {
            (Some(text), Some(expected)) if text == expected => self.equal += 1,
            (Some(text), Some(expected)) => {
                self.faults.push(format!("{place}: {text:?}, expected {expected:?}"));
            }
            (None, Some(_)) => self.unrendered += 1,
            (Some(_), None) => self.rendered_refusals += 1,
            (None, None) => self.refused += 1,
        }
    }
}

/// The prompt by the plan, for bodies of only plain messages.
fn by_plan(template: &ChatTemplate, body: &Value) -> Option<String> {
    let fields = body.as_object()?;
    let known = |key: &String| key == "messages" || key == "add_generation_prompt";
    if !fields.keys().all(known) {
        return None;
    }
    let mut text = String::new();
    let mut spans = Vec::new();
    for message in fields.get("messages")?.as_array()? {
        let role = match message.get("role")?.as_str()? {
            "system" => ChatRole::System,
            "user" => ChatRole::User,
            "assistant" => ChatRole::Assistant,
            _ => return None,
        };
        if message.as_object()?.len() != 2 {
            return None;
        }
        let content = message.get("content")?.as_str()?;
        let quoted = Value::from(content).to_string();
        let raw = &quoted[1..quoted.len() - 1];
        let start = u32::try_from(text.len()).unwrap();
        text.push_str(raw);
        let content = start..u32::try_from(text.len()).unwrap();
        spans.push(MessageSpan { role, content, escaped: raw.contains('\\') });
    }
    let generates = fields.get("add_generation_prompt") != Some(&Value::Bool(false));
    let mut out = Vec::new();
    let is_covered = template.render_plain(&spans, text.as_bytes(), generates, &mut out);
    is_covered.then(|| String::from_utf8(out).unwrap())
}

fn compare(rules: EngineRules, file: &str) {
    let templates: HashMap<String, ChatTemplate> = json("templates.json")
        .as_object()
        .unwrap()
        .iter()
        .map(|(name, known)| (name.clone(), compiled(known, rules)))
        .collect();
    let cases = json("cases.json");
    let bodies: HashMap<&str, &Value> = cases
        .as_array()
        .unwrap()
        .iter()
        .map(|case| (case["name"].as_str().unwrap(), &case["body"]))
        .collect();
    let mut tally = Tally::default();
    for line in read(file).lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let case = line["case"].as_str().unwrap();
        let template = &templates[line["model"].as_str().unwrap()];
        let place = format!("{}, {case}", line["model"]);
        let mut out = Vec::new();
        let rendered = template.render_full(bodies[case].to_string().as_bytes(), &mut out);
        let text = rendered.ok().map(|()| String::from_utf8(out).unwrap());
        tally.count(&place, text.as_deref(), line["text"].as_str());
        if let Some(planned) = by_plan(template, bodies[case]) {
            tally.by_plan += 1;
            assert_eq!(Some(planned.as_str()), text.as_deref(), "{place} by the plan");
        }
    }
    assert!(tally.faults.is_empty(), "{}:\n{}", tally.faults.len(), tally.faults.join("\n"));
    let prompts = tally.equal + tally.unrendered;
    let refusals = tally.refused + tally.rendered_refusals;
    assert!(prompts > 300, "{tally:?}");
    assert!(tally.equal * 100 >= prompts * EQUAL_PERCENT_MIN, "{tally:?}");
    let rendered_max = refusals * RENDERED_REFUSALS_PERCENT_MAX;
    assert!(tally.rendered_refusals * 100 <= rendered_max, "{tally:?}");
    assert!(tally.by_plan > 20, "{tally:?}");
}

#[test]
fn prompts_are_those_of_vllm_rs() {
    compare(EngineRules::VllmRust, "vllm-rs-0.33.jsonl");
}

#[test]
fn prompts_are_those_of_sglangs_rust_server() {
    compare(EngineRules::SglangRust, "sglang-rust-0.5.23.jsonl");
}
