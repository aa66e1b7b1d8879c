//! I5: what an engine has computed is billed, however its request ends, and the usage that the
//! client reads is the usage that is billed. The rows are those of `src/dataplane/story/bill.rs`.

use crate::rig::pairs::{pair_config, ready};
use crate::rig::stub::{Step, Stub, answer as stub_answer};
use crate::rig::stub_pages::Pages;
use crate::rig::token_engine::{
    CHAT, Engine as TokenEngine, TEXT, USAGE, WHOLE, ask, body, events, keeping, uncut,
};
use crate::rig::{
    Client, Reply, Worker, admin, any_port, config, metric, post, router, until, usable,
};
use forebay::config::{Config, TenantConfig, WorkerConfig};
use forebay::engine::{Engine, EngineConfig, EngineText};
use forebay::server::ServerHandle;
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Long enough for some tokens.
const WHILE: Duration = Duration::from_millis(600);
/// Tokens a second of a rank of which nothing is known.
const USUAL: u64 = 50;
const LIMIT: u32 = 1_000_000;

/// All tenants are one, and are counted.
fn counted(mut config: Config) -> Config {
    config.flow.tenants = vec![TenantConfig {
        name: "*".to_owned(),
        tokens_per_minute: LIMIT,
        in_flight_max: 1_000,
        ..TenantConfig::default()
    }];
    config
}

/// The bills of a router, one after the other.
struct Bills<'a> {
    handle: &'a ServerHandle,
    /// Prompt and output so far.
    before: (u64, u64),
}

impl<'a> Bills<'a> {
    fn of(handle: &'a ServerHandle) -> Self {
        Self { handle, before: (0, 0) }
    }

