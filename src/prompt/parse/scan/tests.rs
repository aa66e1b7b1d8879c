//! What one scan finds, and what it refuses.

use super::{CACHE_SALT_BYTES_MAX, ScanError, scan};
use crate::parse::{ApiRequest, Endpoint, MESSAGES_MAX, PromptSource};
use forebay_json::JsonError;
use forebay_text::chat::{ChatRole, MessageSpan};

fn scanned(body: &str, endpoint: Endpoint) -> ApiRequest {
    let mut request = ApiRequest::default();
    scan(body.as_bytes(), endpoint, &mut request).unwrap();
    request
}

fn chat(body: &str) -> ApiRequest {
    scanned(body, Endpoint::ChatCompletions)
}

fn contents<'a>(body: &'a str, messages: &[MessageSpan]) -> Vec<(ChatRole, &'a str)> {
    messages
        .iter()
        .map(|message| {
            (message.role, &body[message.content.start as usize..message.content.end as usize])
        })
        .collect()
}

#[test]
fn plain_chat() {
    let body = r#" {"model":"m","messages":[{"role":"system","content":"s"},{"content":"a\nb","role":"user"}],"max_tokens":7,"stream":true} "#;
    let request = chat(body);
    assert_eq!(
        (request.model.as_str(), request.has_model, request.stream, request.max_tokens),
        ("m", true, true, Some(7))
    );
    assert_eq!(request.prompt, PromptSource::PlainMessages);
    assert_eq!(
        contents(body, &request.messages),
        [(ChatRole::System, "s"), (ChatRole::User, "a\\nb")]
    );
    assert_eq!((request.messages[0].escaped, request.messages[1].escaped), (false, true));
    assert!(request.add_generation_prompt);
}

