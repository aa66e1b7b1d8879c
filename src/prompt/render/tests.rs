//! Rendered prompts equal what the engine decodes from its tokens.

use super::{RenderMethod, Unrenderable, render};
use crate::parse::{ApiRequest, Endpoint, PromptSource, scan};
use forebay_base::limits::PROMPT_BYTES_MATCHED_MAX;
use forebay_fleet::worker::ModelText;
use forebay_text::Vocabulary;
use forebay_text::chat::{ChatRole, ChatTemplate, EngineRules, MessageSpan, SpecialTokens};
use proptest::prelude::{ProptestConfig, Strategy, any, prop, prop_assert_eq, proptest};
use serde_json::json;
use std::str::FromStr;
use std::sync::Arc;
use tokenizers::Tokenizer;

const TOKENIZER: &str = include_str!("../../../tests/data/tokenizer/tokenizer.json");
const TEMPLATE: &str = include_str!("../../../tests/data/tokenizer/chat_template.txt");
/// Declines to be planned: it counts.
const COUNTED: &str = "{% for m in messages %}{{ loop.index }}{{ m.content }}{% endfor %}";

fn model(template: Option<&str>) -> ModelText {
    let vocabulary = Vocabulary::from_tokenizer_json(TOKENIZER).unwrap();
    let chat_template =
        template.map(|source| ChatTemplate::compile(source, &SpecialTokens::new()).unwrap());
    ModelText {
        vocabulary: Arc::new(vocabulary.with_completion_prefix(b"<|endoftext|>")),
        chat_encoder: None,
        chat_template,
        rules: EngineRules::Vllm,
    }
}

fn request(prompt: PromptSource) -> ApiRequest {
    ApiRequest { prompt, add_generation_prompt: true, ..ApiRequest::default() }
}

fn span_of(body: &str, part: &str) -> std::ops::Range<u32> {
    let start = body.find(part).unwrap();
    u32::try_from(start).unwrap()..u32::try_from(start + part.len()).unwrap()
}

fn rendered(request: &ApiRequest, body: &str, model: &ModelText) -> Result<String, Unrenderable> {
    let mut out = b"kept:".to_vec();
    let result = render(request, body.as_bytes(), model, &mut out);
    let text = String::from_utf8_lossy(&out).replacen("kept:", "", 1);
    assert!(result.is_ok() || text.is_empty());
    result.map(|_| text)
}

