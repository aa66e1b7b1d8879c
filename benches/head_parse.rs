//! Request and response heads, chunked bodies and heads as they leave, against `httparse` where it
//! does the same.

#![allow(missing_docs, reason = "criterion writes the functions")]

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use forebay::http1::{
    BodyFraming, BodyLimits, ChunkedDecoder, DownstreamHead, HeadLimits, Method, RequestHead,
    ResponseHead, UpstreamHead, Version, encode_chunk_header, encode_request, encode_response,
    parse_request, parse_response,
};
use std::hint::black_box;

const REQUEST: &[u8] = b"POST /v1/chat/completions HTTP/1.1\r\n\
    Host: router.example.com:8080\r\n\
    User-Agent: OpenAI/Python 1.99.9\r\n\
    Accept: application/json\r\n\
    Accept-Encoding: gzip, deflate, zstd\r\n\
    Connection: keep-alive\r\n\
    Content-Type: application/json\r\n\
    Authorization: Bearer sk-0123456789abcdef0123456789abcdef0123456789abcdef\r\n\
    x-stainless-arch: x64\r\n\
    x-stainless-async: async:asyncio\r\n\
    x-stainless-lang: python\r\n\
    x-stainless-os: Linux\r\n\
    x-stainless-package-version: 1.99.9\r\n\
    x-stainless-runtime: CPython\r\n\
    Content-Length: 8192\r\n\r\n";

const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\n\
    date: Fri, 21 Nov 2025 10:00:00 GMT\r\n\
    server: uvicorn\r\n\
    content-type: text/event-stream; charset=utf-8\r\n\
    cache-control: no-cache\r\n\
    x-request-id: chatcmpl-0123456789abcdef\r\n\
    transfer-encoding: chunked\r\n\r\n";

fn heads(criterion: &mut Criterion) {
    let limits = HeadLimits::default();
    let mut group = criterion.benchmark_group("head");
    group.throughput(Throughput::Bytes(REQUEST.len() as u64));
    let mut head = RequestHead::default();
    group.bench_function("request", |bench| {
        bench.iter(|| parse_request(black_box(REQUEST), &limits, &mut head));
    });
    group.bench_function("request by httparse", |bench| {
        bench.iter(|| {
            let mut fields = [httparse::EMPTY_HEADER; 100];
            let mut request = httparse::Request::new(&mut fields);
            request.parse(black_box(REQUEST)).map(|status| status.is_complete())
        });
    });
    let upstream = UpstreamHead {
        authority: "10.0.0.1:8000",
        via: b"forebay-0123456789abcdef",
        content_length: Some(8_192),
        request_id: b"0123456789abcdef",
        authorization: None,
        extra: &[("x-data-parallel-rank", b"3")],
    };
    let mut out = Vec::new();
    group.bench_function("request encoded", |bench| {
        bench.iter(|| {
            out.clear();
            encode_request(black_box(&head), REQUEST, &upstream, &mut out);
            out.len()
        });
    });
    group.throughput(Throughput::Bytes(RESPONSE.len() as u64));
    let mut head = ResponseHead::default();
    group.bench_function("response", |bench| {
        bench.iter(|| parse_response(black_box(RESPONSE), &Method::Post, &limits, &mut head));
    });
    let downstream = DownstreamHead {
        framing: BodyFraming::Chunked,
        keep_alive: true,
        client_version: Version::Http11,
        extra: &[("x-forebay-worker", b"w0")],
    };
    group.bench_function("response encoded", |bench| {
        bench.iter(|| {
            out.clear();
            encode_response(black_box(&head), RESPONSE, &downstream, &mut out);
            out.len()
        });
    });
    group.finish();
}

fn bodies(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("chunked");
    for (name, chunk_bytes, chunks) in [
        ("one 200-byte event", 200, 1),
        ("16 KiB in 200-byte events", 200, 80),
        ("64 KiB in one chunk", 65_536, 1),
    ] {
        let mut wire = Vec::new();
        for _ in 0..chunks {
            let mut header = [0; 10];
            let start = encode_chunk_header(chunk_bytes, &mut header);
            wire.extend(header.get(start..).unwrap_or(&[]));
            wire.extend(vec![b'a'; chunk_bytes]);
            wire.extend(b"\r\n");
        }
        group.throughput(Throughput::Bytes(wire.len() as u64));
        group.bench_function(name, |bench| {
            bench.iter_batched_ref(
                || (wire.clone(), ChunkedDecoder::new(&BodyLimits::default())),
                |(bytes, decoder)| decoder.decode(bytes),
                BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}

criterion_group!(benches, heads, bodies);
criterion_main!(benches);
