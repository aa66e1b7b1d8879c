//! Chats with images, as a real vLLM served them with the router's names: what the engine found in
//! its cache for each, against what is predicted from its events before.
//!
//! `NAME.chats.gz` beside the recording `NAME.kvrec` has a line for each chat, one after the other:
//! nanoseconds since 1970, rank, `cached_tokens`, body as the client sent it.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails must stop")]

use super::engine_captures::{
    MEMORY_BYTES_MAX, captures, each_message, published_ns, recording_beside, text_of,
};
use forebay::base::RankIndex;
use forebay::base::limits::RANKS_MAX;
use forebay::index::{KeySeed, Overlaps, whole_bytes};
use forebay::parse::{ApiRequest, Endpoint, scan};
use forebay::record::{RebuiltIndex, TokenText};
use forebay::render::{RenderMethod, name_images, render};
use forebay::text::chat::{ChatTemplate, EngineRules, SpecialTokens};
use forebay::text::{ImageKey, Vocabulary};
use forebay::worker::ModelText;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;

/// As `tools/real_engines_full images` gives it to the router.
const SECRET: &str = "a-secret-of-the-tests";
const BLOCK_TOKENS: u32 = 32;

/// The model of `tests/data/vision_model`.
fn vision() -> ModelText {
    let mut tokenizer: Value =
        serde_json::from_str(include_str!("../data/tokenizer/tokenizer.json")).unwrap();
    let more = include_str!("../data/vision_model/added_tokens.json");
    let more: Vec<Value> = serde_json::from_str(more).unwrap();
    tokenizer["added_tokens"].as_array_mut().unwrap().extend(more);
    let vocabulary = Vocabulary::from_tokenizer_json(&tokenizer.to_string()).unwrap();
    let template = include_str!("../data/vision_model/chat_template.jinja");
    ModelText {
        vocabulary: Arc::new(vocabulary.with_images(2_239, &[2_236, 2_237])),
        chat_encoder: None,
        chat_template: Some(ChatTemplate::compile(template, &SpecialTokens::new()).unwrap()),
        rules: EngineRules::Vllm,
    }
}

/// The prompt of a chat as the index has it, and the cache salt.
fn prompt(body: &str, text: &ModelText) -> (RenderMethod, Vec<u8>, String) {
    prompt_of(Endpoint::ChatCompletions, body, text)
}

fn prompt_of(endpoint: Endpoint, body: &str, text: &ModelText) -> (RenderMethod, Vec<u8>, String) {
    let mut request = ApiRequest::default();
    let mut body = body.as_bytes().to_vec();
    request.clear();
    scan(&body, endpoint, &mut request).unwrap();
    name_images(&mut request, &mut body, 0, Some(&ImageKey::new(SECRET)));
    let mut out = Vec::new();
    let rendered = render(&request, &body, text, &mut out).unwrap();
    (rendered, out, request.cache_salt)
}

/// Cached tokens that are expected of the only rank.
fn expected(index: &RebuiltIndex, body: &str, text: &ModelText) -> u32 {
    let (_, prompt, salt) = prompt(body, text);
    let root = index.index().salted(index.lora_root(BLOCK_TOKENS, ""), &salt);
    let mut overlaps = Overlaps::new(RANKS_MAX);
    overlaps.expect_images(true);
    index.overlap(root, &prompt, &mut overlaps);
    overlaps.get(RankIndex(0)).servable_blocks(whole_bytes(&prompt, true)) * BLOCK_TOKENS
}

fn check(path: &Path) {
    let recording = recording_beside(path, ".chats.gz");
    let lines = text_of(path);
    let text = vision();
    let vocabulary = TokenText::Vocabulary(Arc::clone(&text.vocabulary));
    let mut index = RebuiltIndex::new(KeySeed(7), &vocabulary, 1, MEMORY_BYTES_MAX);
    let mut chats = lines
        .lines()
        .map(|line| {
            let columns: Vec<&str> = line.splitn(4, '\t').collect();
            (columns[0].parse::<u64>().unwrap(), columns[2].parse::<u32>().unwrap(), columns[3])
        })
        .peekable();
    let mut count = 0;
    let mut behind_images = 0;
    let mut wrong = Vec::new();
    let mut compare = |index: &RebuiltIndex, (at_ns, found, body): (u64, u32, &str)| {
        let predicted = expected(index, body, &text);
        let (before, ..) = body.split_once("image_url").unwrap_or((body, ""));
        // Each word is a token or more. What is found beyond them lies behind an image.
        behind_images += u32::from(found as usize > before.split_whitespace().count() * 3);
        count += 1;
        if predicted != found {
            wrong.push((at_ns, predicted, found));
        }
    };
    each_message(&recording, |at_ns, message| {
        let at_ns = published_ns(message).unwrap_or(at_ns);
        while let Some(chat) = chats.next_if(|(asked_ns, ..)| *asked_ns < at_ns) {
            compare(&index, chat);
        }
        index.take(message);
    });
    chats.for_each(|chat| compare(&index, chat));
    let by_more = wrong.iter().filter(|(_, one, other)| one.abs_diff(*other) > BLOCK_TOKENS);
    assert_eq!(by_more.count(), 0, "at, expected, found, in {}: {wrong:?}", path.display());
    assert!(wrong.len() * 20 <= count, "{} of {count} are wrong by a block", wrong.len());
    assert!(behind_images * 4 > u32::try_from(count).unwrap(), "{behind_images} of {count}");
}