    /// Waits for the end of the last request, and returns what that has cost.
    fn next(&mut self) -> (u64, u64) {
        let page = loop {
            let page = admin(self.handle, "/metrics").text();
            if sum(&page, "forebay_tenant_in_flight", "} ") == 0 {
                break page;
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        let of =
            |kind: &str| sum(&page, "forebay_tenant_tokens_total", &format!("kind=\"{kind}\"}} "));
        let now = (of("prompt"), of("output"));
        let bill = (now.0 - self.before.0, now.1 - self.before.1);
        self.before = now;
        bill
    }
}

/// Sum of the samples of a metric whose line has `label` before the value.
fn sum(page: &str, name: &str, label: &str) -> u64 {
    let lines = page.lines().filter_map(|line| line.strip_prefix(name));
    let values = lines.filter_map(|line| line.split_once(label));
    values.map(|(_, value)| value.parse::<u64>().unwrap()).sum()
}

/// Answers nothing until the router leaves.
fn hold(stream: &mut TcpStream) -> bool {
    let _ = stream.read(&mut [0; 16]);
    false
}

/// Bill of a request that its client leaves after [`WHILE`], and the least and the most that its
/// time is worth, in tokens of one answer at `speed`.
fn left(bills: &mut Bills<'_>, path: &str, body: &str, speed: u64) -> ((u64, u64), [u64; 2]) {
    let mut client = Client::connect(bills.handle.listen);
    let start = Instant::now();
    client.send(&post(path, body.as_bytes()));
    std::thread::sleep(WHILE);
    let least = start.elapsed();
    drop(client);
    let bill = bills.next();
    let tokens = |time: Duration| u64::try_from(time.as_millis()).unwrap() * speed / 1_000;
    // The prompt takes a moment, and so does the way.
    (bill, [tokens(least - WHILE / 6), tokens(start.elapsed())])
}

const HELD_CHAT: &str = r#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#;

#[test]
fn a_client_that_leaves_pays_for_its_time() {
    let worker = Worker::start(|_, stream| hold(stream));
    let handle = router(counted(config(&[&worker])));
    until("the worker is up", || usable(&handle) == 1);
    let mut bills = Bills::of(&handle);
    let chat = |more: &str| HELD_CHAT.replacen('{', &format!("{{{more}"), 1);
    for (path, body, answers) in [
        (CHAT, chat(""), 1),
        (CHAT, chat("\"stream\":true,"), 1),
        (CHAT, chat("\"n\":3,"), 3),
        (TEXT, r#"{"model":"m","prompt":"hi"}"#.to_owned(), 1),
        ("/v1/messages", chat("\"max_tokens\":900,"), 1),
        ("/v1/responses", r#"{"model":"m","input":"hi"}"#.to_owned(), 1),
        ("/generate", r#"{"text":"hi"}"#.to_owned(), 1),
    ] {
        let ((prompt, output), [least, most]) = left(&mut bills, path, &body, USUAL * answers);
        assert!(prompt > 0, "{path}");
        assert!((least..=most).contains(&output), "{path}: {output}, {least} to {most}");
    }
    let ((_, output), _) = left(&mut bills, CHAT, &chat("\"max_tokens\":4,\"n\":2,"), USUAL);
    assert_eq!(output, 8, "no more than was asked for");
    let ((prompt, output), _) = left(&mut bills, "/v1/embeddings", r#"{"input":"hi"}"#, USUAL);
    assert!(prompt > 0 && output == 0, "{output} tokens of a vector");
    let ((prompt, output), _) = left(&mut bills, "/tokenize", r#"{"prompt":"hi"}"#, USUAL);
    assert_eq!((prompt, output), (0, 0), "nothing is computed");
}

/// What a left answer has cost stays taken of the tokens per minute.
#[test]
fn the_bucket_keeps_what_is_billed() {
    const PER_MINUTE: u64 = 3_000;
    let worker = Worker::start(|_, stream| hold(stream));
    let mut config = counted(config(&[&worker]));
    config.flow.tenants[0].tokens_per_minute = 3_000;
    let handle = router(config);
    let start = Instant::now();
    let body = HELD_CHAT.replacen('{', "{\"n\":5,", 1);
    let ((prompt, output), _) = left(&mut Bills::of(&handle), CHAT, &body, USUAL);
    let page = admin(&handle, "/metrics").text();
    let left = sum(&page, "forebay_tenant_tokens_left", "} ");
    let flowed = u64::try_from(start.elapsed().as_millis()).unwrap() * PER_MINUTE / 60_000;
    let most = PER_MINUTE - prompt - output + flowed + 1;
    assert!(output > 100 && left <= most && left + 200 > most, "{left} of {most}");
}

/// Answers `quick` prompts with 100 tokens in half a second, and holds the others.
fn paced() -> Worker {
    Worker::start(|seen, stream| {
        if memchr::memmem::find(&seen.body, b"quick").is_none() {
            return hold(stream);
        }
        std::thread::sleep(Duration::from_millis(500));
        let usage = r#"{"usage":{"prompt_tokens":3,"completion_tokens":100}}"#;
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", usage.len());
        stream.write_all([head.as_bytes(), usage.as_bytes()].concat().as_slice()).is_ok()
    })
}

#[test]
fn answers_before_show_the_speed_of_the_rank() {
    let worker = paced();
    let handle = router(counted(config(&[&worker])));
    let mut bills = Bills::of(&handle);
    let mut client = Client::connect(handle.listen);
    client.send(&post(TEXT, br#"{"model":"m","prompt":"quick","max_tokens":100}"#));
    assert_eq!(client.reply().status, 200);
    assert_eq!(bills.next(), (3, 100));
    let ((_, output), [least, most]) = left(&mut bills, CHAT, HELD_CHAT, 200);
    // The first answer had a way too.
    assert!((least * 3 / 4..=most * 5 / 4).contains(&output), "{output}, {least} to {most}");
}

fn answer(status: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n{body}").into_bytes()
}

/// Bill of a request whose worker does that, after `wait`; and its status.
fn ended(wait: Duration, bytes: Vec<u8>, change: impl Fn(&mut Config)) -> ((u64, u64), Reply) {
    let worker = Worker::start(move |_, stream| {
        std::thread::sleep(wait);
        let _ = stream.write_all(&bytes);
        false
    });
    let mut config = counted(config(&[&worker]));
    change(&mut config);
    let handle = router(config);
    let mut client = Client::connect(handle.listen);
    client.send(&post(CHAT, HELD_CHAT.as_bytes()));
    let reply = client.reply();
    (Bills::of(&handle).next(), reply)
}

#[test]
fn what_no_engine_computed_is_free() {
    let none = Duration::ZERO;
    for status in ["400 Bad Request", "404 Not Found", "429 Busy", "503 Busy", "529 Busy"] {
        for wait in [none, WHILE / 3] {
            let (bill, _) = ended(wait, answer(status, "{}"), |_| {});
            assert_eq!(bill, (0, 0), "{status}");
        }
    }
    let (bill, reply) = ended(none, Vec::new(), |_| {});
    assert_eq!((bill, reply.status), ((0, 0), 502), "closed at once");
    let (bill, reply) = ended(none, answer("500 Failed", "{}"), |_| {});
    assert_eq!((bill, reply.status), ((0, 0), 500), "failed at once");
    let (bill, reply) = ended(none, Vec::new(), |config| {
        config.workers[0].url = "http://127.0.0.1:9".to_owned();
    });
    assert_eq!((bill, reply.status), ((0, 0), 502), "no connection");
    let (bill, _) = ended(none, answer("200 OK", "{}"), |_| {});
    assert!(bill.0 > 0 && bill.1 == 0, "an answer without a token: {bill:?}");
}

#[test]
fn what_an_engine_computed_before_it_failed_is_not() {
    let tokens = u64::try_from(WHILE.as_millis()).unwrap() * USUAL / 1_000;
    let is_right = |output: u64| (tokens * 3 / 4..tokens * 4).contains(&output);
    let (bill, reply) = ended(WHILE, Vec::new(), |_| {});
    assert!(bill.0 > 0 && is_right(bill.1) && reply.status == 502, "closed: {bill:?}");
    let (bill, reply) = ended(WHILE, answer("500 Failed", "{}"), |_| {});
    assert!(bill.0 > 0 && is_right(bill.1) && reply.status == 500, "failed: {bill:?}");
    let (bill, reply) = ended(2 * WHILE, Vec::new(), |config| config.timeouts.first_byte = WHILE);
    assert!(bill.0 > 0 && is_right(bill.1) && reply.status == 504, "late: {bill:?}");
    let (bill, _) = ended(WHILE, answer("200 OK", &"x".repeat(999)), |_| {});
    assert!(bill.0 > 0 && is_right(bill.1), "no usage: {bill:?}");
    let (bill, _) = ended(WHILE, answer("200 OK", "{}"), |_| {});
    assert_eq!(bill.1, 2, "no answer has more tokens than bytes");
}

/// A chat with that many events of text, then nothing.
fn stalled(events: usize) -> Worker {
    Worker::start(move |_, stream| {
        let event = |delta: &str| {
            let event = format!("data: {{\"choices\":[{{\"delta\":{delta}}}]}}\n\n");
            format!("{:x}\r\n{event}\r\n", event.len())
        };
        let all = event("{\"role\":\"assistant\"}") + &event("{\"content\":\"a\"}").repeat(events);
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
                    transfer-encoding: chunked\r\n\r\n";
        let _ = stream.write_all([head, &all].concat().as_bytes());
        hold(stream)
    })
}

#[test]
fn a_stream_without_an_event_costs_its_time_and_one_that_goes_on_its_events() {
    let body = HELD_CHAT.replacen('{', "{\"stream\":true,", 1);
    for events in [0, 200] {
        let worker = stalled(events);
        let handle = router(counted(config(&[&worker])));
        let mut bills = Bills::of(&handle);
        let ((prompt, output), [least, most]) = left(&mut bills, CHAT, &body, USUAL);
        let events = u64::try_from(events).unwrap();
        // A client may ask for what makes tokens without events.
        let range = events + least..=events + most;
        assert!(prompt > 0 && range.contains(&output), "{output} of {events} events");
        let mut config = counted(config(&[&worker]));
        config.timeouts.stream_idle = WHILE;
        let handle = router(config);
        let mut client = Client::connect(handle.listen);
        let start = Instant::now();
        client.send(&post(CHAT, body.as_bytes()));
        assert!(!client.reply().complete);
        let most = u64::try_from(start.elapsed().as_millis()).unwrap() * USUAL / 1_000;
        let (_, output) = Bills::of(&handle).next();
        assert!((events + least..=events + most).contains(&output), "{output}, timed out");
    }
}

#[test]
fn an_answer_elsewhere_is_billed_as_it_is_read() {
    let is_first = AtomicBool::new(true);
    let answers = move |stream: &mut TcpStream| {
        if is_first.swap(false, Ordering::SeqCst) {
            std::thread::sleep(WHILE);
            return false;
        }
        let usage = r#"{"usage":{"prompt_tokens":3,"completion_tokens":5}}"#;
        stream.write_all(&answer("200 OK", usage)).is_ok()
    };
    let answers = std::sync::Arc::new(answers);
    let again = std::sync::Arc::clone(&answers);
    let workers = [
        Worker::start(move |_, stream| answers(stream)),
        Worker::start(move |_, stream| again(stream)),
    ];
    let mut config = counted(config(&[&workers[0], &workers[1]]));
    config.retry.after_send = true;
    config.retry.budget_percent = 100;
    let handle = router(config);
    let mut client = Client::connect(handle.listen);
    client.send(&post(CHAT, HELD_CHAT.as_bytes()));
    assert_eq!(client.reply().status, 200);
    assert_eq!(Bills::of(&handle).next(), (3, 5));
}

/// A request that waits for a rank costs nothing, and one that waits behind a failed attempt costs
/// that.
#[test]
fn a_queue_costs_nothing() {
    let worker = Worker::start(|_, stream| hold(stream));
    let mut config = counted(config(&[&worker]));
    config.workers[0].concurrency_max = Some(1);
    let handle = router(config);
    let mut first = Client::connect(handle.listen);
    first.send(&post(CHAT, HELD_CHAT.as_bytes()));
    worker.next();
    let mut second = Client::connect(handle.listen);
    second.send(&post(CHAT, HELD_CHAT.as_bytes()));
    until("it waits", || metric(&handle, "forebay_queue_depth") > 0.5);
    std::thread::sleep(WHILE / 3);
    drop(second);
    until("it has left", || metric(&handle, "forebay_queue_depth") < 0.5);
    let page = admin(&handle, "/metrics").text();
    assert_eq!(sum(&page, "forebay_tenant_tokens_total", "} "), 0);
    drop(first);
    let (prompt, output) = Bills::of(&handle).next();
    assert!(prompt > 0 && output > 0, "{output}");
}

#[test]
fn a_pair_costs_output_only_behind_its_prefill_leg() {
    for is_vllm in [true, false] {
        let pages = |mode| if is_vllm { Pages::vllm() } else { Pages::sglang(mode) };
        let prefill = Stub::start(pages("prefill"));
        let decode = Stub::start(pages("decode"));
        let workers = if is_vllm {
            [(&prefill, "role = \"prefill\""), (&decode, "role = \"decode\"")]
        } else {
            [(&prefill, ""), (&decode, "")]
        };
        let handle = ready(counted(pair_config(&workers, "")), &workers);
        let mut bills = Bills::of(&handle);
        bills.next();
        for is_prefilled in [false, true] {
            let done = br#"{"kv_transfer_params":{"do_remote_prefill":true}}"#;
            prefill.always(if is_prefilled { stub_answer(done) } else { vec![Step::Word] });
            decode.always(vec![Step::Word]);
            let body = r#"{"model":"m","prompt":"hi"}"#;
            let ((prompt, output), [least, most]) = left(&mut bills, TEXT, body, USUAL);
            let range = if is_prefilled { least..=most } else { 0..=0 };
            assert!(prompt > 0 && range.contains(&output), "{is_vllm} {is_prefilled}: {output}");
        }
    }
}

/// The usage that the client reads last.
fn usage_of(text: &str) -> Option<(u64, u64)> {
    let events = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let values = events.filter_map(|event| serde_json::from_str::<Value>(event).ok());
    let mut usages = values.filter_map(|event| {
        let usage = &event["usage"];
        Some((usage["prompt_tokens"].as_u64()?, usage["completion_tokens"].as_u64()?))
    });
    usages.next_back()
}

/// Wherever the first worker dies: the usage that the client reads is the usage that is billed, and
/// where it reads none, the tokens are.
#[test]
fn a_stream_that_goes_on_is_billed_as_it_is_read() {
    for path in [CHAT, TEXT] {
        for more in ["", USAGE] {
            let body = body(path, more);
            let asked = body.replacen('{', r#"{"return_token_ids":true,"#, 1);
            let all = events(&format!("POST {path} "), asked.as_bytes());
            let framed = |event: &String| event.len() + format!("{:x}", event.len()).len() + 4;
            let end: usize = all.iter().map(framed).sum();
            // Mostly in the last events, where the router ends the stream.
            let tail: usize = all.iter().rev().take(3).map(framed).sum();
            let places = (0..end - tail).step_by(211).chain((end - tail..=end + 5).step_by(7));
            let places: Vec<usize> = places.collect();
            let whole = usage_of(&uncut(path, &body)).unwrap_or((3, 12));
            let first = TokenEngine::start([]);
            let mut config = counted(keeping(&[&first, &TokenEngine::sharing(&first.cuts)]));
            config.retry.budget_percent = 100;
            let handle = router(config);
            let mut bills = Bills::of(&handle);
            for cut in places {
                *first.cuts.lock().unwrap() = [cut, WHOLE].into();
                let reply = ask(&handle, path, &body);
                assert!(reply.complete, "{path} at {cut}: {}", reply.text());
                let bill = bills.next();
                assert_eq!(
                    bill,
                    usage_of(&reply.text()).unwrap_or(whole),
                    "{path} {more} at {cut}"
                );
            }
        }
    }
}

/// The same where no other worker goes on with a stream.
#[test]
fn a_stream_that_is_cut_is_billed_as_it_is_read() {
    for path in [CHAT, TEXT] {
        for continuous in [false, true] {
            let body = body(path, USAGE);
            let plain = events(&format!("POST {path} "), body.as_bytes());
            let mut output = 0;
            let all: Vec<String> = plain
                .iter()
                .map(|event| {
                    let is_text = event.contains("\"content\":\"") || event.contains("\"text\":\"");
                    output += u64::from(is_text);
                    let usage = format!(
                        "{{\"usage\":{{\"prompt_tokens\":3,\"completion_tokens\":{output}}},"
                    );
                    match continuous && !event.contains("[DONE]") && !event.contains("\"usage\":{")
                    {
                        true => event.replacen('{', &usage, 1),
                        false => event.clone(),
                    }
                })
                .collect();
            let text = all.concat();
            let places: Vec<usize> =
                (0..text.len()).step_by(if continuous { 61 } else { 307 }).collect();
            let tail = text.len() - plain.iter().rev().take(2).map(String::len).sum::<usize>();
            let places: Vec<usize> =
                places.into_iter().chain((tail..text.len()).step_by(5)).collect();
            let cuts = std::sync::Mutex::new(places.clone().into_iter());
            let sent = text.clone();
            let worker = Worker::start(move |_, stream| {
                let cut = cuts.lock().unwrap().next().unwrap();
                let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
                            transfer-encoding: chunked\r\n\r\n";
                let size = format!("{cut:x}\r\n");
                let size = if cut == 0 { "" } else { &size };
                let part = &sent.as_bytes()[..cut];
                let _ = stream.write_all(&[head.as_bytes(), size.as_bytes(), part].concat());
                false
            });
            let mut config = counted(config(&[&worker]));
            config.breaker.failures = 100_000;
            let handle = router(config);
            let mut bills = Bills::of(&handle);
            for cut in places {
                let reply = ask(&handle, path, &body);
                let bill = bills.next();
                if let Some(read) = usage_of(&reply.text()) {
                    assert_eq!(bill, read, "{path} at {cut}: {}", reply.text());
                }
            }
        }
    }
}

/// A worker without an answer that ends, and with load reports.
#[test]
fn load_reports_show_the_speed_of_the_rank() {
    let text = EngineText::load(None).expect("the built-in tokenizer");
    let engine = EngineConfig { listen: any_port(), itl_ms: 5.0, ..EngineConfig::default() };
    let engine = Engine::start_with(engine, text).expect("the engine starts");
    let mut config = counted(config(&[]));
    config.workers = vec![WorkerConfig { url: engine.url(), ..WorkerConfig::default() }];
    config.health.enabled = true;
    let handle = router(config);
    until("the worker is up", || usable(&handle) == 1);
    let body = r#"{"model":"sim","prompt":"hi","max_tokens":5000,"ignore_eos":true}"#;
    let mut bills = Bills::of(&handle);
    until("its speed is known", || {
        let ((_, output), [least, most]) = left(&mut bills, TEXT, body, 200);
        assert!(output < most * 3 / 2, "{output} of {most}");
        output > least / 2
    });
}
