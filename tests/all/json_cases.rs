//! Bodies: the JSON test suite, the recorded LLM bodies, and generated ones compared with
//! `serde_json`.

#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops where it finds a fault"
)]

use crate::fuzz_seeds;
use forebay::parse::{ApiRequest, Endpoint, PromptSource, Refusal, scan};
use forebay_json::check_json;
use proptest::prelude::{Just, Strategy, any, prop_assert_eq, prop_oneof, proptest};
use serde_json::Value;

#[test]
fn json_test_suite() {
    let mut accepted = 0;
    let mut refused = 0;
    for entry in std::fs::read_dir("tests/data/json/test_parsing").unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let body = std::fs::read(&path).unwrap();
        let verdict = check_json(&body);
        match &name[..2] {
            "y_" => {
                assert_eq!(verdict, Ok(()), "{name}");
                accepted += 1;
            }
            "n_" => {
                assert!(verdict.is_err(), "{name}");
                refused += 1;
            }
            _ => {}
        }
        // As a value inside a request the verdict is the same, unless the depth counts.
        let inside = [&b"{\"x\":"[..], &body, b"}"].concat();
        let scanned = scan(&inside, Endpoint::ChatCompletions, &mut ApiRequest::default());
        if name.starts_with("n_") && !name.contains("object") && !name.contains("structure") {
            assert!(scanned.is_err(), "{name} inside an object");
        }
        if verdict.is_ok() {
            assert_eq!(scanned, Ok(()), "{name} inside an object");
        }
    }
    assert_eq!((accepted, refused), (95, 188));
}

/// What the router itself can say of a body: its refusal, or what it read.
fn decide(body: &[u8], endpoint: Endpoint) -> Result<ApiRequest, Refusal> {
    let mut request = ApiRequest::default();
    scan(body, endpoint, &mut request)?;
    if !request.has_model || request.model.is_empty() {
        return Err(Refusal::missing_model());
    }
    Ok(request)
}

/// One byte per character, or parts repeated.
fn body_of(case: &Value) -> Vec<u8> {
    if let Some(body) = case["body"].as_str() {
        return body.chars().map(|character| u8::try_from(u32::from(character)).unwrap()).collect();
    }
    let times = |part: &Value| usize::try_from(part[1].as_u64().unwrap()).unwrap();
    let parts = case["rep"].as_array().unwrap().iter();
    parts.flat_map(|part| part[0].as_str().unwrap().repeat(times(part)).into_bytes()).collect()
}

#[test]
fn recorded_llm_bodies() {
    let text = std::fs::read_to_string("tests/data/json/llm_body_cases.jsonl").unwrap();
    for line in text.lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let id = case["id"].as_str().unwrap();
        let body = body_of(&case);
        let endpoint = if case["path"] == "/v1/completions" {
            Endpoint::Completions
        } else {
            Endpoint::ChatCompletions
        };
        let decided = decide(&body, endpoint);
        if let Err(refusal) = &decided {
            assert_eq!(refusal.status() / 100, 4, "{id}");
            assert!(refusal.message().len() < 400, "{id}: {}", refusal.message());
        }
        match case["expect"].as_str().unwrap() {
            "accept" => {
                let request =
                    decided.unwrap_or_else(|refusal| panic!("{id}: {}", refusal.message()));
                if let Some(seen) = case["seen"].as_object() {
                    assert_eq!(request.model, seen["model"].as_str().unwrap(), "{id}");
                    assert_eq!(
                        request.stream,
                        seen.get("stream") == Some(&Value::Bool(true)),
                        "{id}"
                    );
                }
                assert_ne!(request.prompt, PromptSource::None, "{id}");
            }
            "reject" => assert!(decided.is_err() || case["relay_ok"] == true, "{id} was accepted"),
            // Router and engine must read the same out of it, or the router refuses.
            "same" => {
                if let Ok(request) = decided {
                    let value: Value = serde_json::from_slice(&body).unwrap();
                    assert_eq!(request.model, value["model"].as_str().unwrap(), "{id}");
                    assert_eq!(request.stream, value["stream"] == true, "{id}");
                    assert_eq!(
                        request.max_tokens.map(u64::from),
                        value["max_tokens"].as_u64(),
                        "{id}"
                    );
                    for owned in ["bootstrap_host", "bootstrap_port", "bootstrap_room"] {
                        assert!(value.get(owned).is_none(), "{id}: {owned} would pass");
                    }
                }
            }
            "limit" => {
                if let Ok(request) = decided {
                    assert!(
                        request.messages.capacity() <= 2 * forebay::parse::MESSAGES_MAX,
                        "{id}"
                    );
                    assert!(request.model.len() <= forebay::parse::MODEL_BYTES_MAX, "{id}");
                }
            }
            expect => panic!("{id}: {expect}"),
        }
    }
}

