//! Any bytes as the body of a request that is split, and as a prefill worker's answer. Must
//! hold: `serde_json` reads in both legs' bodies what it reads in the client's, byte for byte and
//! in order, but for the members of the flow; an answer says the same wherever it is cut into
//! pieces, and what it has for decode is the object that `serde_json` finds in it.

use forebay_base::ShardIndex;
use forebay_disagg::{
    AnswerForm, KvTransferError, KvTransferId, LegBodies, PrefillAnswer, PrefillHandover, RankPin,
    RoomShape, Rooms, SplitRequest, decode_body, inspect, prefill_body, transfer_mode,
};
use forebay_fleet::worker::{Bootstrap, KvTransfer, MooncakeSource, PushSource};
use forebay_prompt::parse::{ApiRequest, Endpoint, scan};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

const ENDPOINTS: [Endpoint; 5] = [
    Endpoint::ChatCompletions,
    Endpoint::Completions,
    Endpoint::Responses,
    Endpoint::Messages,
    Endpoint::Generate,
];
const HANDED: &[u8] = br#"{"remote_block_ids": [[1,2]],"remote_host":"a\u0062"}"#;

/// Members of an object as they stand: names read, values raw, repeated ones kept.
struct Members(Vec<(String, String)>);

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Members;

            fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                out.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut members = Vec::new();
                while let Some((name, value)) = map.next_entry::<String, Box<RawValue>>()? {
                    members.push((name, value.get().to_owned()));
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

/// Panics when a rule above is broken.
pub(crate) fn check(data: &[u8]) {
    let mut request = ApiRequest::default();
    for endpoint in ENDPOINTS {
        let inspected = inspect(data, endpoint);
        if scan(data, endpoint, &mut request).is_ok() {
            assert!(inspected.is_ok(), "the scan takes what the inspection refuses");
        }
        let Ok(wanted) = inspected else { continue };
        let members: Members = serde_json::from_slice(data).unwrap();
        for (kv_transfer, dp_size) in kv_transfers() {
            if wanted.can_split(&kv_transfer) {
                bodies(data, endpoint, &wanted, &members.0, (&kv_transfer, dp_size));
            }
        }
    }
    for form in [AnswerForm::Json, AnswerForm::Events] {
        for (kv_transfer, _) in kv_transfers() {
            answer(data, &kv_transfer, form);
        }
    }
}

fn kv_transfers() -> [(KvTransfer, u32); 5] {
    let bootstrap = |host: &str, port, dp_size| {
        KvTransfer::Bootstrap(Bootstrap { host: host.into(), port, dp_size, follows_room: true })
    };
    let push = PushSource {
        engine_id: "e\"1".into(),
        host: "[::1]".into(),
        port: 5_600,
        tp_size: 2,
        pp_size: 1,
    };
    let mooncake = MooncakeSource { bootstrap_addr: "http://p:8998".into(), engine_id: "e".into() };
    [
        (bootstrap("::1", Some(8_998), 1), 1),
        (bootstrap("p\n", None, 4), 4),
        (KvTransfer::TwoPhase, 1),
        (KvTransfer::Push(push), 2),
        (KvTransfer::Mooncake(mooncake), 1),
    ]
}

fn bodies(
    data: &[u8],
    endpoint: Endpoint,
    wanted: &SplitRequest,
    members: &[(String, String)],
    (kv_transfer, dp_size): (&KvTransfer, u32),
) {
    let pin = RankPin { dp_rank: dp_size - 1, dp_size, in_body: dp_size > 1 };
    let legs = LegBodies {
        body: data,
        wanted,
        kv_transfer,
        prefill: pin,
        decode: RankPin { dp_rank: 0, dp_size: 1, in_body: false },
        rooms: Rooms::new(ShardIndex(0), 5).draw(dp_size, dp_size - 1, wanted.rooms()),
        id: KvTransferId::new(7),
    };
    let mut prefill = b"x".to_vec();
    let mut decode = Vec::new();
    prefill_body(&legs, &mut prefill);
    decode_body(&legs, Some(HANDED), &mut decode);
    assert_eq!(prefill.remove(0), b'x', "it is appended");
    for (leg, body) in [("prefill", &prefill), ("decode", &decode)] {
        let sent: Members = serde_json::from_slice(body)
            .unwrap_or_else(|error| panic!("{leg}: {error}: {}", String::from_utf8_lossy(body)));
        let wanted = expected(endpoint, members, &legs, leg == "prefill");
        assert_eq!(sent.0, wanted, "{leg} of {endpoint:?} {kv_transfer:?}");
        let tail =
            |body: &[u8]| body[body.iter().rposition(|byte| *byte == b'}').unwrap()..].to_vec();
        assert_eq!(tail(body), tail(data), "what stands behind the object is kept");
        // What was inspected once is inspected again by the next router.
        assert!(inspect(body, endpoint).is_ok());
    }
}

/// What a leg is to get, put together from the members that `serde_json` reads.
fn expected(
    endpoint: Endpoint,
    members: &[(String, String)],
    legs: &LegBodies<'_>,
    is_prefill: bool,
) -> Vec<(String, String)> {
    match legs.kv_transfer {
        KvTransfer::Bootstrap(bootstrap) => {
            let mut out = sglang_kept(endpoint, members);
            out.extend(sglang_added(endpoint, members, legs, bootstrap, is_prefill));
            out
        }
        _ => vllm(endpoint, members, legs, is_prefill),
    }
}

fn last<'a>(members: &'a [(String, String)], name: &str) -> Option<&'a str> {
    members.iter().rev().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
}

