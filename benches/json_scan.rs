//! The scan of a request body, against `serde_json` reading the same keys, and the unescape of a
//! prompt.

#![allow(missing_docs, reason = "criterion writes the functions")]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use forebay::parse::{ApiRequest, Endpoint, scan};
use forebay_json::unescape_into;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::hint::black_box;

/// What the scan reads, for `serde_json`.
#[derive(Deserialize)]
#[allow(dead_code, reason = "the fields are there to be filled")]
struct Typed<'a> {
    #[serde(borrow)]
    model: Cow<'a, str>,
    stream: Option<bool>,
    max_tokens: Option<u32>,
    #[serde(borrow)]
    messages: &'a RawValue,
}

/// A chat of about that many bytes: eight messages, a line break every 60 bytes and a quote now and
/// then.
fn chat(bytes: usize) -> String {
    let line = "The quick brown fox said \\\"jump\\\" over the lazy dog's back.\\n";
    let content = line.repeat((bytes / 8 / line.len()).max(1));
    let message = |role: &str| format!("{{\"role\":\"{role}\",\"content\":\"{content}\"}}");
    let messages: Vec<_> =
        ["system", "user", "assistant", "user", "assistant", "user", "assistant", "user"]
            .into_iter()
            .map(message)
            .collect();
    format!(
        "{{\"model\":\"meta-llama/Llama-3.1-8B-Instruct\",\"messages\":[{}],\"max_tokens\":256,\"temperature\":0.7,\"stream\":true}}",
        messages.join(",")
    )
}

fn scans(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("scan");
    for (name, bytes) in
        [("1 KiB", 1 << 10), ("8 KiB", 8 << 10), ("64 KiB", 64 << 10), ("1 MiB", 1 << 20)]
    {
        let body = chat(bytes);
        group.throughput(Throughput::Bytes(body.len() as u64));
        let mut request = ApiRequest::default();
        group.bench_function(format!("chat {name}"), |bench| {
            bench
                .iter(|| scan(black_box(body.as_bytes()), Endpoint::ChatCompletions, &mut request));
        });
        group.bench_function(format!("chat {name} by serde_json"), |bench| {
            bench.iter(|| serde_json::from_slice::<Typed<'_>>(black_box(body.as_bytes())).is_ok());
        });
    }
    let ids: Vec<_> = (0..8_000_u32).map(|id| (id * 7 % 128_000).to_string()).collect();
    let body = format!("{{\"model\":\"m\",\"prompt\":[{}]}}", ids.join(","));
    group.throughput(Throughput::Bytes(body.len() as u64));
    let mut request = ApiRequest::default();
    group.bench_function("8000 token ids", |bench| {
        bench.iter(|| scan(black_box(body.as_bytes()), Endpoint::Completions, &mut request));
    });
    let body = format!("{{\"model\":\"m\",\"prompt\":\"{}\"}}", "a".repeat(8 << 10));
    group.throughput(Throughput::Bytes(body.len() as u64));
    group.bench_function("8 KiB prompt without escapes", |bench| {
        bench.iter(|| scan(black_box(body.as_bytes()), Endpoint::Completions, &mut request));
    });
    group.finish();
}

fn unescapes(criterion: &mut Criterion) {
    let text = chat(8 << 10);
    let mut out = Vec::new();
    let mut group = criterion.benchmark_group("unescape");
    group.throughput(Throughput::Bytes(text.len() as u64));
    group.bench_function("8 KiB", |bench| {
        bench.iter(|| {
            out.clear();
            unescape_into(black_box(text.as_bytes()), &mut out);
            out.len()
        });
    });
    group.finish();
}

criterion_group!(benches, scans, unescapes);
criterion_main!(benches);
