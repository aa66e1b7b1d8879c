//! Prompts of encoders equal those of vLLM, byte for byte: the router's way, `scan` then `render`.
//! `tests/data/chat_encoders/README.md` says what made the expected prompts.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails must stop")]
#![allow(clippy::print_stderr, reason = "a summary for people")]

use forebay::parse::{ApiRequest, Endpoint, scan};
use forebay::render::{RenderThread, Unrenderable, render, render_at};
use forebay::text::Vocabulary;
use forebay::text::chat::{ChatEncoder, EngineRules, MistralEncoder, utc_now};
use forebay::worker::ModelText;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;

/// Byte-level, without tokens that swallow spaces: leaves texts as they are.
const TOKENIZER: &str = include_str!("../data/tokenizer/tokenizer.json");
const DIR: &str = "tests/data/chat_encoders";
/// Day on which the engine wrote the prompts.
const DAY: &str = "Current date: 2026-11-28";

/// What came of the cases of an encoder.
#[derive(Debug, Default)]
struct Tally {
    equal: usize,
    /// The engine renders, and the router guesses.
    guessed: usize,
    both_refuse: usize,
    /// The router renders what the engine refuses: no harm, because nothing is sent.
    harmless: usize,
    faults: Vec<String>,
}

fn encoder(name: &str) -> ChatEncoder {
    let Some(version) = name.strip_prefix("mistral-") else { return ChatEncoder::Harmony };
    let text = fs::read_to_string(format!("{DIR}/tekken-{version}.json")).unwrap();
    ChatEncoder::Mistral(MistralEncoder::from_tekken(&text).unwrap())
}

fn endpoint(api: &str) -> Endpoint {
    match api {
        "responses" => Endpoint::Responses,
        "messages" => Endpoint::Messages,
        _ => Endpoint::ChatCompletions,
    }
}

/// The prompt of a case, by the offload thread and, if it takes the case, by a shard.
#[expect(clippy::unwrap_in_result, reason = "a case that cannot be read is a fault of the test")]
fn rendered(case: &Value, model: &ModelText) -> Result<String, Unrenderable> {
    let body = case["body"].to_string();
    let mut request = ApiRequest::default();
    scan(body.as_bytes(), endpoint(case["api"].as_str().unwrap()), &mut request).unwrap();
    let mut out = Vec::new();
    let text = render(&request, body.as_bytes(), model, &mut out);
    let text = text.map(|_| String::from_utf8(out).unwrap());
    let mut out = Vec::new();
    let here = render_at(RenderThread::Shard, &request, body.as_bytes(), model, &mut out);
    if here != Err(Unrenderable::NotHere) {
        assert_eq!(here.map(|_| String::from_utf8(out).unwrap()), text, "{case}");
    }
    text
}

fn compare(case: &Value, text: Result<String, Unrenderable>, tally: &mut Tally) {
    let today = format!("Current date: {}", utc_now("%Y-%m-%d"));
    let expected = case["text"].as_str().map(|text| text.replacen(DAY, &today, 1));
    match (text, expected) {
        (Ok(text), Some(expected)) if text == expected => tally.equal += 1,
        (Ok(text), Some(expected)) => {
            let name = &case["case"];
            tally.faults.push(format!("{name}:\n  {text:?}\n  expected {expected:?}"));
        }
        (Err(_), Some(_)) => tally.guessed += 1,
        (Err(_), None) => tally.both_refuse += 1,
        (Ok(_), None) => tally.harmless += 1,
    }
}

#[test]
fn prompts_of_encoders_are_those_of_vllm() {
    let vocabulary = Arc::new(Vocabulary::from_tokenizer_json(TOKENIZER).unwrap());
    let mut tallies: BTreeMap<String, Tally> = BTreeMap::new();
    for line in fs::read_to_string(format!("{DIR}/renders.jsonl")).unwrap().lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let name = case["encoder"].as_str().unwrap();
        let model = ModelText {
            vocabulary: Arc::clone(&vocabulary),
            chat_encoder: Some(encoder(name)),
            chat_template: None,
            rules: EngineRules::Vllm,
        };
        let tally = tallies.entry(name.to_owned()).or_default();
        compare(&case, rendered(&case, &model), tally);
    }
    assert_eq!(tallies.len(), 7, "encoders");
    for (name, tally) in &tallies {
        let Tally { equal, guessed, both_refuse, harmless, faults } = tally;
        eprintln!(
            "{name}: {equal} equal, {guessed} guessed, {both_refuse} refused by both, \
             {harmless} refused by the engine alone"
        );
        assert!(faults.is_empty(), "{name}, {}:\n{}", faults.len(), faults.join("\n"));
        assert!(*equal > 0 && *harmless <= 2, "{name}: {harmless} that the engine refuses");
    }
    let equal: usize = tallies.values().map(|tally| tally.equal).sum();
    let guessed: usize = tallies.values().map(|tally| tally.guessed).sum();
    assert!(guessed * 50 <= equal + guessed, "{guessed} guessed, {equal} equal");
}

#[test]
fn an_unknown_encoder_leaves_chats_to_guesses() {
    let vocabulary = Arc::new(Vocabulary::from_tokenizer_json(TOKENIZER).unwrap());
    let chat_encoder = Some(ChatEncoder::Unknown);
    let rules = EngineRules::Vllm;
    let model = ModelText { vocabulary, chat_encoder, chat_template: None, rules };
    for content in [r#""a""#, r#"[{"type":"text","text":"a"}]"#] {
        let body = format!(r#"{{"messages":[{{"role":"user","content":{content}}}]}}"#);
        let case = serde_json::json!({ "api": "chat",
            "body": serde_json::from_str::<Value>(&body).unwrap() });
        assert_eq!(rendered(&case, &model), Err(Unrenderable::Refused));
    }
}
