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
    /// The same for a text that spells a special token.
    spelled: usize,
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
    let body = case["body"].as_str().map_or_else(|| case["body"].to_string(), str::to_owned);
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

/// Special tokens of the tokenizer, which no encoder writes.
fn spells_own(body: &Value) -> bool {
    let text = body.to_string();
    ["<|im_start|>", "<|im_end|>", "<|endoftext|>"].iter().any(|token| text.contains(token))
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
        (Err(_), Some(_)) if spells_own(&case["body"]) => tally.spelled += 1,
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
        let Tally { equal, guessed, spelled, both_refuse, harmless, faults } = tally;
        eprintln!(
            "{name}: {equal} equal, {guessed} and {spelled} guessed, \
             {both_refuse} refused by both, {harmless} refused by the engine alone"
        );
        assert!(faults.is_empty(), "{name}, {}:\n{}", faults.len(), faults.join("\n"));
        assert!(*equal > 0 && *harmless <= 2, "{name}: {harmless} that the engine refuses");
    }
    let equal: usize = tallies.values().map(|tally| tally.equal).sum();
    let guessed: usize = tallies.values().map(|tally| tally.guessed).sum();
    assert!(guessed * 50 <= equal + guessed, "{guessed} guessed, {equal} equal");
}

/// Bodies as clients spell them: numbers of many digits, keys that stand twice, odd parts. An
/// encoder may leave a body to guesses, and may not write another text.
#[test]
fn random_bodies_are_equal_or_guessed() {
    let vocabulary = Arc::new(Vocabulary::from_tokenizer_json(TOKENIZER).unwrap());
    let mut tally = Tally::default();
    for line in fs::read_to_string(format!("{DIR}/random.jsonl")).unwrap().lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let model = ModelText {
            vocabulary: Arc::clone(&vocabulary),
            chat_encoder: Some(encoder(case["encoder"].as_str().unwrap())),
            chat_template: None,
            rules: EngineRules::Vllm,
        };
        compare(&case, rendered(&case, &model), &mut tally);
    }
    assert!(tally.faults.is_empty(), "{}", tally.faults.join("\n"));
    let Tally { equal, guessed, .. } = tally;
    eprintln!("random: {equal} equal, {guessed} guessed");
    assert!(equal > 90 && guessed * 20 <= equal, "{guessed} guessed, {equal} equal");
}

/// Special tokens that the encoders write, and a token that none writes.
const SPECIALS: [&str; 22] = [
    "<|start|>",
    "<|message|>",
    "<|channel|>",
    "<|end|>",
    "<|call|>",
    "<|return|>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[AVAILABLE_TOOLS]",
    "[TOOL_CALLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[CALL_ID]",
    "[ARGS]",
    "[THINK]",
    "[/THINK]",
    STRANGER,
];
const STRANGER: &str = "<|reserved_7|>";

/// The vocabulary with special tokens of both families.
fn with_specials() -> Arc<Vocabulary> {
    let mut tokenizer: Value = serde_json::from_str(TOKENIZER).unwrap();
    let added = tokenizer["added_tokens"].as_array_mut().unwrap();
    added.extend(
        (3_000..).zip(SPECIALS).map(
            |(id, content)| serde_json::json!({ "id": id, "content": content, "special": true }),
        ),
    );
    Arc::new(Vocabulary::from_tokenizer_json(&tokenizer.to_string()).unwrap())
}

/// Every string of a body, by its path.
fn strings(value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::String(_) => found.push(path.to_owned()),
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(index, item)| {
                strings(item, &format!("{path}/{index}"), found);
            });
        }
        Value::Object(fields) => fields.iter().for_each(|(key, field)| {
            let key = key.replace('~', "~0").replace('/', "~1");
            strings(field, &format!("{path}/{key}"), found);
        }),
        _ => {}
    }
}

fn spells(value: &Value) -> bool {
    let text = value.to_string();
    SPECIALS.iter().any(|special| text.contains(special))
}

/// An engine reads `<|end|>` of a user as ordinary text, and a router that compares bytes would
/// take it for the token.
#[test]
fn no_prompt_has_a_special_token_of_the_request() {
    let vocabulary = with_specials();
    let mut counts = [0_usize; 3];
    for line in fs::read_to_string(format!("{DIR}/renders.jsonl")).unwrap().lines() {
        let mut case: Value = serde_json::from_str(line).unwrap();
        let model = ModelText {
            vocabulary: Arc::clone(&vocabulary),
            chat_encoder: Some(encoder(case["encoder"].as_str().unwrap())),
            chat_template: None,
            rules: EngineRules::Vllm,
        };
        let is_plain = !spells(&case["body"]);
        let mut tally = Tally::default();
        compare(&case, rendered(&case, &model), &mut tally);
        assert!(tally.faults.is_empty(), "{}", tally.faults.join("\n"));
        if is_plain && tally.guessed == 0 {
            counts[0] += 1;
        }
        let mut paths = Vec::new();
        strings(&case["body"], "/body", &mut paths);
        // A part of the strings, because there are thousands.
        for path in paths.into_iter().step_by(5) {
            let text = case.pointer_mut(&path).unwrap();
            let before = text.clone();
            *text = format!("{}{STRANGER} x", before.as_str().unwrap()).into();
            match rendered(&case, &model) {
                Ok(prompt) => {
                    assert!(!prompt.contains(STRANGER), "{path} of {case}:\n{prompt}");
                    counts[1] += 1;
                }
                Err(_) => counts[2] += 1,
            }
            *case.pointer_mut(&path).unwrap() = before;
        }
    }
    let [plain, unused, guessed] = counts;
    eprintln!("{plain} plain, {unused} strings stand in no prompt, {guessed} by guesses");
    assert!(plain > 200 && unused > 20 && guessed > 200, "{counts:?}");
}

#[test]
fn completions_of_mistral_with_special_tokens_go_by_guesses() {
    let body = |prompt: &str| serde_json::json!({ "model": "m", "prompt": prompt }).to_string();
    let mistral = Some(encoder("mistral-v3"));
    for (chat_encoder, prompt, is_known) in [
        (mistral.clone(), "a [b] <c>", true),
        (mistral.clone(), "a </s> b", false),
        (mistral, "[INST]", false),
        (Some(ChatEncoder::Unknown), "[INST]", false),
        // The tokenizer of gpt-oss finds special tokens in completions, as other tokenizers do.
        (Some(ChatEncoder::Harmony), "<|start|>user", true),
        (None, "[INST]", true),
    ] {
        let rules = EngineRules::Vllm;
        let model =
            ModelText { vocabulary: with_specials(), chat_encoder, chat_template: None, rules };
        for batch in [false, true] {
            let text = body(prompt);
            let text = if batch {
                text.replace("\"m\",\"prompt\":", "\"m\",\"prompt\":[").replace("\"}", "\"]}")
            } else {
                text
            };
            let mut request = ApiRequest::default();
            scan(text.as_bytes(), Endpoint::Completions, &mut request).unwrap();
            let mut out = Vec::new();
            let found = render(&request, text.as_bytes(), &model, &mut out);
            let wanted = if is_known { Ok(prompt.as_bytes()) } else { Err(Unrenderable::Refused) };
            assert_eq!(found.map(|_| out.as_slice()), wanted, "{text}");
        }
    }
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
