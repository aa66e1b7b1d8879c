//! What `/metrics` says of hits: against the engines' own word, request by request.

use crate::kv_routing::{Person, engine, follow, kv_router, kv_router_with, settle};
use crate::rig::{Client, any_port, metric, post, until};
use forebay::config::QueueMode;
use forebay::engine::EngineHandle;
use forebay::server::ServerHandle;
use serde_json::json;

/// Cached, computed and choices so far.
fn figures(handle: &ServerHandle) -> [f64; 3] {
    ["forebay_cached_tokens_total", "forebay_computed_tokens_total", "forebay_decisions_total"]
        .map(|name| metric(handle, name))
}

fn reason(handle: &ServerHandle, reason: &str) -> f64 {
    metric(handle, &format!("forebay_decisions_total{{reason=\"{reason}\"}}"))
}

#[expect(clippy::cast_precision_loss, reason = "a few thousand tokens")]
fn exact(tokens: u64) -> f64 {
    tokens as f64
}

#[test]
fn tokens_and_reasons_agree_with_what_engines_and_answers_say() {
    let engines = [engine(any_port(), 1), engine(any_port(), 1)];
    let both: [&EngineHandle; 2] = [&engines[0], &engines[1]];
    let handle = kv_router(&both, vec![0]);
    let lost = follow(&handle, &both);
    let mut cached = 0;
    let mut turns = 0.0;
    let mut people = ["first", "second", "third"].map(|name| Person::new(handle.listen, name));
    for turn in 0..3 {
        for person in &mut people {
            cached += person.ask(&format!("Question {turn}?")).1;
            settle(&handle, &both, lost);
            turns += 1.0;
        }
    }
    let [cached_counted, computed, decided] = figures(&handle);
    assert!((cached_counted - exact(cached)).abs() < 0.5, "{cached_counted} of {cached}");
    assert!(computed > 0.0, "what was new was computed");
    assert!((decided - turns).abs() < 0.5, "{decided} decisions of {turns}");
    // The first turns find nobody, or the few bytes that all people begin with.
    assert!(reason(&handle, "sticky") >= 6.0, "the turns that follow stay");
    assert!(reason(&handle, "holder_too_busy") < 3.5);
    let own: f64 =
        engines.iter().flat_map(|engine| engine.stats()).map(|rank| exact(rank.tokens.hit)).sum();
    assert!((own - cached_counted).abs() < 0.5, "engines count {own}");
    let [predicted, reported] = ["predicted", "reported"]
        .map(|kind| metric(&handle, &format!("forebay_overlap_{kind}_blocks_total")));
    assert!(reported > 0.0 && (predicted - reported).abs() <= turns, "{predicted} {reported}");
    // The bytes of both ranks: a hit rate of the router's own.
    let bytes = metric(&handle, "forebay_overlap_bytes_total{");
    assert!(bytes > 0.0 && bytes < metric(&handle, "forebay_prompt_bytes_total"));
}

#[test]
fn what_a_full_holder_keeps_is_counted_as_unused() {
    let engines = [engine(any_port(), 1), engine(any_port(), 1)];
    let both: [&EngineHandle; 2] = [&engines[0], &engines[1]];
    let handle = kv_router_with(&both, vec![0], |config| {
        config.flow.rank_concurrency_max = Some(1);
        // With a queue it waits for the holder.
        config.flow.queue.mode = QueueMode::Off;
    });
    let lost = follow(&handle, &both);
    let prompt = "The same long prompt, again and again. ".repeat(20);
    let ask = |max_tokens: u32| {
        let body = json!({
            "model": "sim", "prompt": prompt, "max_tokens": max_tokens, "stream": true,
        });
        let mut client = Client::connect(handle.listen);
        client.send(&post("/v1/completions", body.to_string().as_bytes()));
        client
    };
    assert_eq!(ask(1).reply().status, 200);
    settle(&handle, &both, lost);
    // The holder's only place is taken for some seconds.
    let _long = ask(4_000);
    until("the long one runs", || metric(&handle, "forebay_in_flight{") >= 1.0);
    assert_eq!(ask(1).reply().status, 200);
    assert!((reason(&handle, "holder_too_busy") - 1.0).abs() < 0.5);
    let unused = metric(&handle, "forebay_overlap_unused_bytes_total");
    assert!((700.0..=780.0).contains(&unused), "{unused} of 780 bytes");
}

#[test]
fn times_to_the_first_byte_are_counted_by_model_and_rank() {
    let engine = engine(any_port(), 1);
    let handle = kv_router(&[&engine], vec![0]);
    let count = || metric(&handle, "forebay_ttft_seconds_count{model=\"sim\"}");
    let mut client = Client::connect(handle.listen);
    for stream in [true, false, true] {
        let body = json!({ "model": "sim", "prompt": "One two three.", "stream": stream });
        client.send(&post("/v1/completions", body.to_string().as_bytes()));
        assert_eq!(client.reply().status, 200);
    }
    until("both streams are counted", || (count() - 2.0).abs() < 0.5);
    let below = metric(&handle, "forebay_ttft_seconds_bucket{model=\"sim\",le=\"60\"}");
    assert!((below - 2.0).abs() < 0.5);
    let sum = metric(&handle, "forebay_ttft_seconds_sum");
    assert!(sum > 0.0 && sum < 60.0, "{sum}");
    assert!((metric(&handle, "forebay_rank_ttft_seconds_count{") - 2.0).abs() < 0.5);
    assert!((metric(&handle, "forebay_rank_ttft_seconds_sum{") - sum).abs() < 1e-6);
    assert!((reason(&handle, "only_candidate") - 3.0).abs() < 0.5);
}