fn rid(endpoint: Endpoint, members: &[(String, String)]) -> Option<(&'static str, &'static str)> {
    let (name, value) = match endpoint {
        Endpoint::Responses => ("request_id", "\"resp_fb-0000000000000007\""),
        Endpoint::Messages => return None,
        _ => ("rid", "\"fb-0000000000000007\""),
    };
    last(members, name).is_none_or(|value| value == "null").then_some((name, value))
}

fn sglang_kept(endpoint: Endpoint, members: &[(String, String)]) -> Vec<(String, String)> {
    const PUT: [&str; 6] = [
        "bootstrap_host",
        "bootstrap_port",
        "bootstrap_room",
        "routed_dp_rank",
        "data_parallel_rank",
        "disagg_prefill_dp_rank",
    ];
    let rid = rid(endpoint, members).map(|(name, _)| name);
    let kept =
        |(name, _): &&(String, String)| !PUT.contains(&name.as_str()) && rid != Some(name.as_str());
    members.iter().filter(kept).cloned().collect()
}

fn sglang_added(
    endpoint: Endpoint,
    members: &[(String, String)],
    legs: &LegBodies<'_>,
    bootstrap: &Bootstrap,
    is_prefill: bool,
) -> Vec<(String, String)> {
    let rooms: Vec<u64> = legs.rooms.iter().collect();
    let each = |value: &dyn Fn(u64) -> String| match legs.rooms.shape() {
        RoomShape::Range => value(rooms[0]),
        RoomShape::List => {
            format!("[{}]", rooms.iter().map(|room| value(*room)).collect::<Vec<_>>().join(","))
        }
    };
    let host = match &*bootstrap.host {
        "::1" => "\"[::1]\"",
        _ => "\"p\\u000a\"",
    };
    let port = bootstrap.port.map_or("null".to_owned(), |port| port.to_string());
    let mut out = vec![
        ("bootstrap_host".to_owned(), each(&|_| host.to_owned())),
        ("bootstrap_port".to_owned(), each(&|_| port.clone())),
        ("bootstrap_room".to_owned(), each(&|room| room.to_string())),
    ];
    out.extend(rid(endpoint, members).map(|(name, value)| (name.to_owned(), value.to_owned())));
    if bootstrap.dp_size > 1 {
        out.push(("disagg_prefill_dp_rank".to_owned(), "3".to_owned()));
        if is_prefill {
            out.push(("routed_dp_rank".to_owned(), "3".to_owned()));
        }
    }
    out
}

