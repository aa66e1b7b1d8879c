//! What clients and engines send, as bytes.

use std::fmt::Write;

/// Words of prompts.
const WORDS: [&str; 18] = [
    "route", "request", "worker", "prefix", "cache", "overlap", "load", "tokens", "engine",
    "block", "rank", "queue", "stream", "answer", "question", "please", "<draft>", "naïve",
];

/// Events of a streamed answer.
pub(crate) const EVENT_COUNT: usize = 100;

/// The head that OpenAI's client for Python sends, about 600 bytes.
pub(crate) fn request_head(body_bytes: usize) -> Vec<u8> {
    let mut head = String::from("POST /v1/chat/completions HTTP/1.1\r\n");
    let fields = [
        ("Host", "router.example.net:8080"),
        ("Accept-Encoding", "gzip, deflate"),
        ("Connection", "keep-alive"),
        ("Accept", "application/json"),
        ("Content-Type", "application/json"),
        ("User-Agent", "AsyncOpenAI/Python 2.8.1"),
        ("X-Stainless-Lang", "python"),
        ("X-Stainless-Package-Version", "2.8.1"),
        ("X-Stainless-OS", "Linux"),
        ("X-Stainless-Arch", "x64"),
        ("X-Stainless-Runtime", "CPython"),
        ("X-Stainless-Runtime-Version", "3.11.2"),
        ("Authorization", "Bearer sk-0123456789abcdef0123456789abcdef"),
        ("X-Stainless-Async", "async:asyncio"),
        ("x-stainless-retry-count", "0"),
        ("x-stainless-read-timeout", "600"),
        ("x-request-id", "7f3c9a52-1d0e-4b8f-9c61-2a5e8d7b4f10"),
    ];
    for (name, value) in fields {
        write!(head, "{name}: {value}\r\n").unwrap();
    }
    write!(head, "Content-Length: {body_bytes}\r\n\r\n").unwrap();
    head.into_bytes()
}

/// A chat of about that many bytes: a system message and turns, with an escape now and then.
pub(crate) fn chat_body(bytes: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(1);
    let turn_count = if bytes > 4_096 { 9 } else { 3 };
    let turn_bytes = bytes / turn_count - 40;
    let mut body = String::from(
        r#"{"model":"m","messages":[{"role":"system","content":"Answer in one sentence."}"#,
    );
    for turn in 0..turn_count {
        let role = if turn % 2 == 0 { "user" } else { "assistant" };
        write!(body, ",{{\"role\":\"{role}\",\"content\":\"").unwrap();
        let end = body.len() + turn_bytes;
        while body.len() < end {
            body.push_str(WORDS[random.usize(..WORDS.len())]);
            body.push_str(if random.u32(..12) == 0 { ".\\n" } else { " " });
        }
        body.push_str("\"}");
    }
    body.push_str("],\"max_tokens\":256,\"temperature\":0.7,\"stream\":true}");
    body.into_bytes()
}

/// An engine's answer in one piece: head and body.
pub(crate) fn whole_answer() -> Vec<u8> {
    let text = "an answer of some words ".repeat(16);
    let body = [
        r#"{"id":"chatcmpl-0123456789abcdef","object":"chat.completion","created":1760000000,"#,
        r#""model":"m","choices":[{"index":0,"message":{"role":"assistant","content":""#,
        &text,
        r#""},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":2048,"#,
        r#""completion_tokens":64,"prompt_tokens_details":{"cached_tokens":1792}}}"#,
    ];
    let body = body.concat();
    let head = answer_head("application/json", &format!("content-length: {}", body.len()));
    [head, body.into_bytes()].concat()
}

/// A streamed answer as reads of the engine's connection: the head, an event each, the end.
pub(crate) fn streamed_answer() -> Vec<Vec<u8>> {
    let mut reads = vec![answer_head("text/event-stream", "transfer-encoding: chunked")];
    for number in 0..EVENT_COUNT {
        let event = [
            r#"data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","#,
            r#""created":1760000000,"model":"m","choices":[{"index":0,"delta":{"content":""#,
            &format!(" word{number}"),
            "\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n",
        ];
        reads.push(chunk(&event.concat()));
    }
    let usage = "data: {\"id\":\"chatcmpl-0123456789abcdef\",\"choices\":[],\"usage\":\
                 {\"prompt_tokens\":2048,\"prompt_tokens_details\":{\"cached_tokens\":1792}}}\n\n";
    reads.push(chunk(usage));
    reads.push([chunk("data: [DONE]\n\n"), b"0\r\n\r\n".to_vec()].concat());
    reads
}

fn answer_head(content_type: &str, framing: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 200 OK\r\ndate: Sun, 22 Nov 2026 12:00:00 GMT\r\nserver: uvicorn\r\n\
         content-type: {content_type}\r\n{framing}\r\n\r\n"
    )
    .into_bytes()
}

fn chunk(data: &str) -> Vec<u8> {
    format!("{:x}\r\n{data}\r\n", data.len()).into_bytes()
}