#[test]
fn the_priority_is_a_whole_number_or_none() {
    for (value, wanted) in [
        ("0", Some(0)),
        ("-7", Some(-7)),
        ("9223372036854775807", Some(i64::MAX)),
        ("9223372036854775808", Some(i64::MAX)),
        ("-1e30", Some(i64::MIN)),
        // What pydantic takes for a whole number.
        ("-1.0", Some(-1)),
        ("1e1", Some(10)),
        ("\"-1\"", Some(-1)),
        ("\" -1_0 \"", Some(-10)),
        ("\"\\u002d5\"", Some(-5)),
        ("true", Some(1)),
        ("1.5", None),
        ("\"high\"", None),
        ("\"inf\"", None),
        ("null", None),
        ("1,\"priority\":[]", None),
        ("[],\"priorit\\u0079\": -2 ", Some(-2)),
    ] {
        let body = format!(r#"{{"prompt":"a","priority":{value}}}"#);
        assert_eq!(scanned(&body, Endpoint::Completions).priority, wanted, "{value}");
    }
    assert_eq!(scanned(r#"{"prompt":"a"}"#, Endpoint::Completions).priority, None);
}

#[test]
fn what_is_not_plain_needs_the_template() {
    for messages in [
        r#"[{"role":"tool","content":"x"}]"#,
        r#"[{"role":"user","content":"x","name":"n"}]"#,
        r#"[{"role":"user","content":[{"type":"text","text":"x"}]}]"#,
        r#"[{"role":"user","content":"x"},{"role":"assistant","content":null}]"#,
        r#"[{"role":"user"}]"#,
        r#"[{"r\u006fle":"user","content":"x"}]"#,
        r#"[1]"#,
    ] {
        let request = chat(&format!(r#"{{"messages":{messages}}}"#));
        assert_eq!(
            (request.prompt, request.messages.len()),
            (PromptSource::Messages, 0),
            "{messages}"
        );
    }
    let plain = r#""messages":[{"role":"user","content":"x"}]"#;
    for (extra, plain_still) in [
        (r#""tools":[]"#, false),
        (r#""tools":null"#, true),
        (r#""chat_template_kwargs":{}"#, false),
        (r#""continue_final_message":false"#, true),
        (r#""add_special_tokens":true"#, true),
        (r#""reasoning":{"effort":"low"}"#, false),
        (r#""temperature":1"#, true),
    ] {
        let wanted = if plain_still { PromptSource::PlainMessages } else { PromptSource::Messages };
        assert_eq!(chat(&format!("{{{plain},{extra}}}")).prompt, wanted, "{extra}");
    }
}

#[test]
fn the_last_duplicate_counts_in_any_spelling() {
    let request = chat(
        r#"{"model":"a","mod\u0065l":"b","stream":true,"\u0073tream":false,"max_tokens":1,"max_tokens":2}"#,
    );
    assert_eq!((request.model.as_str(), request.stream, request.max_tokens), ("b", false, Some(2)));
    let request = chat(
        r#"{"model":"a","model":null,"messages":[{"role":"user","content":"x"}],"messages":7}"#,
    );
    assert_eq!(
        (request.has_model, request.prompt, request.messages.len()),
        (false, PromptSource::None, 0)
    );
    let request = chat(
        r#"{"messages":[{"role":"user","content":"x","role":"system"}],"tools":[1],"tools":null}"#,
    );
    assert_eq!(
        (request.prompt, request.messages[0].role),
        (PromptSource::PlainMessages, ChatRole::System)
    );
}

#[test]
fn text_inside_strings_is_no_key() {
    let request = chat(r#"{"user":"\"model\":\"x\"","model":"\u006d"}"#);
    assert_eq!(request.model, "m");
}

#[test]
fn prompts_of_every_shape() {
    for (prompt, wanted) in [
        (r#""hi""#, PromptSource::Text(11..13)),
        ("[1,22]", PromptSource::TokenIds(10..16)),
        ("[ 1 , 2 ]", PromptSource::TokenIds(10..19)),
        ("[[1],[2]]", PromptSource::Batch(11..14)),
        (r#"["a","b"]"#, PromptSource::Batch(11..14)),
        ("[]", PromptSource::None),
        ("[[]]", PromptSource::None),
        ("[1,-2]", PromptSource::None),
        ("[1,2.0]", PromptSource::None),
        ("[1,\"a\"]", PromptSource::None),
        ("[{}]", PromptSource::None),
        ("null", PromptSource::None),
    ] {
        let request = scanned(&format!(r#"{{"prompt":{prompt}}}"#), Endpoint::Completions);
        assert_eq!(request.prompt, wanted, "{prompt}");
    }
    assert_eq!(chat(r#"{"prompt":"hi"}"#).prompt, PromptSource::None);
    let generate = scanned(
        r#"{"text":"a","input_ids":[5],"sampling_params":{"n":1,"max_new_tokens":9}}"#,
        Endpoint::Generate,
    );
    assert_eq!((generate.prompt, generate.max_tokens), (PromptSource::TokenIds(24..27), Some(9)));
    assert_eq!(
        scanned(r#"{"input":"a"}"#, Endpoint::Embeddings).prompt,
        PromptSource::Text(10..11)
    );
}

#[test]
fn responses_and_anthropic_messages_become_chat() {
    let body = r#"{"input":"hi","instructions":"be brief"}"#;
    let request = scanned(body, Endpoint::Responses);
    assert_eq!(request.prompt, PromptSource::PlainMessages);
    assert_eq!(
        contents(body, &request.messages),
        [(ChatRole::System, "be brief"), (ChatRole::User, "hi")]
    );
    let body =
        r#"{"input":[{"type":"message","role":"user","content":"hi"}],"max_output_tokens":3}"#;
    let request = scanned(body, Endpoint::Responses);
    assert_eq!(
        (request.prompt, request.max_tokens, request.messages.len()),
        (PromptSource::PlainMessages, Some(3), 1)
    );
    assert_eq!(
        scanned(r#"{"input":"hi","previous_response_id":"r"}"#, Endpoint::Responses).prompt,
        PromptSource::None
    );
    let body = r#"{"system":"s","messages":[{"role":"user","content":"hi"}],"max_tokens":3}"#;
    let request = scanned(body, Endpoint::Messages);
    assert_eq!(
        contents(body, &request.messages),
        [(ChatRole::System, "s"), (ChatRole::User, "hi")]
    );
    for (endpoint, body) in [
        (Endpoint::Messages, r#"{"system":"","messages":[{"role":"user","content":"hi"}]}"#),
        (Endpoint::Responses, r#"{"instructions":"","input":"hi"}"#),
    ] {
        let request = scanned(body, endpoint);
        assert_eq!(contents(body, &request.messages), [(ChatRole::User, "hi")], "{body}");
    }
}

#[test]
fn rich_bodies_of_other_apis_need_the_template() {
    let plain = r#""messages":[{"role":"user","content":"hi"}]"#;
    for (body, wanted) in [
        (r#""system":[{"type":"text","text":"s"}]"#, PromptSource::Messages),
        (r#""tools":[{"name":"f","input_schema":{}}]"#, PromptSource::Messages),
        (r#""system":"s","thinking":{"type":"disabled"}"#, PromptSource::Messages),
        (r#""output_config":{"effort":"low"}"#, PromptSource::Messages),
        (r#""output_config":{"effort":"low"},"output_config":null"#, PromptSource::PlainMessages),
        (r#""reasoning":{"effort":"low"}"#, PromptSource::PlainMessages),
        (
            r#""messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"t"}]}]"#,
            PromptSource::Messages,
        ),
        (r#""system":[],"messages":[]"#, PromptSource::None),
        (r#""tools":[1],"messages":null"#, PromptSource::None),
    ] {
        let request = scanned(&format!("{{{plain},{body}}}"), Endpoint::Messages);
        assert_eq!(request.prompt, wanted, "{body}");
        assert_eq!(request.messages.is_empty(), wanted != PromptSource::PlainMessages);
    }
    for (body, wanted) in [
        (
            r#""input":[{"type":"function_call","call_id":"c","name":"f","arguments":"{}"}]"#,
            PromptSource::Messages,
        ),
        (
            r#""input":[{"role":"user","content":[{"type":"input_text","text":"x"}]}]"#,
            PromptSource::Messages,
        ),
        (r#""tools":[{"type":"function","name":"f"}]"#, PromptSource::Messages),
        (r#""reasoning":{"effort":"low"},"instructions":"i""#, PromptSource::Messages),
        (r#""thinking":{"type":"disabled"}"#, PromptSource::PlainMessages),
        (r#""instructions":["i"]"#, PromptSource::None),
        (r#""instructions":["i"],"tools":[]"#, PromptSource::None),
        (r#""tools":[],"conversation":"c""#, PromptSource::None),
        (r#""tools":[],"previous_response_id":"r""#, PromptSource::None),
        (r#""previous_response":{"output":[]}"#, PromptSource::None),
        (r#""previous_response_id":null"#, PromptSource::PlainMessages),
        (r#""tools":[],"input":[]"#, PromptSource::None),
    ] {
        let request = scanned(&format!(r#"{{"input":"hi",{body}}}"#), Endpoint::Responses);
        assert_eq!(request.prompt, wanted, "{body}");
        assert_eq!(request.messages.is_empty(), wanted != PromptSource::PlainMessages);
    }
    // In a chat no engine reads these keys.
    let chatting = chat(&format!(r#"{{{plain},"thinking":{{}},"previous_response_id":"r"}}"#));
    assert_eq!(chatting.prompt, PromptSource::PlainMessages);
}

#[test]
fn numbers_of_tokens() {
    for (value, wanted) in [
        ("5", Some(5)),
        ("99999999999", Some(u32::MAX)),
        ("-1", None),
        ("1.0", None),
        ("null", None),
        ("\"5\"", None),
    ] {
        assert_eq!(chat(&format!(r#"{{"max_tokens":{value}}}"#)).max_tokens, wanted, "{value}");
    }
    assert_eq!(chat(r#"{"max_completion_tokens":2,"max_tokens":9}"#).max_tokens, Some(2));
}

#[test]
fn answers_are_samples_of_each_prompt() {
    let count = |body: &str, endpoint| scanned(body, endpoint).answer_count;
    let text = |body: &str| count(body, Endpoint::Completions);
    assert_eq!(chat(r#"{"messages":[]}"#).answer_count, 1);
    assert_eq!(chat(r#"{"n":128}"#).answer_count, 128);
    assert_eq!((chat(r#"{"n":0}"#).answer_count, chat(r#"{"n":-3}"#).answer_count), (1, 1));
    assert_eq!(text(r#"{"prompt":"a","n":2,"best_of":5}"#), 5);
    assert_eq!(text(r#"{"prompt":["a","b","c"],"n":2}"#), 6);
    assert_eq!((text(r#"{"prompt":[[1,2],[3]]}"#), text(r#"{"prompt":[1,2,3]}"#)), (2, 1));
    let sampled = r#"{"text":["a","b"],"sampling_params":{"n":4,"max_new_tokens":9}}"#;
    let sampled = scanned(sampled, Endpoint::Generate);
    assert_eq!((sampled.answer_count, sampled.max_tokens), (8, Some(9)));
    assert_eq!(count(r#"{"input":["a","b"]}"#, Endpoint::Embeddings), 1, "nothing is generated");
    assert_eq!(text(r#"{"prompt":["a","b"],"n":4294967295}"#), u32::MAX);
}

#[test]
fn responses_in_the_background_are_refused() {
    let mut request = ApiRequest::default();
    let mut scanned = |body: &str, endpoint| scan(body.as_bytes(), endpoint, &mut request);
    let body = r#"{"model":"m","input":"hi","background":true}"#;
    assert_eq!(scanned(body, Endpoint::Responses), Err(ScanError::Background));
    assert_eq!(scanned(body, Endpoint::ChatCompletions), Ok(()), "nobody's key there");
    for value in ["false", "null", "\"true\""] {
        let body = body.replace("true}", &format!("{value}}}"));
        assert_eq!(scanned(&body, Endpoint::Responses), Ok(()), "{value}");
    }
}

#[test]
fn fleet_keys_are_refused() {
    let mut request = ApiRequest::default();
    let body = br#"{"model":"m","bootstrap_host":"10.0.0.1"}"#;
    assert_eq!(
        scan(body, Endpoint::ChatCompletions, &mut request),
        Err(ScanError::Owned { key: "bootstrap_host" })
    );
    for key in ["bootstrap_port", "bootstrap_room", "bootstrap\\u005froom"] {
        let body = format!(r#"{{"model":"m","{key}":1}}"#);
        for endpoint in [Endpoint::ChatCompletions, Endpoint::Completions, Endpoint::Generate] {
            let scanned = scan(body.as_bytes(), endpoint, &mut request);
            assert!(matches!(scanned, Err(ScanError::Owned { .. })), "{key}");
        }
    }
    let absent = br#"{"bootstrap_host":null}"#;
    assert_eq!(scan(absent, Endpoint::ChatCompletions, &mut request), Ok(()));
}

#[test]
fn where_no_cache_is_read_nothing_is_matched() {
    for (key, values) in [
        ("prompt_logprobs", &["0", "5", "-1", "false"][..]),
        ("echo", &["true"]),
        ("truncate_prompt_tokens", &["64", "-1"]),
        ("suffix", &["\"x\""]),
        ("logprob_start_len", &["0"]),
        ("prompt\\u005flogprobs", &["1"]),
    ] {
        for value in values {
            let body = format!(r#"{{"model":"m","prompt":"hi","{key}":{value}}}"#);
            assert!(scanned(&body, Endpoint::Completions).reads_no_cache, "{key} {value}");
        }
        let body = format!(r#"{{"{key}":1,"model":"m","prompt":"hi","{key}":null}}"#);
        assert!(!scanned(&body, Endpoint::Completions).reads_no_cache, "{key}: the last counts");
    }
    assert!(!chat(r#"{"echo":false,"logprobs":true,"user":"prompt_logprobs"}"#).reads_no_cache);
    let mut reused = chat(r#"{"echo":true}"#);
    scan(b"{}", Endpoint::ChatCompletions, &mut reused).unwrap();
    assert!(!reused.reads_no_cache);
}

#[test]
fn what_clients_tell_engines_about_transfers_passes() {
    let request = chat(
        r#"{"model":"m","kv_transfer_params":{"prompt_token_ids":[1,2]},"messages":[{"role":"user","content":"hi"}]}"#,
    );
    assert_eq!((request.prompt, request.messages.len()), (PromptSource::PlainMessages, 1));
}

#[test]
fn sizes_are_bounded() {
    let mut request = ApiRequest::default();
    let model = "m".repeat(super::MODEL_BYTES_MAX + 1);
    let body = format!(r#"{{"model":"{model}"}}"#);
    assert_eq!(
        scan(body.as_bytes(), Endpoint::ChatCompletions, &mut request),
        Err(ScanError::ModelTooLong)
    );
    let salt = "s".repeat(CACHE_SALT_BYTES_MAX + 1);
    let request =
        chat(&format!(r#"{{"cache_salt":"{salt}","messages":[{{"role":"user","content":"x"}}]}}"#));
    assert_eq!((request.prompt, request.cache_salt.len()), (PromptSource::None, 0));
    let messages = vec![r#"{"role":"user","content":"a"}"#; MESSAGES_MAX + 1].join(",");
    let request = chat(&format!(r#"{{"messages":[{messages}]}}"#));
    assert_eq!((request.prompt, request.messages.len()), (PromptSource::None, 0));
}

#[test]
fn an_adapter_by_its_number_is_another_adapter() {
    for (keys, is_other) in [
        (r#""lora_id":"7f""#, true),
        (r#""lora_id":["7f",null],"lora_path":"tuned""#, true),
        (r#""lora_id":"7f","lora_path":null"#, true),
        (r#""lora_id":null,"lora_path":"tuned""#, false),
    ] {
        let body = format!("{{{keys},\"text\":\"hi\"}}");
        let request = scanned(&body, Endpoint::Generate);
        assert_eq!(request.names_other_lora, is_other, "{keys}");
    }
}

#[test]
fn namespaces_beside_the_salt() {
    let of = |keys: &str| {
        let request = chat(&format!(r#"{{{keys},"messages":[{{"role":"user","content":"x"}}]}}"#));
        (request.cache_salt, request.lora, request.has_more_than_text)
    };
    for (keys, salt, lora, more) in [
        (r#""cache_salt":"s""#, "s", "", false),
        (r#""cache_salt":"s","extra_key":"k\u0041""#, "s\0kA", "", false),
        (r#""extra_key":"k""#, "\0k", "", false),
        (r#""extra_key":null,"lora_path":null"#, "", "", false),
        (r#""extra_key":["a","b"]"#, "", "", true),
        (r#""lora_path":"tuned""#, "", "tuned", false),
        (r#""lora_path":["a",null]"#, "", "", true),
        (r#""prompt_embeds":"AA==""#, "", "", true),
        (r#""image_data":null,"input_embeds":false"#, "", "", false),
    ] {
        assert_eq!(of(keys), (salt.to_owned(), lora.to_owned(), more), "{keys}");
    }
    let mut reused = chat(r#"{"lora_path":"tuned","prompt_embeds":[1]}"#);
    scan(b"{}", Endpoint::ChatCompletions, &mut reused).unwrap();
    assert_eq!((reused.lora.as_str(), reused.has_more_than_text), ("", false));
}

#[test]
fn a_reused_request_keeps_nothing() {
    let mut request = chat(
        r#"{"model":"m","stream":true,"add_generation_prompt":false,"max_tokens":1,"cache_salt":"s","messages":[{"role":"user","content":"x"}]}"#,
    );
    assert_eq!((request.cache_salt.as_str(), request.add_generation_prompt), ("s", false));
    scan(b"{}", Endpoint::ChatCompletions, &mut request).unwrap();
    assert_eq!(
        (request.model.as_str(), request.has_model, request.stream, request.max_tokens),
        ("", false, false, None)
    );
    assert_eq!(
        (
            request.prompt,
            request.messages.len(),
            request.cache_salt.as_str(),
            request.add_generation_prompt
        ),
        (PromptSource::None, 0, "", true)
    );
}

#[test]
fn other_values_and_junk_are_refused() {
    let mut request = ApiRequest::default();
    for (body, wanted) in [
        ("", JsonError::Empty.into()),
        ("[]", ScanError::NotObject),
        ("null", ScanError::NotObject),
        ("{}x", JsonError::Syntax { at: 2 }.into()),
        ("[1", JsonError::Syntax { at: 2 }.into()),
        ("{\"a\":\"\\ud800\"}", JsonError::LoneSurrogate { at: 6 }.into()),
    ] {
        assert_eq!(
            scan(body.as_bytes(), Endpoint::ChatCompletions, &mut request),
            Err(wanted),
            "{body}"
        );
    }
}
