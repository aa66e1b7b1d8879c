//! The simulated engine at its limits, over real sockets: refusals as engines write them, its own
//! count of what was in flight, what it tells of its capacity, standstills, the file of times.

#![expect(
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "helpers of tests may stop the test and look at the clock"
)]

use crate::rig::{DEADLINE, client, start};
use forebay::engine::{EngineConfig, EngineHandle, EngineRefusal};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Two places and one in the queue; an answer takes 0.3 s.
fn small(refusal: EngineRefusal) -> EngineConfig {
    EngineConfig {
        listen: "127.0.0.1:0".parse().expect("address"),
        kv_blocks: 512,
        prefill_tokens_per_s: 1e6,
        itl_ms: 10.0,
        concurrency: 2,
        queued_max: Some(1),
        refusal,
        ..EngineConfig::default()
    }
}

struct Answered {
    status: u16,
    retry_after: Option<String>,
    body: String,
}

async fn ask(client: reqwest::Client, url: String, stream: bool) -> Answered {
    let body = json!({ "model": "m", "prompt": "one two", "max_tokens": 30, "stream": stream });
    let sent = client.post(format!("{url}/v1/completions")).json(&body).send().await;
    let response = sent.expect("answers");
    let retry_after = response.headers().get("retry-after");
    let retry_after = retry_after.map(|value| value.to_str().expect("text").to_owned());
    let status = response.status().as_u16();
    Answered { status, retry_after, body: response.text().await.expect("body") }
}

/// That many requests at once; the answers in the order of their coming.
async fn burst(engine: &EngineHandle, count: usize, stream: bool) -> Vec<Answered> {
    let client = client();
    let asked = (0..count).map(|_| tokio::spawn(ask(client.clone(), engine.url(), stream)));
    let mut answers = Vec::new();
    for task in asked.collect::<Vec<_>>() {
        answers.push(task.await.expect("task"));
    }
    answers.sort_by_key(|answer| answer.status);
    answers
}

async fn metric(engine: &EngineHandle, name: &str) -> f64 {
    let page = client().get(format!("{}/metrics", engine.url())).send().await.expect("answers");
    let page = page.text().await.expect("body");
    let line = page.lines().find(|line| line.starts_with(name)).expect("metric");
    line.rsplit(' ').next().and_then(|value| value.parse().ok()).expect("number")
}

#[tokio::test]
async fn a_full_queue_refuses_in_vllms_bytes_and_counts() {
    let engine = start(small(EngineRefusal::Vllm));
    let answers = burst(&engine, 8, false).await;
    let statuses: Vec<_> = answers.iter().map(|answer| answer.status).collect();
    assert_eq!(statuses, [200, 200, 200, 503, 503, 503, 503, 503]);
    for refused in &answers[3..] {
        assert_eq!(refused.body, include_str!("../data/workers/vllm-0.32.0/admission_503.json"));
        assert_eq!(refused.retry_after, None);
    }
    assert_eq!(metric(&engine, "forebay_engine_received_total").await, 8.0);
    assert_eq!(metric(&engine, "forebay_engine_refused_total").await, 5.0);
    assert_eq!(
        metric(&engine, "forebay_engine_in_flight_peak").await,
        3.0,
        "what was refused never was in flight"
    );
    assert_eq!(metric(&engine, "vllm:request_success_total").await, 3.0);
    let again = burst(&engine, 3, true).await;
    assert!(again.iter().all(|answer| answer.status == 200), "room again");
}

#[tokio::test]
async fn other_engines_refuse_in_other_words() {
    let engine = start(small(EngineRefusal::Sglang));
    let whole = burst(&engine, 4, false).await;
    assert_eq!(whole[3].status, 503);
    let body: Value = serde_json::from_str(&whole[3].body).expect("JSON");
    assert_eq!(body["message"], "The request queue is full.");
    assert_eq!((&body["object"], &body["code"]), (&json!("error"), &json!(503)));

    // A stream has begun before the scheduler says no.
    let streams = burst(&engine, 4, true).await;
    assert!(streams.iter().all(|answer| answer.status == 200));
    let refused: Vec<_> =
        streams.iter().filter(|answer| answer.body.contains("queue is full")).collect();
    assert_eq!(refused.len(), 1);
    let mut events = refused[0].body.split("\n\n");
    let error = events.next().and_then(|event| event.strip_prefix("data: ")).expect("an event");
    let error: Value = serde_json::from_str(error).expect("JSON");
    assert_eq!(error["error"]["code"], 503);
    assert_eq!(events.next(), Some("data: [DONE]"));

    let engine = start(small(EngineRefusal::TooMany));
    let refused = burst(&engine, 4, false).await.pop().expect("answers");
    assert_eq!((refused.status, refused.retry_after.as_deref()), (429, Some("1")));
    let engine = start(small(EngineRefusal::Overloaded));
    let refused = burst(&engine, 4, true).await.pop().expect("answers");
    assert_eq!(refused.status, 529);
    assert!(refused.body.contains("overloaded_error"));
}

