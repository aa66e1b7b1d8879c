//! Any bytes as a request body. Must hold: the scan accepts what `serde_json` accepts and nothing
//! else (limits of depth, numbers and names aside), and both read the same model, flags, prompt and
//! messages out of it.

use forebay_json::{JsonError, check_json, unescape_into};
use forebay_prompt::parse::{ApiRequest, Endpoint, PromptSource, ScanError, scan};
use forebay_text::ImageKey;
use forebay_text::chat::ChatRole;
use serde_json::Value;

const ENDPOINTS: [Endpoint; 6] = [
    Endpoint::ChatCompletions,
    Endpoint::Completions,
    Endpoint::Responses,
    Endpoint::Messages,
    Endpoint::Generate,
    Endpoint::Tokenize,
];

/// Bytes of a name with its key, quotes and comma.
const NAME_MEMBER_BYTES: usize = 42;

/// Panics when a rule above is broken.
pub(crate) fn check(data: &[u8]) {
    let verdict = check_json(data);
    let parsed = serde_json::from_slice::<Value>(data);
    match (&verdict, &parsed) {
        (Ok(()), Err(error)) => {
            let text = error.to_string();
            // serde_json has no number above f64's range and stops one level earlier.
            assert!(
                text.contains("number out of range") || text.contains("recursion limit"),
                "accepted, but serde_json says {text}"
            );
        }
        (Err(error), Ok(_)) => assert!(
            matches!(error, JsonError::Depth { .. }),
            "refused with {error}, serde_json accepts"
        ),
        _ => {}
    }
    let mut request = ApiRequest::default();
    for endpoint in ENDPOINTS {
        let scanned = scan(data, endpoint, &mut request);
        match (scanned, &verdict) {
            (Ok(()), verdict) => assert_eq!(*verdict, Ok(()), "the scan accepts what is no JSON"),
            // JSON, but not what the router or an engine would take.
            (
                Err(
                    ScanError::NotObject
                    | ScanError::MemberNotObject { .. }
                    | ScanError::ModelTooLong
                    | ScanError::Owned { .. },
                ),
                Ok(()),
            ) => continue,
            (Err(error), verdict) => {
                assert_eq!(Err(error), verdict.map_err(ScanError::Json), "scan and check disagree");
                continue;
            }
        }
        if let Ok(value) = &parsed {
            agree(data, value, endpoint, &request);
        }
        if request.has_model {
            renamed(data, endpoint, request.clone());
        }
        if endpoint == Endpoint::ChatCompletions {
            named(data, request.clone());
        }
    }
}

/// Under another name all places are those that a scan of the new body finds.
fn renamed(data: &[u8], endpoint: Endpoint, mut request: ApiRequest) {
    let mut body = data.to_vec();
    let mut found = ApiRequest::default();
    let behind = request.behind_model(body.len());
    request.rename("a \"longer\" name\n");
    request.write_model(&mut body, 0);
    assert_eq!(request.behind_model(body.len()), behind);
    assert_eq!(scan(&body, endpoint, &mut found), Ok(()));
    assert_eq!((&found.model, &found.model_span), (&request.model, &request.model_span));
    assert_eq!((&found.prompt, &found.messages), (&request.prompt, &request.messages));
    assert_eq!(found.text_members, request.text_members);
}

/// Names of images are all that is new in the body, and all places are those that a scan of it
/// finds. Images that have names get no others.
fn named(data: &[u8], mut request: ApiRequest) {
    let mut body = data.to_vec();
    let mut found = ApiRequest::default();
    let key = ImageKey::new("secret");
    request.name_images(&mut body, 0, &key);
    assert_eq!(scan(&body, Endpoint::ChatCompletions, &mut found), Ok(()));
    assert_eq!((&found.model, &found.model_span), (&request.model, &request.model_span));
    assert_eq!((&found.prompt, &found.messages), (&request.prompt, &request.messages));
    assert_eq!(found.text_members, request.text_members);
    let mut old = data;
    let mut new = &body[..];
    while let Some((byte, rest)) = new.split_first() {
        let is_name =
            |member: &[u8]| member.starts_with(b"\"uuid\":\"") && member.ends_with(b"\",");
        let member = new.get(..NAME_MEMBER_BYTES).filter(|member| is_name(member));
        if let Some(member) = member.filter(|member| !old.starts_with(member)) {
            new = &new[member.len()..];
            continue;
        }
        assert_eq!(old.first(), Some(byte));
        old = &old[1..];
        new = rest;
    }
    assert!(old.is_empty());
    let before = body.clone();
    request.name_images(&mut body, 0, &key);
    assert_eq!(body, before, "named twice");
}