fn vllm(
    endpoint: Endpoint,
    members: &[(String, String)],
    legs: &LegBodies<'_>,
    is_prefill: bool,
) -> Vec<(String, String)> {
    let is_responses = endpoint == Endpoint::Responses;
    let limits: &[&str] = if is_responses {
        &["max_output_tokens"]
    } else {
        &["max_tokens", "max_completion_tokens"]
    };
    let has_least = matches!(endpoint, Endpoint::ChatCompletions | Endpoint::Completions);
    let mut out = Vec::new();
    for (name, value) in members {
        let value = match name.as_str() {
            "kv_transfer_params" => continue,
            "min_tokens" if is_prefill && has_least => "1",
            "stream_options" | "min_tokens" if is_prefill => continue,
            "stream" if is_prefill => "false",
            name if is_prefill && limits.contains(&name) => "1",
            _ => value,
        };
        out.push((name.clone(), value.to_owned()));
    }
    if is_prefill && last(members, limits[0]).is_none() {
        out.push((limits[0].to_owned(), "1".to_owned()));
    }
    if is_prefill && has_least && last(members, "min_tokens").is_none() {
        out.push(("min_tokens".to_owned(), "1".to_owned()));
    }
    let params = match (legs.kv_transfer, is_prefill) {
        (KvTransfer::TwoPhase, false) => String::from_utf8(HANDED.to_vec()).unwrap(),
        (KvTransfer::TwoPhase | KvTransfer::Push(_), true) => {
            r#"{"do_remote_decode":true,"do_remote_prefill":false}"#.to_owned()
        }
        (KvTransfer::Push(_), false) => concat!(
            r#"{"do_remote_prefill":true,"do_remote_decode":false,"remote_engine_id":"e\"1","#,
            r#""remote_host":"::1","remote_port":5600,"tp_size":2,"pp_size":1,"#,
            r#""remote_request_id":"fb-0000000000000007"}"#
        )
        .to_owned(),
        (_, true) => concat!(
            r#"{"do_remote_decode":true,"do_remote_prefill":false,"#,
            r#""transfer_id":"xfer-0000000000000007"}"#
        )
        .to_owned(),
        (_, false) => concat!(
            r#"{"do_remote_decode":false,"do_remote_prefill":true,"#,
            r#""remote_bootstrap_addr":"http://p:8998","remote_engine_id":"e","#,
            r#""transfer_id":"xfer-0000000000000007"}"#
        )
        .to_owned(),
    };
    out.push(("kv_transfer_params".to_owned(), params));
    out
}

/// An answer in pieces; the first error counts.
pub(crate) fn answered(
    pieces: &[&[u8]],
    kv_transfer: &KvTransfer,
    form: AnswerForm,
) -> Result<PrefillHandover, KvTransferError> {
    let mut answer = PrefillAnswer::new(kv_transfer, form);
    for piece in pieces {
        answer.feed(piece)?;
    }
    answer.finish()
}

fn answer(data: &[u8], kv_transfer: &KvTransfer, form: AnswerForm) {
    let whole = answered(&[data], kv_transfer, form);
    let bytes: Vec<&[u8]> = data.chunks(1).collect();
    assert_eq!(answered(&bytes, kv_transfer, form), whole, "byte by byte");
    for at in [data.len() / 3, data.len() / 2, data.len().saturating_sub(1)] {
        let (head, tail) = data.split_at(at);
        assert_eq!(answered(&[head, b"", tail], kv_transfer, form), whole, "cut at {at}");
    }
    let is_awaited = *kv_transfer == KvTransfer::TwoPhase;
    match &whole {
        Ok(PrefillHandover::Nothing) => assert!(!is_awaited || says_it_is_over(data)),
        Ok(PrefillHandover::Params(params)) => {
            assert!(is_awaited);
            assert!(data.windows(params.len()).any(|window| window == params), "as it came");
            let mode = transfer_mode(params);
            if let Ok(value) = serde_json::from_slice::<Value>(params) {
                assert!(value.is_object());
                let said = value.get("transfer_mode").and_then(Value::as_str);
                assert!(mode.is_none() || said.is_some(), "a mode that is not there");
                if form == AnswerForm::Json
                    && let Ok(body) = serde_json::from_slice::<Value>(data)
                    && body.get("kv_transfer_params").is_some()
                {
                    assert_eq!(body["kv_transfer_params"], value);
                }
            }
        }
        Err(KvTransferError::Engine { message, .. }) => assert!(message.chars().count() <= 512),
        Err(KvTransferError::TooLong) => panic!("{} bytes are not too long", data.len()),
        Err(_) => assert!(is_awaited, "what nobody waits for is not missed"),
    }
}

fn says_it_is_over(data: &[u8]) -> bool {
    let words = ["stop", "tool_calls", "end_turn", "stop_sequence", "tool_use", "completed"];
    let text = String::from_utf8_lossy(data);
    words.iter().any(|word| text.contains(&format!("\"{word}\"")))
}
