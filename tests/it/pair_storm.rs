//! Many pairs at once on four shards, engines that break at random, and clients that leave:
//! everybody who stays is answered, nobody gets a success that is none, and nothing is left behind.

use crate::rig::pairs::{ask, idle, pair_config, ready};
use crate::rig::stub::{STREAM_HEAD, Step, Stub, answer, chunk, reply_bytes, stream_of};
use crate::rig::stub_pages::Pages;
use crate::rig::{metric, until};
use forebay::server::ServerHandle;
use std::time::Duration;

const TOKENS: [&str; 2] = ["data: {\"decode\":1}\n\n", "data: [DONE]\n\n"];
const CLIENTS: u64 = 12;
const REQUESTS: usize = 25;
/// Longest wait for a silent leg: below the time for which some of them are silent.
const SILENCE: &str = "250ms";

/// What becomes of one leg.
fn fate(random: &mut fastrand::Rng, whole: &[Step]) -> Vec<Step> {
    let pause = Step::Pause(Duration::from_millis(random.u64(0..8)));
    let half = vec![
        Step::Send(STREAM_HEAD.to_vec()),
        Step::Send(chunk(TOKENS[0].as_bytes())),
        pause.clone(),
        Step::Close,
    ];
    match random.u32(..20) {
        0 => vec![pause, Step::Close],
        1 => vec![Step::Send(b"HTTP/1.1 200".to_vec()), pause, Step::Close],
        2 => vec![Step::Send(STREAM_HEAD.to_vec()), pause, Step::Close],
        3 => half,
        4 => vec![pause, Step::Send(reply_bytes(500, "", b"{}"))],
        5 => vec![pause, Step::Send(reply_bytes(503, "", b"{}"))],
        6 => vec![Step::Pause(Duration::from_millis(400)), Step::Close],
        _ => [vec![pause], whole.to_vec()].concat(),
    }
}

/// How many of a client's requests were served, cut, refused; it leaves the others.
fn client(router: &ServerHandle, seed: u64) -> [usize; 3] {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut seen = [0; 3];
    for _ in 0..REQUESTS {
        let body = r#"{"model":"m","prompt":"hi","stream":true}"#;
        let mut client = ask(router, "/v1/completions", body);
        if random.u32(..5) == 0 {
            std::thread::sleep(Duration::from_millis(random.u64(0..10)));
            continue;
        }
        let reply = client.reply();
        let text = reply.text();
        match (reply.status, reply.complete) {
            (200, true) => {
                assert_eq!(text, TOKENS.concat());
                seen[0] += 1;
            }
            (200, false) => {
                assert!(text.starts_with(TOKENS[0]) && text.contains("\"error\""), "{text}");
                seen[1] += 1;
            }
            (429 | 502 | 503 | 504, true) => {
                assert!(reply.field("x-forebay-reason").is_some(), "{}{text}", reply.head);
                seen[2] += 1;
            }
            other => panic!("{other:?} {}{text}", reply.head),
        }
    }
    seen
}

fn storm(engine: fn(bool) -> Pages, lines: [&str; 2], done: &[Step]) {
    let many = |prefill| (0..3).map(|_| Stub::start(engine(prefill))).collect::<Vec<_>>();
    let prefill = many(true);
    let decode = many(false);
    let mut workers: Vec<_> = prefill.iter().map(|stub| (stub, lines[0])).collect();
    workers.extend(decode.iter().map(|stub| (stub, lines[1])));
    let rules = format!("fallback = \"reject\"\nprefill_timeout = \"{SILENCE}\"");
    let mut config = pair_config(&workers, &rules);
    config.cores = vec![0, 1, 0, 1];
    config.retry.budget_percent = 100;
    config.timeouts.first_byte = Duration::from_millis(250);
    config.flow.rank_concurrency_max = Some(3);
    let router = ready(config, &workers);
    let mut random = fastrand::Rng::with_seed(7);
    let decoded = [Step::Send(stream_of(&TOKENS))];
    for (stubs, whole) in [(&prefill, done), (&decode, &decoded[..])] {
        for stub in stubs {
            stub.always(whole.to_vec());
            (0..300).for_each(|_| stub.once(fate(&mut random, whole)));
        }
    }
    let seen: Vec<[usize; 3]> = std::thread::scope(|scope| {
        let router = &router;
        let clients: Vec<_> =
            (0..CLIENTS).map(|seed| scope.spawn(move || client(router, seed))).collect();
        clients.into_iter().map(|client| client.join().expect("every client is answered")).collect()
    });
    let [served, cut, refused] =
        [0, 1, 2].map(|kind| seen.iter().map(|client| client[kind]).sum::<usize>());
    assert!(served > 50, "{served} served, {cut} cut, {refused} refused");
    assert!(cut > 0, "some broke in the middle");
    idle(&router);
    until("nobody waits", || metric(&router, "forebay_queue_depth") == 0.0);
    assert_eq!(metric(&router, "forebay_tasks_panicked_total"), 0.0);
}

#[test]
fn of_sglang() {
    let engine = |prefill| Pages::sglang(if prefill { "prefill" } else { "decode" });
    storm(engine, ["", ""], &[Step::Send(stream_of(&["data: {\"prefill\":1}\n\n"]))]);
}

#[test]
fn of_vllm() {
    let done = answer(br#"{"kv_transfer_params":{"do_remote_prefill":true}}"#);
    storm(|_| Pages::vllm(), ["role = \"prefill\"", "role = \"decode\""], &done);
}
