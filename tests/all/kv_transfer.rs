//! Prefill and decode apart: for each flow the client's bytes in and both legs' bytes out, byte for
//! byte, and the bodies of the same kind that engines took when their protocol was recorded. Any
//! other body is held against `serde_json`.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test that fails must stop"
)]

use crate::fuzz_seeds;
use forebay::base::ShardIndex;
use forebay::disagg::{
    AnswerForm, KvTransferId, LegBodies, Obstacle, PrefillAnswer, PrefillHandover, RankPin, Rooms,
    decode_body, inspect, prefill_body,
};
use forebay::parse::Endpoint;
use forebay::worker::{Bootstrap, KvTransfer, MooncakeSource, PushSource};
use proptest::prelude::*;
use serde_json::Value;
use std::path::{Path, PathBuf};

const ALONE: RankPin = RankPin { dp_rank: 0, dp_size: 1, in_body: false };
const BEHIND_ONE_PORT: RankPin = RankPin { dp_rank: 1, dp_size: 2, in_body: true };

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/kv_transfer").join(name)
}

fn bytes(name: &str) -> Vec<u8> {
    std::fs::read(file(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn sglang(dp_size: u32) -> KvTransfer {
    let host = "127.0.0.1".into();
    KvTransfer::Bootstrap(Bootstrap { host, port: Some(8_998), dp_size, follows_room: true })
}

fn push() -> KvTransfer {
    KvTransfer::Push(PushSource {
        engine_id: "prefill-0".into(),
        host: "127.0.0.1".into(),
        port: 5_600,
        tp_size: 1,
        pp_size: 1,
    })
}

fn mooncake() -> KvTransfer {
    KvTransfer::Mooncake(MooncakeSource {
        bootstrap_addr: "http://127.0.0.1:8998".into(),
        engine_id: "prefill-0".into(),
    })
}

/// Both legs' bodies. Rooms are those of the first slot: 1024 and up.
fn legs(
    body: &[u8],
    endpoint: Endpoint,
    kv_transfer: &KvTransfer,
    (prefill, decode): (RankPin, RankPin),
    handed: Option<&[u8]>,
) -> (Vec<u8>, Vec<u8>) {
    let wanted = inspect(body, endpoint).unwrap();
    assert_eq!(wanted.obstacle(kv_transfer), None);
    let mut rooms = Rooms::new(ShardIndex(0), 1);
    let legs = LegBodies {
        body,
        wanted: &wanted,
        kv_transfer,
        prefill,
        decode,
        rooms: rooms.draw(prefill.dp_size, prefill.dp_rank, wanted.rooms()),
        id: KvTransferId::new(0xf00d),
    };
    let mut first = Vec::new();
    let mut second = Vec::new();
    prefill_body(&legs, &mut first);
    decode_body(&legs, handed, &mut second);
    (first, second)
}

/// `NAME.request` becomes `NAME.prefill` and `NAME.decode`; the latter is missing where both are
/// the same.
fn golden(name: &str, endpoint: Endpoint, kv_transfer: &KvTransfer, pins: (RankPin, RankPin)) {
    let handed = bytes("vllm-0.32.answer");
    let params = handed_over(&handed);
    let body = bytes(&format!("{name}.request"));
    let (prefill, decode) = legs(&body, endpoint, kv_transfer, pins, Some(&params));
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    assert_eq!(text(&prefill), text(&bytes(&format!("{name}.prefill"))), "{name}");
    let wanted = file(&format!("{name}.decode"));
    let wanted = if wanted.exists() { std::fs::read(wanted).unwrap() } else { prefill };
    assert_eq!(text(&decode), text(&wanted), "{name}");
}

fn handed_over(answer: &[u8]) -> Vec<u8> {
    let mut watch = PrefillAnswer::new(&KvTransfer::TwoPhase, AnswerForm::Json);
    watch.feed(answer).unwrap();
    match watch.finish().unwrap() {
        PrefillHandover::Params(params) => params,
        PrefillHandover::Nothing => panic!("nothing is handed over"),
    }
}

#[test]
fn sglang_bodies_byte_for_byte() {
    golden("sglang.chat", Endpoint::ChatCompletions, &sglang(1), (ALONE, ALONE));
    let both = (BEHIND_ONE_PORT, BEHIND_ONE_PORT);
    golden("sglang.chat_ranks", Endpoint::ChatCompletions, &sglang(2), both);
    golden("sglang.chat_rid", Endpoint::ChatCompletions, &sglang(2), (BEHIND_ONE_PORT, ALONE));
    golden("sglang.completions_list", Endpoint::Completions, &sglang(1), (ALONE, ALONE));
    golden("sglang.generate_ids", Endpoint::Generate, &sglang(2), (BEHIND_ONE_PORT, ALONE));
    golden("sglang.generate_list", Endpoint::Generate, &sglang(2), (BEHIND_ONE_PORT, ALONE));
    golden("sglang.messages", Endpoint::Messages, &sglang(1), (ALONE, ALONE));
    golden("sglang.responses", Endpoint::Responses, &sglang(1), (ALONE, ALONE));
}

#[test]
fn vllm_bodies_byte_for_byte() {
    let alone = (ALONE, ALONE);
    golden("vllm.two_phase.chat", Endpoint::ChatCompletions, &KvTransfer::TwoPhase, alone);
    golden("vllm.two_phase.completions", Endpoint::Completions, &KvTransfer::TwoPhase, alone);
    golden("vllm.two_phase.messages", Endpoint::Messages, &KvTransfer::TwoPhase, alone);
    golden("vllm.two_phase.responses", Endpoint::Responses, &KvTransfer::TwoPhase, alone);
    golden("vllm.push.completions", Endpoint::Completions, &push(), alone);
    golden("vllm.mooncake.chat", Endpoint::ChatCompletions, &mooncake(), alone);
}

/// The bodies that SGLang 0.5.23 took (its Rust server, recorded on 2026-11-21) are those that we
/// make of them without the bootstrap members, but for the room's number and our `rid`.
#[test]
fn sglang_takes_what_we_send() {
    for (name, endpoint) in [
        ("chat_bootstrap", Endpoint::ChatCompletions),
        ("compl_list_bootstrap", Endpoint::Completions),
        ("gen_batch_bootstrap_list", Endpoint::Generate),
        ("gen_room_63bit", Endpoint::Generate),
    ] {
        let recorded: Value =
            serde_json::from_slice(&bytes(&format!("sglang-0.5.23.{name}.body"))).unwrap();
        let mut plain = recorded.clone();
        for key in ["bootstrap_host", "bootstrap_port", "bootstrap_room"] {
            plain.as_object_mut().unwrap().remove(key);
        }
        let one = |key: &str| match &recorded[key] {
            Value::Array(list) => list[0].clone(),
            one => one.clone(),
        };
        let kv_transfer = KvTransfer::Bootstrap(Bootstrap {
            host: one("bootstrap_host").as_str().unwrap().into(),
            port: one("bootstrap_port").as_u64().map(|port| u16::try_from(port).unwrap()),
            dp_size: 1,
            follows_room: true,
        });
        let (prefill, decode) =
            legs(plain.to_string().as_bytes(), endpoint, &kv_transfer, (ALONE, ALONE), None);
        assert_eq!(prefill, decode);
        let mut sent: Value = serde_json::from_slice(&prefill).unwrap();
        assert_eq!(sent.as_object_mut().unwrap().remove("rid").unwrap(), "fb-000000000000f00d");
        assert_eq!(same_rooms(&sent), same_rooms(&recorded), "{name}");
    }
}

/// Rooms by their distance from the first: their numbers are drawn.
fn same_rooms(body: &Value) -> Value {
    let mut body = body.clone();
    body["bootstrap_room"] = match &body["bootstrap_room"] {
        Value::Array(rooms) => rooms.len().into(),
        room => room.is_u64().into(),
    };
    body
}

/// What vLLM's recorded prefill body had, ours has (0.32, `chat_kv_params_no_connector`).
#[test]
fn vllm_takes_what_we_send() {
    let recorded: Value = serde_json::from_slice(&bytes("vllm-0.32.chat_kv_params.body")).unwrap();
    let mut plain = recorded.clone();
    plain.as_object_mut().unwrap().remove("kv_transfer_params");
    plain["max_tokens"] = 40.into();
    let body = plain.to_string();
    let (prefill, decode) = legs(
        body.as_bytes(),
        Endpoint::ChatCompletions,
        &KvTransfer::TwoPhase,
        (ALONE, ALONE),
        None,
    );
    let mut prefill: Value = serde_json::from_slice(&prefill).unwrap();
    assert_eq!(prefill.as_object_mut().unwrap().remove("min_tokens"), Some(1.into()));
    assert_eq!(prefill, recorded);
    assert_eq!(decode, body.as_bytes(), "with nothing handed over decode computes it all");
}

#[test]
fn what_cannot_be_split_says_why() {
    let obstacle = |body: &str, endpoint, kv_transfer: &KvTransfer| {
        inspect(body.as_bytes(), endpoint).unwrap().obstacle(kv_transfer)
    };
    let chat = Endpoint::ChatCompletions;
    let two = Some(Obstacle::Items { items: 2, items_max: 1 });
    for (body, endpoint, wanted) in [
        (r#"{"n":2}"#, chat, two),
        (r#"{"n":"2"}"#, chat, two),
        (r#"{"n":2.0}"#, chat, two),
        (r#"{"\u006e":2}"#, chat, two),
        (r#"{"n":2,"n":1}"#, chat, None),
        (r#"{"n":null}"#, chat, None),
        (r#"{"n":1.5}"#, chat, Some(Obstacle::SamplesUnclear)),
        (r#"{"n":true}"#, chat, Some(Obstacle::SamplesUnclear)),
        (r#"{"prompt":["a","b"]}"#, Endpoint::Completions, two),
        (r#"{"prompt":["a"]}"#, Endpoint::Completions, None),
        (r#"{"prompt":[1,2,3]}"#, Endpoint::Completions, None),
        (r#"{"prompt":[[1,2],[3]]}"#, Endpoint::Completions, two),
        (r#"{"prompt":"a","echo":true}"#, Endpoint::Completions, Some(Obstacle::ScoresPrompt)),
        (r#"{"prompt_logprobs":0}"#, chat, Some(Obstacle::ScoresPrompt)),
        (r#"{"use_beam_search":true}"#, chat, Some(Obstacle::BeamSearch)),
        (r#"{"prompt_embeds":"AA=="}"#, Endpoint::Completions, Some(Obstacle::Embeddings)),
        (r#"{"kv_transfer_params":{"prompt_token_ids":[1]}}"#, chat, Some(Obstacle::OwnTransfer)),
        (r#"{"kv_transfer_params":null,"echo":false}"#, chat, None),
        (r#"{"previous_response_id":"r"}"#, Endpoint::Responses, Some(Obstacle::Continues)),
        (r#"{"background":true}"#, Endpoint::Responses, Some(Obstacle::Continues)),
        (r#"{"tools":[{"type":"function","name":"f"}]}"#, Endpoint::Responses, None),
        (r#"{"tools":[{"type":"mcp"}]}"#, Endpoint::Responses, Some(Obstacle::OwnTools)),
        (r#"{"text":"a"}"#, Endpoint::Generate, Some(Obstacle::Endpoint)),
        (r#"{"input":"a"}"#, Endpoint::Embeddings, Some(Obstacle::Endpoint)),
        (r#"{"prompt":"a"}"#, Endpoint::Tokenize, Some(Obstacle::Endpoint)),
    ] {
        assert_eq!(obstacle(body, endpoint, &KvTransfer::TwoPhase), wanted, "{body}");
    }
    assert_eq!(obstacle("{}", Endpoint::Responses, &push()), Some(Obstacle::Endpoint));
    assert_eq!(obstacle("{}", Endpoint::Responses, &mooncake()), None);
    let many = |items: usize| format!(r#"{{"text":[{}]}}"#, vec!["\"a\""; items].join(","));
    assert_eq!(obstacle(&many(4_096), Endpoint::Generate, &sglang(1)), None);
    let beyond = Obstacle::Items { items: 4_097, items_max: 4_096 };
    assert_eq!(obstacle(&many(4_097), Endpoint::Generate, &sglang(1)), Some(beyond));
    let text = beyond.to_string();
    assert!(text.contains("4097 answers at once, of which 4096 can"), "{text}");
    assert_eq!(obstacle(r#"{"n":2}"#, chat, &sglang(1)), Some(Obstacle::Samples));
    let sampled = r#"{"text":["a"],"sampling_params":[{"n":2}]}"#;
    assert_eq!(obstacle(sampled, Endpoint::Generate, &sglang(1)), Some(Obstacle::Samples));
    let repeated = format!("{{{}}}", vec!["\"stream\":true"; 65].join(","));
    assert_eq!(obstacle(&repeated, chat, &KvTransfer::TwoPhase), Some(Obstacle::Overfull));
}

/// Prompts and samples are counted as SGLang's `GenerateReqInput` does.
#[test]
fn rooms_are_as_many_as_sglang_makes_requests() {
    use forebay::disagg::RoomShape::{List, Range};
    for (body, endpoint, wanted) in [
        (r#"{"text":"a"}"#, Endpoint::Generate, (1, Range)),
        (r#"{"text":["a"]}"#, Endpoint::Generate, (1, List)),
        (r#"{"text":["a","b"],"input_ids":[1]}"#, Endpoint::Generate, (2, List)),
        (r#"{"text":null,"input_ids":[[1,2],[3],[4]]}"#, Endpoint::Generate, (3, List)),
        (r#"{"input_ids":[1,2,3]}"#, Endpoint::Generate, (1, Range)),
        (r#"{"input_ids":[]}"#, Endpoint::Generate, (1, Range)),
        (r#"{"input_embeds":[[0.5,1e-3],[1,2]]}"#, Endpoint::Generate, (1, Range)),
        (r#"{"input_embeds":[[[0.5]],[[1]]]}"#, Endpoint::Generate, (2, List)),
        (r#"{"text":"a","sampling_params":{"n":3}}"#, Endpoint::Generate, (3, Range)),
        (r#"{"text":["a","b"],"sampling_params":{"n":3}}"#, Endpoint::Generate, (6, Range)),
        (
            r#"{"text":["a","b"],"sampling_params":[{"n":2},{"n":2}]}"#,
            Endpoint::Generate,
            (4, Range),
        ),
        (r#"{"text":"a","n":5}"#, Endpoint::Generate, (1, Range)),
        (r#"{"messages":[{"role":"user"}],"n":4}"#, Endpoint::ChatCompletions, (4, Range)),
        (r#"{"prompt":["a","b"]}"#, Endpoint::Completions, (2, List)),
        (r#"{"prompt":[[ 1 , 2 ] , [3]],"n":1}"#, Endpoint::Completions, (2, List)),
    ] {
        let rooms = inspect(body.as_bytes(), endpoint).unwrap().rooms();
        assert_eq!((rooms.count, rooms.shape), wanted, "{body}");
    }
}

#[test]
fn aborts_name_one_request_and_no_other() {
    let abort = |body: &str, endpoint| {
        let wanted = inspect(body.as_bytes(), endpoint).unwrap();
        let mut out = Vec::new();
        let some = wanted.push_abort(body.as_bytes(), &KvTransferId::new(0xab), &mut out);
        assert_eq!(some, !out.is_empty());
        String::from_utf8(out).unwrap()
    };
    let ours = r#"{"rid":"fb-00000000000000ab"}"#;
    assert_eq!(abort("{}", Endpoint::Generate), ours);
    assert_eq!(abort(r#"{"rid":null}"#, Endpoint::ChatCompletions), ours);
    assert_eq!(
        abort(r#"{"rid":"theirs","rid":null}"#, Endpoint::Generate),
        ours,
        "the last counts"
    );
    // SGLang ends all that begin with it: "f" would be everybody's, also in escapes, and one
    // client's "..-1" is the beginning of its "..-12".
    for rid in [
        r#""f""#,
        r#""\u0066\u0062\u002d\u0030\u0061""#,
        r#""session-0123456789abcdef-00000-1""#,
        r#"["a","b"]"#,
        "7",
    ] {
        for endpoint in [Endpoint::Generate, Endpoint::ChatCompletions, Endpoint::Completions] {
            assert_eq!(abort(&format!(r#"{{"rid":{rid}}}"#), endpoint), "");
        }
        let named = format!(r#"{{"input":"a","request_id":{rid}}}"#);
        assert_eq!(abort(&named, Endpoint::Responses), "");
    }
    assert_eq!(abort(r#"{"text":["a"]}"#, Endpoint::Generate), "", "batches have other names");
    assert_eq!(abort(r#"{"n":2}"#, Endpoint::ChatCompletions), "");
    assert_eq!(abort("{}", Endpoint::Messages), "");
    assert_eq!(abort("{}", Endpoint::Responses), r#"{"rid":"resp_fb-00000000000000ab"}"#);
}

/// Bodies made of the keys that matter, in any order, spelling and spacing.
fn any_body() -> impl Strategy<Value = String> {
    let keys = [
        "max_tokens",
        "max_completion_tokens",
        "max_output_tokens",
        "min_tokens",
        "stream",
        "stream_options",
        "kv_transfer_params",
        "bootstrap_host",
        "bootstrap_room",
        "rid",
        "request_id",
        "routed_dp_rank",
        "data_parallel_rank",
        "disagg_prefill_dp_rank",
        "messages",
        "prompt",
        "text",
        "input_ids",
        "n",
        "sampling_params",
        "other",
        "",
        "max_tokens ",
    ];
    let values = [
        "null",
        "7",
        "1e400",
        "-0.0",
        "99999999999999999999999999",
        "true",
        "false",
        "\"a\\\"}\"",
        "\"\"",
        "[]",
        "{}",
        "[1,2]",
        "[[1],[2, 3]]",
        "[\"a\",\"b\"]",
        "{\"n\":2}",
        "\"\\ud83d\\ude00\"",
        "{\"a\":[{\"stream\":1}]}",
        "[{\"role\":\"user\",\"content\":\"hé\"}]",
    ];
    let blanks = proptest::sample::select(vec!["", " ", "\n\t", "\r\n  "]);
    let member = (
        proptest::sample::select(keys.to_vec()),
        proptest::sample::select(values.to_vec()),
        blanks.clone(),
        0_usize..40,
    );
    let member = member.prop_map(|(key, value, blank, escaped)| {
        let spelled: String = key
            .char_indices()
            .map(
                |(at, c)| {
                    if at == escaped { format!("\\u{:04x}", u32::from(c)) } else { c.to_string() }
                },
            )
            .collect();
        format!("{blank}\"{spelled}\"{blank}:{blank}{value}{blank}")
    });
    (proptest::collection::vec(member, 0..9), blanks)
        .prop_map(|(members, blank)| format!("{blank}{{{}{blank}}}{blank}", members.join(",")))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_024, ..ProptestConfig::default() })]

    #[test]
    fn only_the_members_of_the_flow_are_changed(body in any_body()) {
        fuzz_seeds::kv_transfer::check(body.as_bytes());
    }
}