#[tokio::test]
async fn several_choices_are_refused_as_one() {
    let engine = start(small(EngineRefusal::Vllm));
    let body = json!({ "prompt": "one two", "max_tokens": 2, "n": 4 });
    let url = format!("{}/v1/completions", engine.url());
    let refused = client().post(&url).json(&body).send().await.expect("answers");
    assert_eq!(refused.status(), 503, "three of the four had room");
    let until = Instant::now() + DEADLINE;
    while engine.stats()[0].requests.running + engine.stats()[0].requests.waiting > 0 {
        assert!(Instant::now() < until, "what had room is taken out again");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(burst(&engine, 3, false).await[2].status, 200);
}

#[tokio::test]
async fn capacity_is_told_in_development_mode_only() {
    for (dev_mode, wanted) in [(false, Value::Null), (true, json!(2))] {
        let engine = start(EngineConfig { dev_mode, ..small(EngineRefusal::Vllm) });
        let url = format!("{}/server_info?config_format=json", engine.url());
        let response = client().get(url).send().await.expect("answers");
        assert_eq!(response.status().as_u16(), if dev_mode { 200 } else { 404 });
        let told: Value = response.json().await.expect("JSON");
        assert_eq!(told["vllm_config"]["scheduler_config"]["max_num_seqs"], wanted);
    }
}

#[tokio::test]
async fn a_standstill_holds_tokens_back_and_is_over_in_time() {
    let engine = start(small(EngineRefusal::Vllm));
    let url = format!("{}/debug/stall", engine.url());
    let asked = |ms: u64| client().post(format!("{url}?ms={ms}")).send();
    assert_eq!(asked(u64::MAX).await.expect("answers").status(), 400);
    let begun = Instant::now();
    assert_eq!(asked(600).await.expect("answers").status(), 200);
    let answer = ask(client(), engine.url(), false).await;
    assert_eq!(answer.status, 200);
    // 30 tokens of 10 ms come after the 600 ms.
    assert!(begun.elapsed() > Duration::from_millis(850), "took {:?}", begun.elapsed());
}

#[tokio::test]
async fn the_file_of_times_has_a_line_for_each_request() {
    let folder = tempfile::tempdir().expect("folder");
    let file = folder.path().join("times");
    let engine =
        start(EngineConfig { log_times: Some(file.clone()), ..small(EngineRefusal::Vllm) });
    burst(&engine, 4, true).await;
    let left = client().post(format!("{}/v1/completions", engine.url()));
    let left = left.json(&json!({ "prompt": "one", "max_tokens": 5_000, "stream": true }));
    drop(left.send().await.expect("answers"));
    let until = Instant::now() + DEADLINE;
    let lines = loop {
        let text = std::fs::read_to_string(&file).expect("file");
        let lines: Vec<_> = text.lines().map(str::to_owned).collect();
        if lines.len() >= 5 {
            break lines;
        }
        assert!(Instant::now() < until, "{lines:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    let mut outcomes = Vec::new();
    for line in &lines {
        let words: Vec<_> = line.split(' ').collect();
        assert_eq!((words.len(), &words[4..]), (6, &["both", "-"][..]), "{line}");
        let received = words[0];
        let ended = words[1];
        let outcome = words[2];
        let number = |word: &str| word.parse::<u64>().expect("nanoseconds");
        let took = Duration::from_nanos(number(ended) - number(received));
        assert_eq!(took > Duration::from_millis(290), outcome == "finished", "{line}");
        outcomes.push(outcome);
    }
    outcomes.sort_unstable();
    assert_eq!(outcomes, ["finished", "finished", "finished", "left", "refused"]);
}