/// A JSON string of that text, spelt in one of several ways.
fn spelt(text: &str, how: u8) -> String {
    match how % 3 {
        0 => serde_json::to_string(text).unwrap(),
        1 => format!(
            "\"{}\"",
            text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect::<String>()
        ),
        _ => {
            let plain = serde_json::to_string(text).unwrap();
            plain.replacen('e', "\\u0065", 1).replace('/', "\\/")
        }
    }
}

fn key() -> impl Strategy<Value = String> {
    let known = prop_oneof![
        Just("model"),
        Just("stream"),
        Just("prompt"),
        Just("messages"),
        Just("max_tokens"),
        Just("max_completion_tokens"),
        Just("input"),
        Just("text"),
        Just("input_ids"),
        Just("system"),
        Just("instructions"),
        Just("tools"),
        Just("thinking"),
        Just("reasoning"),
        Just("previous_response_id"),
        Just("add_generation_prompt"),
        Just("cache_salt"),
        Just("n"),
    ];
    (known, any::<u8>()).prop_map(|(key, how)| spelt(key, if how < 200 { 0 } else { how }))
}

fn message() -> impl Strategy<Value = String> {
    let role = prop_oneof![Just("system"), Just("user"), Just("assistant"), Just("tool")];
    (role, any::<String>(), any::<u8>()).prop_map(|(role, content, how)| {
        let content = spelt(&content, how);
        match how {
            0..180 => format!("{{\"role\":\"{role}\" , \"content\":{content}}}"),
            180..200 => format!("{{\"content\":{content},\"role\":\"{role}\"}}"),
            200..210 => format!("{{\"role\":\"{role}\",\"content\":{content},\"name\":\"n\"}}"),
            210..220 => format!("{{\"role\":\"{role}\",\"content\":1,\"content\":{content}}}"),
            220..230 => format!("{{\"role\":\"{role}\",\"content\":{content},\"content\":null}}"),
            230..240 => content,
            _ => format!("{{\"r\\u006fle\":\"{role}\",\"content\":{content}}}"),
        }
    })
}

fn value() -> impl Strategy<Value = String> {
    let scalar = prop_oneof![
        Just("null".to_owned()),
        Just("true".to_owned()),
        Just("false".to_owned()),
        any::<i64>().prop_map(|number| number.to_string()),
        any::<u32>().prop_map(|number| number.to_string()),
        any::<f64>().prop_map(|number| if number.is_finite() {
            format!("{number:e}")
        } else {
            "0.5".to_owned()
        }),
        (any::<String>(), any::<u8>()).prop_map(|(text, how)| spelt(&text, how)),
    ];
    let list = |strategy: proptest::strategy::BoxedStrategy<String>| {
        proptest::collection::vec(strategy, 0..4)
            .prop_map(|items| format!("[{}]", items.join(" ,")))
    };
    let ids = list(any::<u32>().prop_map(|id| id.to_string()).boxed()).boxed();
    let scalar = scalar.boxed();
    prop_oneof![
        4 => scalar.clone(),
        2 => list(message().boxed()),
        2 => ids.clone(),
        1 => list(ids),
        1 => list(scalar.clone()),
        1 => (scalar.clone(), scalar).prop_map(|(a, b)| format!("{{\"a\":{a},\"b\":[{{\"c\":{b}}}]}}")),
    ]
}

proptest! {
    #[test]
    fn generated_bodies_are_read_as_serde_json_reads_them(
        members in proptest::collection::vec((key(), value()), 0..8),
    ) {
        let members: Vec<_> =
            members.into_iter().map(|(key, value)| format!("{key}: {value}")).collect();
        let body = format!("{{{}}}\n", members.join(",\t"));
        prop_assert_eq!(check_json(body.as_bytes()), Ok(()));
        fuzz_seeds::json_scan::check(body.as_bytes());
    }

    #[test]
    fn generated_bodies_cut_short_are_refused(
        members in proptest::collection::vec((key(), value()), 1..4),
        at in any::<usize>(),
    ) {
        let members: Vec<_> =
            members.into_iter().map(|(key, value)| format!("{key}:{value}")).collect();
        let body = format!("{{{}}}", members.join(","));
        let cut = &body.as_bytes()[..at % body.len()];
        prop_assert_eq!(
            scan(cut, Endpoint::Completions, &mut ApiRequest::default()).is_err(),
            true
        );
    }
}