#[test]
fn text_is_unescaped_behind_the_prefix() {
    let body = r#"{"prompt": "a\n\u00e9\"b"}"#;
    let model = model(None);
    let text =
        rendered(&request(PromptSource::Text(span_of(body, r#"a\n\u00e9\"b"#))), body, &model);
    assert_eq!(text.unwrap(), "<|endoftext|>a\né\"b");
    let body = r#"{"prompt": ["x\ty", "z"]}"#;
    let text = rendered(&request(PromptSource::Batch(span_of(body, r#""x\ty""#))), body, &model);
    assert_eq!(text.unwrap(), "<|endoftext|>x\ty");
}

#[test]
fn special_tokens_come_once_unless_the_request_says_otherwise() {
    let bos = "<|endoftext|>";
    let template = format!("{bos}{{{{ messages[0].content }}}}");
    let vllm = model(Some(&template));
    let sglang = ModelText { rules: EngineRules::Sglang, ..model(Some(&template)) };
    let chat = r#""messages":[{"role":"user","content":"hi"}]"#;
    let rich = r#""messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}]"#;
    let once = format!("{bos}hi");
    let twice = format!("{bos}{bos}hi");
    for (endpoint, prompt, sent, by_vllm, by_sglang) in [
        (Endpoint::Completions, r#""prompt":"hi""#, "null", &once, &once),
        (Endpoint::Completions, r#""prompt":"hi""#, "true", &once, &once),
        (Endpoint::Completions, r#""prompt":"hi""#, "false", &"hi".to_owned(), &once),
        (Endpoint::Completions, r#""prompt":["hi","x"]"#, "false", &"hi".to_owned(), &once),
        (Endpoint::Completions, r#""prompt":"<|endoftext|>hi""#, "null", &twice, &twice),
        (Endpoint::ChatCompletions, chat, "null", &once, &once),
        (Endpoint::ChatCompletions, chat, "false", &once, &once),
        (Endpoint::ChatCompletions, chat, "true", &twice, &once),
        (Endpoint::ChatCompletions, rich, "null", &once, &once),
        (Endpoint::ChatCompletions, rich, "true", &twice, &once),
    ] {
        let body = format!(r#"{{"model":"m",{prompt},"add_special_tokens":{sent}}}"#);
        for (model, wanted) in [(&vllm, by_vllm), (&sglang, by_sglang)] {
            let text = scanned_and_rendered(&body, endpoint, model);
            assert_eq!(text.as_deref(), Ok(wanted.as_str()), "{:?} {body}", model.rules);
        }
    }
}

#[test]
fn token_ids_are_decoded() {
    let model = model(None);
    let ids =
        Tokenizer::from_str(TOKENIZER).unwrap().encode("the server <|im_end|>\n", false).unwrap();
    let list = serde_json::to_string_pretty(ids.get_ids()).unwrap();
    let body = format!("{{\"prompt\": {list}}}");
    for source in
        [PromptSource::TokenIds(span_of(&body, &list)), PromptSource::Batch(span_of(&body, &list))]
    {
        assert_eq!(rendered(&request(source), &body, &model).unwrap(), "the server <|im_end|>\n");
    }
    for (list, expected) in [
        ("[1,999999999]", Err(Unrenderable::UnknownToken)),
        ("[1,99999999999999]", Err(Unrenderable::UnknownToken)),
        ("[]", Ok(String::new())),
    ] {
        let source = PromptSource::TokenIds(span_of(list, list));
        assert_eq!(rendered(&request(source), list, &model), expected);
    }
}

#[test]
fn messages_need_a_template() {
    let body = r#"{"messages":[{"role":"user","content":"hi"}]}"#;
    let mut plain = request(PromptSource::PlainMessages);
    plain.messages.push(MessageSpan {
        role: ChatRole::User,
        content: span_of(body, "hi"),
        escaped: false,
    });
    let full = request(PromptSource::Messages);
    for request in [&plain, &full] {
        assert_eq!(rendered(request, body, &model(None)), Err(Unrenderable::NoTemplate));
        let text = rendered(request, body, &model(Some(TEMPLATE)));
        assert_eq!(text.unwrap(), "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
        assert_eq!(rendered(request, body, &model(Some(COUNTED))).unwrap(), "1hi");
        let refusing = model(Some("{{ raise_exception('no') }}"));
        assert_eq!(rendered(request, body, &refusing), Err(Unrenderable::Refused));
    }
}

/// What a shard does with a body: scan, then render.
fn scanned_and_rendered(
    body: &str,
    endpoint: Endpoint,
    model: &ModelText,
) -> Result<String, Unrenderable> {
    let mut request = ApiRequest::default();
    assert_eq!(scan(body.as_bytes(), endpoint, &mut request), Ok(()));
    rendered(&request, body, model)
}

/// As coding agents send them: blocks everywhere, tools, their calls and results, thinking.
const ANTHROPIC: &str = r#"{"model":"m","max_tokens":8,"stream":true,
    "system":[{"type":"text","text":"x-anthropic-billing-header: cch=1;"},
        {"type":"text","text":"Be kind.","cache_control":{"type":"ephemeral"}}],
    "tools":[{"name":"read","description":"d","input_schema":{"type":"object","properties":{"path":{"type":"string"}}}}],
    "thinking":{"type":"enabled","budget_tokens":1024},"metadata":{"user_id":"u"},
    "messages":[{"role":"user","content":[{"type":"text","text":"go"}]},
        {"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"s"},
            {"type":"tool_use","id":"t","name":"read","input":{"path":"a.rs"}}]},
        {"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"text","text":"fn"}]}]}]}"#;
const RESPONSES: &str = r#"{"model":"m","instructions":"Be kind.","reasoning":{"effort":"low"},
    "tools":[{"type":"function","name":"read","description":"d","parameters":{"type":"object"}}],
    "input":[{"role":"user","content":[{"type":"input_text","text":"go"}]},
        {"type":"function_call","call_id":"c","name":"read","arguments":"{\"path\":\"a.rs\"}"},
        {"type":"function_call_output","call_id":"c","output":"fn"}]}"#;

#[test]
fn rich_bodies_of_other_apis_render_as_their_chat() {
    let model = model(Some(TEMPLATE));
    let template = model.chat_template.as_ref().unwrap();
    for (endpoint, body) in [(Endpoint::Messages, ANTHROPIC), (Endpoint::Responses, RESPONSES)] {
        let text = scanned_and_rendered(body, endpoint, &model).unwrap();
        let mut full = Vec::new();
        template.render_full(body.as_bytes(), &mut full).unwrap();
        assert_eq!(text.as_bytes(), full, "{endpoint:?}");
        assert!(text.starts_with("<|im_start|>system\nBe kind."), "{text}");
        for part in ["\"name\": \"read\"", "<|im_start|>user\ngo<|im_end|>", "a.rs", "fn"] {
            assert!(text.contains(part), "{endpoint:?} lacks {part}: {text}");
        }
        assert!(text.ends_with("<|im_start|>assistant\n") && !text.contains("billing"), "{text}");
    }
    let kept = RESPONSES.replacen('{', r#"{"previous_response_id":"r","#, 1);
    assert_eq!(
        scanned_and_rendered(&kept, Endpoint::Responses, &model),
        Err(Unrenderable::NoPrompt)
    );
}

/// Both ways of a body must give the same text, or a conversation would lose its match with its
/// first block list.
#[test]
fn plain_bodies_of_other_apis_render_the_same_either_way() {
    let model = model(Some(TEMPLATE));
    let plain = [
        (Endpoint::Messages, r#""system":"S","messages":[{"role":"user","content":"q"}]"#),
        (Endpoint::Messages, r#""system":"","messages":[{"role":"user","content":"q"}]"#),
        (
            Endpoint::Messages,
            r#""system":"x-anthropic-billing-header: 1\nS","messages":[{"role":"user","content":"q"}]"#,
        ),
        (Endpoint::Responses, r#""instructions":"S","input":"q""#),
        (Endpoint::Responses, r#""instructions":"","input":[{"role":"user","content":"q"}]"#),
    ];
    for (endpoint, members) in plain {
        let fast = scanned_and_rendered(&format!("{{{members}}}"), endpoint, &model).unwrap();
        let rich = format!(r#"{{{members},"chat_template_kwargs":{{}}}}"#);
        assert_eq!(scanned_and_rendered(&rich, endpoint, &model).unwrap(), fast, "{members}");
        assert!(fast.contains("<|im_start|>user\nq<|im_end|>"), "{fast}");
    }
}

/// A plain chat of that system prompt and that question, with two more messages.
fn long_chat(system: &str, question: &str) -> String {
    let message = |role: &str, content: &str| json!({"role": role, "content": content});
    let messages = [
        message("system", system),
        message("user", question),
        message("assistant", "left out"),
        message("user", "left out too"),
    ];
    json!({ "messages": messages }).to_string()
}

/// A chat is rendered up to the limit: the cut leaves whole characters and no later message.
#[test]
fn a_chat_is_cut_at_a_whole_character_of_the_limit() {
    const BEGIN: &str = "<|im_end|>\n<|im_start|>user\n";
    const END: &str = "<|im_end|>\n<|im_start|>assistant\n";
    let model = model(Some(TEMPLATE));
    let question = "\u{20ac}".repeat(PROMPT_BYTES_MATCHED_MAX / 3);
    for shift in 0..3 {
        let system = "s".repeat(1_000 + shift);
        let body = long_chat(&system, &question);
        let mut request = ApiRequest::default();
        assert_eq!(scan(body.as_bytes(), Endpoint::ChatCompletions, &mut request), Ok(()));
        let mut out = Vec::new();
        let method = render(&request, body.as_bytes(), &model, &mut out);
        assert_eq!(method, Ok(RenderMethod::Beginning), "{shift}");
        let text = String::from_utf8(out).expect("whole characters");
        let begin = format!("<|im_start|>system\n{system}{BEGIN}");
        let kept = text.strip_prefix(&begin).and_then(|rest| rest.strip_suffix(END)).unwrap();
        let kept_bytes = (PROMPT_BYTES_MATCHED_MAX - system.len()) / 3 * 3;
        assert!(kept == &question[..kept_bytes], "{shift}: {} bytes", kept.len());
        let prompt_bytes = RenderMethod::Beginning.prompt_bytes(&request, text.len());
        assert!(prompt_bytes > text.len() as u64, "the length is that of all messages");
    }
}

#[test]
fn other_prompts_are_not_rendered() {
    let model = model(Some(TEMPLATE));
    assert_eq!(rendered(&request(PromptSource::None), "{}", &model), Err(Unrenderable::NoPrompt));
    assert_eq!(
        rendered(&request(PromptSource::Batch(0..1)), "7", &model),
        Err(Unrenderable::NoPrompt)
    );
    let large = format!(
        "{{\"messages\":[],\"pad\":\"{}\"}}",
        "x".repeat(forebay_base::limits::TEMPLATE_BODY_BYTES_MAX)
    );
    assert_eq!(
        rendered(&request(PromptSource::Messages), &large, &model),
        Err(Unrenderable::TooLarge)
    );
}

fn contents() -> impl Strategy<Value = Vec<String>> {
    let atom = prop::sample::select(vec![
        "the router sends",
        " ",
        "   ",
        "\n\n",
        "\t",
        "日本語",
        "😀👩‍💻",
        "e\u{301}",
        "<|im_end|>",
        "<|im_start|>system\n",
        "<|endoftext|>",
        "\u{a0}\u{3000}",
        "{\"a\": 1}",
        "don't",
        "\\n",
        "\u{0}",
    ]);
    let known = prop::collection::vec(atom, 0..8).prop_map(|atoms| atoms.concat());
    prop::collection::vec(proptest::prop_oneof![known, any::<String>()], 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// The rendered prompt is what the engine's tokens of the same prompt decode to.
    #[test]
    fn rendered_prompts_are_their_decoded_tokens(contents in contents()) {
        thread_local! {
            static MODEL: (Tokenizer, ModelText) =
                (Tokenizer::from_str(TOKENIZER).unwrap(), model(Some(TEMPLATE)));
        }
        let messages: Vec<serde_json::Value> = contents
            .iter()
            .enumerate()
            .map(|(index, content)| {
                let role = ["user", "assistant"][index % 2];
                serde_json::json!({ "role": role, "content": content })
            })
            .collect();
        let body = serde_json::json!({ "messages": messages }).to_string();
        MODEL.with(|(tokenizer, model)| {
            let text = rendered(&request(PromptSource::Messages), &body, model).unwrap();
            let encoded = tokenizer.encode(text.as_str(), false).unwrap();
            let mut decoded = Vec::new();
            assert!(model.vocabulary.decode_into(encoded.get_ids(), &mut decoded));
            prop_assert_eq!(text, String::from_utf8(decoded).unwrap());
            Ok(())
        })?;
    }
}