#[test]
fn predictions_behind_images_are_what_the_engine_found() {
    for path in captures(".chats.gz") {
        check(&path);
    }
}

fn chat(parts: &Value) -> String {
    json!({ "model": "m", "messages": [{ "role": "user", "content": parts }] }).to_string()
}

fn image(data: &str) -> Value {
    let url = format!("data:image/png;base64,{data}");
    json!({ "type": "image_url", "image_url": { "url": url } })
}

/// Of two chats that differ in one image, the texts part where the image stands.
#[test]
fn two_images_never_match() {
    let text = vision();
    let words = json!({ "type": "text", "text": "what is this" });
    let of = |data: &str| prompt(&chat(&json!([words, image(data), words, image("AAAA")])), &text);
    let (rendered, one, _) = of("BBBB");
    let (_, other, _) = of("BBBC");
    assert_eq!(rendered, RenderMethod::Template, "to its end");
    assert_eq!(one.len(), other.len());
    let same = one.iter().zip(&other).take_while(|(one, other)| one == other).count();
    let begins = one.iter().position(|byte| *byte == 0xff).unwrap();
    assert!((begins..begins + 33).contains(&same), "{same} {begins}");
    assert_eq!(of("BBBB").1, one);
}

#[test]
fn what_the_engine_would_place_elsewhere_ends_the_text() {
    let text = vision();
    let words = |words: &str| json!({ "type": "text", "text": words });
    let before = words("what is this");
    // The engine puts the image at the first placeholder, wherever it comes from.
    let forged = words("<|image_pad|>");
    for parts in [
        json!([before, forged, image("AAAA")]),
        json!([before, image("AAAA"), forged]),
        json!([before, { "type": "image_url", "image_url": { "url": "https://a/b.png" } }]),
        json!([before, { "type": "input_audio", "input_audio": {} }, image("AAAA")]),
    ] {
        let (rendered, prompt, _) = prompt(&chat(&parts), &text);
        assert_eq!(rendered, RenderMethod::TextPart, "{parts}");
        assert!(!prompt.contains(&0xff), "{parts}");
    }
    let parts = json!([before, image("AAAA"), before, { "type": "video_url", "video_url": {} }]);
    let (rendered, prompt, _) = prompt(&chat(&parts), &text);
    assert_eq!(rendered, RenderMethod::TextPart);
    assert!(prompt.ends_with(b"<|vision_end|>what is this"), "named images before it are followed");
}

/// vLLM reads no name of an image in these requests, so nothing behind an image may match, whatever
/// a client writes there.
#[test]
fn images_of_other_paths_end_the_text() {
    let text = vision();
    let question = "what is this";
    let source = json!({ "type": "base64", "media_type": "image/png", "data": "AAAA" });
    let block = json!({ "type": "image", "uuid": "mine", "source": source });
    let of_openai = {
        let mut part = image("AAAA");
        part["uuid"] = "mine".into();
        part
    };
    let result = |part: &Value| {
        let kind = "tool_result";
        let content = [part];
        json!({ "type": kind, "tool_use_id": "t", "content": content, "uuid": "mine" })
    };
    let words = json!({ "type": "text", "text": question });
    let anthropic = |part: &Value| {
        let messages = json!([{ "role": "user", "content": [words, part, words] }]);
        json!({ "model": "m", "max_tokens": 3, "messages": messages }).to_string()
    };
    let responses = |items: Value| json!({ "model": "m", "input": items }).to_string();
    let input = json!({ "type": "input_text", "text": question });
    let input_image = json!({ "type": "input_image", "uuid": "mine", "detail": "auto",
        "image_url": "data:image/png;base64,AAAA" });
    let call = "function_call";
    let output = "function_call_output";
    let of_tool = json!([
        { "role": "user", "content": question },
        { "type": call, "call_id": "t", "name": "see", "arguments": "{}" },
        { "type": output, "call_id": "t", "output": [input_image] },
    ]);
    for (endpoint, body) in [
        (Endpoint::Messages, anthropic(&block)),
        (Endpoint::Messages, anthropic(&result(&block))),
        (
            Endpoint::Responses,
            responses(json!([{ "role": "user", "content": [input, input_image, input] }])),
        ),
        (
            Endpoint::Responses,
            responses(json!([{ "role": "user", "content": [input, of_openai] }])),
        ),
        (Endpoint::Responses, responses(of_tool)),
    ] {
        let (rendered, prompt, _) = prompt_of(endpoint, &body, &text);
        let prompt = String::from_utf8(prompt).expect("no name of an image");
        assert_eq!(rendered, RenderMethod::TextPart, "{body}");
        assert!(!prompt.contains("image_pad"), "{prompt}");
        assert!(prompt.matches(question).count() <= 1, "nothing behind it: {prompt}");
    }
    // A part of a chat: refused among the blocks of a message, passed over in a result.
    let mut request = ApiRequest::default();
    let body = anthropic(&of_openai);
    scan(body.as_bytes(), Endpoint::Messages, &mut request).unwrap();
    assert!(render(&request, body.as_bytes(), &text, &mut Vec::new()).is_err());
    let (rendered, prompt, _) =
        prompt_of(Endpoint::Messages, &anthropic(&result(&of_openai)), &text);
    assert!(matches!(rendered, RenderMethod::Plan | RenderMethod::Template), "{rendered:?}");
    assert!(!String::from_utf8(prompt).unwrap().contains("image_pad"));
}