fn agree(data: &[u8], value: &Value, endpoint: Endpoint, request: &ApiRequest) {
    assert_eq!(request.has_model, value["model"].is_string());
    assert_eq!(request.model, value["model"].as_str().unwrap_or(""));
    assert_eq!(request.stream, value["stream"] == true);
    assert_eq!(request.add_generation_prompt, value["add_generation_prompt"] != false);
    if endpoint == Endpoint::ChatCompletions {
        let count = [&value["max_completion_tokens"], &value["max_tokens"]]
            .into_iter()
            .find_map(Value::as_u64);
        if let (Some(count), Some(tokens)) = (count, request.max_tokens) {
            assert!(tokens == u32::MAX || u64::from(tokens) == count);
        }
    }
    match &request.prompt {
        PromptSource::None => {}
        PromptSource::Messages if endpoint == Endpoint::Responses => {
            assert!(value["input"].is_array() || value["input"].is_string());
        }
        PromptSource::Messages => assert!(value["messages"].is_array()),
        PromptSource::PlainMessages => plain_messages(data, value, endpoint, request),
        PromptSource::Text(span) => {
            assert!(prompts_of(value, endpoint).contains(&&Value::String(text(bytes(data, span)))));
        }
        PromptSource::TokenIds(span) => {
            let ids: Value = serde_json::from_slice(bytes(data, span)).unwrap();
            assert!(ids.as_array().unwrap().iter().all(Value::is_u64));
            assert!(prompts_of(value, endpoint).contains(&&ids));
        }
        PromptSource::Batch(span) => {
            let first: Value = serde_json::from_slice(bytes(data, span)).unwrap();
            assert!(prompts_of(value, endpoint).iter().any(|prompt| prompt[0] == first));
        }
    }
    if endpoint == Endpoint::Completions
        && value["prompt"].is_string()
        && value["cache_salt"].is_null()
    {
        assert!(matches!(request.prompt, PromptSource::Text(_)));
    }
}

/// Keys that the endpoint's prompt may stand under.
fn prompts_of(value: &Value, endpoint: Endpoint) -> Vec<&Value> {
    match endpoint {
        Endpoint::Generate => vec![&value["input_ids"], &value["text"]],
        _ => vec![&value["prompt"]],
    }
}

fn plain_messages(data: &[u8], value: &Value, endpoint: Endpoint, request: &ApiRequest) {
    let mut wanted = Vec::new();
    let (preamble, list) = match endpoint {
        Endpoint::Responses => (&value["instructions"], &value["input"]),
        Endpoint::Messages => (&value["system"], &value["messages"]),
        _ => (&Value::Null, &value["messages"]),
    };
    if let Some(preamble) = preamble.as_str().filter(|preamble| !preamble.is_empty()) {
        wanted.push(("system", preamble));
    }
    match list {
        Value::String(input) => wanted.push(("user", input)),
        Value::Array(list) => wanted.extend(list.iter().map(|message| {
            (message["role"].as_str().unwrap(), message["content"].as_str().unwrap())
        })),
        _ => panic!("no messages in {list}"),
    }
    assert_eq!(wanted.len(), request.messages.len());
    for ((role, content), message) in wanted.into_iter().zip(&request.messages) {
        let raw = bytes(data, &message.content);
        let ours = match message.role {
            ChatRole::System => "system",
            ChatRole::User => "user",
            ChatRole::Assistant => "assistant",
        };
        assert_eq!((ours, text(raw).as_str()), (role, content));
        assert_eq!(message.escaped, raw.contains(&b'\\'));
    }
}

fn bytes<'a>(data: &'a [u8], span: &std::ops::Range<u32>) -> &'a [u8] {
    &data[usize::try_from(span.start).unwrap()..usize::try_from(span.end).unwrap()]
}

fn text(escaped: &[u8]) -> String {
    let mut out = Vec::new();
    unescape_into(escaped, &mut out);
    String::from_utf8(out).unwrap()
}
