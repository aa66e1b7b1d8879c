//! Traces: spans reach a collector with the right parents, workers are told of them, and a
//! collector that does not take them costs spans and nothing else.

use crate::rig::collector::{Collector, Span};
use crate::rig::pairs::{ask_with, ready_pair};
use crate::rig::stub::{STREAM_HEAD, Step, Stub, chunk, stream_of};
use crate::rig::stub_pages::Pages;
use crate::rig::{
    ASK, Certificates, Client, Gate, Pair, Reply, RouterProcess, TlsFront, Worker, config, metric,
    port_for_later, post, router, until,
};
use forebay::config::{Config, TracesConfig};
use forebay::server::ServerHandle;
use std::io::Write;
use std::time::{Duration, Instant};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN: &str = "b7ad6b7169203331";
const MILLION: u32 = 1_000_000;

fn traced(workers: &[&Worker], collector: &Collector, sample: u32) -> Config {
    Config { traces: traces(collector.url(), sample), ..config(workers) }
}

fn traces(endpoint: String, sample_per_million: u32) -> TracesConfig {
    TracesConfig { endpoint: Some(endpoint), sample_per_million, ..TracesConfig::default() }
}

fn ask(handle: &ServerHandle, fields: &str) -> Reply {
    let mut client = ask_with(handle, "/v1/completions", fields, std::str::from_utf8(ASK).unwrap());
    let reply = client.reply();
    assert_eq!((reply.status, reply.complete), (200, true), "{}", reply.text());
    reply
}

/// `traceparent` with these flags.
fn sent(flags: &str) -> String {
    format!("traceparent: 00-{TRACE}-{SPAN}-{flags}\r\n")
}

/// A field of a request as the worker got it.
fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

fn named<'a>(spans: &'a [Span], name: &str) -> &'a Span {
    spans.iter().find(|span| span.name == name).unwrap_or_else(|| panic!("{name}: {spans:#?}"))
}

const SERVER: &str = "POST /v1/completions";

#[test]
fn a_request_is_a_span_with_its_parts_and_the_worker_goes_on_with_it() {
    let worker = Worker::json(r#"{"usage":{"prompt_tokens":7,"completion_tokens":3}}"#);
    let collector = Collector::start();
    let handle = router(traced(&[&worker], &collector, MILLION));
    ask(&handle, "");
    let head = worker.next().head;
    let spans = collector.spans(SERVER, 1);
    let names: Vec<&str> = spans.iter().map(|span| &*span.name).collect();
    assert_eq!(names, [SERVER, "admit", "first_byte", "stream"]);
    let server = named(&spans, SERVER);
    assert_eq!((&*server.parent, server.kind, server.is_error), ("", 2, false));
    assert!(spans[1..].iter().all(|span| span.parent == server.id && span.trace == server.trace));
    let mut ids: Vec<_> = spans.iter().map(|span| &span.id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 4, "{spans:#?}");
    let first = named(&spans, "first_byte");
    let wanted = format!("00-{}-{}-01", server.trace, first.id);
    assert_eq!(field(&head, "traceparent"), Some(&*wanted));
    assert_eq!((first.kind, field(&head, "tracestate")), (3, None));
    for (span, name, value) in [
        (server, "http.request.method", "POST".into()),
        (server, "url.path", "/v1/completions".into()),
        (server, "http.response.status_code", 200.into()),
        (server, "gen_ai.request.model", "m".into()),
        (server, "gen_ai.usage.input_tokens", 7.into()),
        (server, "gen_ai.usage.output_tokens", 3.into()),
        (server, "forebay.because", "only_candidate".into()),
        (first, "server.address", "127.0.0.1".into()),
        (first, "server.port", serde_json::Value::from(worker.address.port())),
        (first, "forebay.dp_rank", 0.into()),
    ] {
        assert_eq!(span.attributes.get(name), Some(&value), "{name} of {span:#?}");
    }
    // The clock is that of the world.
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    assert!(now.as_nanos() - server.until_ns < 60_000_000_000, "{server:#?}");
}

#[test]
fn a_clients_trace_goes_on_and_its_word_counts() {
    let worker = Worker::json("{}");
    let collector = Collector::start();
    // Nothing is sampled but what clients ask for.
    let handle = router(traced(&[&worker], &collector, 0));
    let not_sampled = format!("{}tracestate: a=1\r\n", sent("00"));
    ask(&handle, &not_sampled);
    let head = worker.next().head;
    assert!(head.contains(&not_sampled), "it goes past the router: {head}");
    ask(&handle, "");
    let head = worker.next().head;
    assert!(field(&head, "traceparent").unwrap().ends_with("-00"), "{head}");
    let invalid = format!("{}tracestate: a=1\r\n", sent("01").to_uppercase());
    ask(&handle, &invalid);
    let head = worker.next().head;
    let told = field(&head, "traceparent").unwrap();
    assert!(told.ends_with("-00") && !told.contains(TRACE), "{head}");
    assert!(!head.to_ascii_lowercase().contains("tracestate"), "{head}");

    let state = "tracestate: rojo=00f067aa0ba902b7,congo=t61rcWkgMzE\r\n";
    ask(&handle, &format!("{}{state}", sent("01")));
    let head = worker.next().head;
    let spans = collector.spans(SERVER, 1);
    assert_eq!(spans.len(), 4, "only the one that was asked for: {spans:#?}");
    let server = named(&spans, SERVER);
    assert_eq!((&*server.trace, &*server.parent), (TRACE, SPAN));
    assert_eq!(server.state, "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE");
    let first = &named(&spans, "first_byte").id;
    let wanted = format!("00-{TRACE}-{first}-01");
    assert_eq!(field(&head, "traceparent"), Some(&*wanted));
    assert!(head.contains(state), "{head}");
    assert!(!head.contains(SPAN), "one context, not two: {head}");
    assert_eq!(metric(&handle, "forebay_traces_total"), 1.0);
}

/// Header fields come from a file, and the collector's certificate is checked.
#[test]
fn a_collector_behind_tls_gets_the_fields_of_the_file() {
    let worker = Worker::json("{}");
    let collector = Worker::json("{}");
    let certificates = Certificates::new();
    let front = TlsFront::of(collector.address, &certificates.sign("c", &["localhost"]));
    let url = format!("https://localhost:{}", front.address.port());
    let mut config = Config { traces: traces(url, MILLION), ..config(&[&worker]) };
    config.traces.headers_file = Some("tests/data/trace_fields".into());
    config.traces.ca = Some(certificates.ca());
    let Pair { cert, key } = certificates.sign("router", &["localhost"]);
    config.tls.cert = Some(cert);
    config.tls.key = Some(key);
    let router = router(config);
    let mut client = Client::connect_tls(router.listen, &certificates.client(), "localhost");
    client.send(&post("/v1/completions", ASK));
    assert_eq!(client.reply().status, 200);
    let export = collector.next();
    let head = export.head.to_ascii_lowercase();
    assert!(head.contains("authorization: bearer key-of-the-collector\r\n"), "{head}");
    let spans = String::from_utf8(export.body).unwrap();
    let scheme = r#"{"key":"url.scheme","value":{"stringValue":"https"}}"#;
    assert!(spans.contains(scheme), "{spans}");
}

#[test]
fn without_a_collector_nothing_is_added() {
    let worker = Worker::json("{}");
    let handle = router(config(&[&worker]));
    ask(&handle, "");
    assert_eq!(field(&worker.next().head, "traceparent"), None);
    let both = format!("{}tracestate: a=1\r\n", sent("01"));
    ask(&handle, &both);
    assert!(worker.next().head.contains(&both));
}

#[test]
fn clients_cannot_have_more_sampled_than_is_configured() {
    let worker = Worker::json("{}");
    let collector = Collector::start();
    let mut config = traced(&[&worker], &collector, 0);
    config.traces.asked_per_second_max = 0;
    let handle = router(config);
    ask(&handle, &sent("01"));
    let head = worker.next().head;
    assert!(head.contains(&sent("01")), "it goes past the router: {head}");
    assert_eq!(metric(&handle, "forebay_traces_over_asked_total"), 1.0);
    assert!(collector.is_silent(Duration::from_millis(1_300)));
}

#[test]
fn a_wait_for_a_rank_is_a_span() {
    let gate = Gate::start();
    let collector = Collector::start();
    let mut config = traced(&[&gate.worker], &collector, MILLION);
    config.flow.rank_concurrency_max = Some(1);
    let handle = router(config);
    let send = || {
        let mut client = Client::connect(handle.listen);
        client.send(&post("/v1/completions", ASK));
        client
    };
    let mut clients = vec![send()];
    gate.holds(1);
    clients.push(send());
    until("it waits", || metric(&handle, "forebay_queue_depth") == 1.0);
    std::thread::sleep(Duration::from_millis(30));
    gate.open();
    gate.open();
    assert!(clients.iter_mut().all(|client| client.reply().status == 200));
    let spans = collector.spans(SERVER, 2);
    let queue = named(&spans, "queue");
    assert!(queue.took() >= Duration::from_millis(30), "{queue:#?}");
    let parent = spans.iter().find(|span| span.id == queue.parent).unwrap();
    assert_eq!((&*parent.name, &parent.trace), (SERVER, &queue.trace));
    let first = spans.iter().find(|span| span.name == "first_byte" && span.parent == parent.id);
    assert!(first.unwrap().from_ns >= queue.until_ns);
}

#[test]
fn a_stream_has_a_span_from_its_first_byte_on() {
    let worker = Worker::start(|_, stream| {
        let head = stream.write_all(STREAM_HEAD);
        std::thread::sleep(Duration::from_millis(60));
        let one = stream.write_all(&chunk(b"data: {}\n\n"));
        std::thread::sleep(Duration::from_millis(120));
        head.and(one).and_then(|()| stream.write_all(&chunk(b""))).is_ok()
    });
    let collector = Collector::start();
    let handle = router(traced(&[&worker], &collector, MILLION));
    ask(&handle, "");
    let spans = collector.spans(SERVER, 1);
    let first = named(&spans, "first_byte");
    let stream = named(&spans, "stream");
    assert!(first.took() >= Duration::from_millis(60), "not its head, its first byte: {first:#?}");
    // Half of what the worker slept: the router may see the first byte late.
    assert!(stream.took() >= Duration::from_millis(60), "{stream:#?}");
    assert_eq!(first.until_ns, stream.from_ns);
}

#[test]
fn both_legs_of_a_pair_are_spans_and_each_worker_is_told_of_its_own() {
    let prefill = Stub::start(Pages::sglang("prefill"));
    let decode = Stub::start(Pages::sglang("decode"));
    let collector = Collector::start();
    let handle = ready_pair(&prefill, &decode, |config| {
        config.traces = traces(collector.url(), 0);
    });
    // Prefill ends after decode has begun: on its own, when its request has all that it wants.
    prefill.always(vec![Step::Word, Step::Send(stream_of(&["data: {}\n\n"]))]);
    decode.always(vec![Step::Send(stream_of(&["data: {\"text\":\"a\"}\n\n"]))]);
    let body = r#"{"model":"m","prompt":"hi","stream":true}"#;
    let mut client = ask_with(&handle, "/v1/completions", &sent("01"), body);
    assert_eq!(client.reply().status, 200);
    prefill.let_go();
    let mut spans = collector.spans(SERVER, 1);
    if !spans.iter().any(|span| span.name == "prefill_leg") {
        spans.extend(collector.spans("prefill_leg", 1));
    }
    let server = named(&spans, SERVER);
    assert_eq!((&*server.trace, &*server.parent), (TRACE, SPAN));
    for (stub, name) in [(&prefill, "prefill_leg"), (&decode, "first_byte")] {
        let span = named(&spans, name);
        assert_eq!((&span.parent, span.kind, &*span.trace), (&server.id, 3, TRACE), "{name}");
        let wanted = format!("00-{TRACE}-{}-01", span.id);
        assert_eq!(field(&stub.arrival(0).head, "traceparent"), Some(&*wanted), "{name}");
        let port = serde_json::Value::from(stub.address.port());
        assert_eq!(span.attributes.get("server.port"), Some(&port), "{name}");
    }
    assert!(!named(&spans, "prefill_leg").is_error);
}

#[test]
fn a_failed_attempt_is_a_span_with_an_error() {
    let broken = Worker::start(|_, _| false);
    let collector = Collector::start();
    let handle = router(traced(&[&broken], &collector, MILLION));
    let mut client = Client::connect(handle.listen);
    client.send(&post("/v1/completions", ASK));
    assert_eq!(client.reply().status, 502);
    let spans = collector.spans(SERVER, 1);
    assert!(named(&spans, "first_byte").is_error && named(&spans, SERVER).is_error);
    assert!(spans.iter().all(|span| span.name != "stream"), "{spans:#?}");
}

/// One that stalls, one that refuses, one that is gone.
#[test]
fn a_collector_that_takes_nothing_costs_spans_only() {
    let stalls = Collector::answering(|_| None);
    let refuses =
        Collector::answering(|_| Some("HTTP/1.1 400 Bad\r\ncontent-length: 0\r\n\r\n".into()));
    let gone = format!("http://{}", port_for_later());
    for (endpoint, reason) in
        [(stalls.url(), "unreachable"), (refuses.url(), "refused"), (gone, "unreachable")]
    {
        let worker = Worker::json("{}");
        let mut config = config(&[&worker]);
        config.traces = traces(endpoint, MILLION);
        config.traces.timeout = Duration::from_millis(100);
        let handle = router(config);
        let start = Instant::now();
        for _ in 0..20 {
            ask(&handle, "");
        }
        assert!(start.elapsed() < Duration::from_secs(10), "no request waits for the collector");
        let lost = format!("forebay_trace_spans_dropped_total{{reason=\"{reason}\"}}");
        until("all spans are counted", || metric(&handle, &lost) == 80.0);
        assert_eq!(metric(&handle, "forebay_trace_spans_total"), 0.0);
    }
}

#[test]
fn a_busy_collector_is_asked_once_more() {
    let collector = Collector::answering(|number| {
        Some(match number {
            0 => "HTTP/1.1 503 Busy\r\nretry-after: 0\r\ncontent-length: 0\r\n\r\n".into(),
            _ => {
                let body = r#"{"partialSuccess":{"rejectedSpans":"1"}}"#;
                format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())
            }
        })
    });
    let worker = Worker::json("{}");
    let handle = router(traced(&[&worker], &collector, MILLION));
    ask(&handle, "");
    until("three are taken", || metric(&handle, "forebay_trace_spans_total") == 3.0);
    let lost = "forebay_trace_spans_dropped_total{reason=\"refused\"}";
    assert_eq!(metric(&handle, lost), 1.0);
}

#[test]
fn a_record_has_the_text_of_its_format() {
    let worker = Worker::json("{}");
    let router = RouterProcess::configured(&format!(
        "cores = [0]\n[log]\nrequests = true\n\
         format = \"{{client}} {{method}} {{path}} {{status}} {{model}} {{worker}} {{tenant}}.\"\n\
         [health]\nenabled = false\n[[worker]]\nurl = \"{}\"\nname = \"w\"\n",
        worker.url()
    ));
    let mut client = Client::connect(router.listen);
    let forged = r#"{"model":"m\n127.0.0.1 \"GET\"","prompt":"hi"}"#;
    client.send(&post("/v1/completions?key=secret", forged.as_bytes()));
    client.reply();
    until("it is in the log", || router.logged(" POST /v1") == 1);
    let log = router.log();
    let line = log.lines().find(|line| line.contains(" POST /v1")).unwrap();
    let wanted = "127.0.0.1 POST /v1/completions 200 m\\x0a127.0.0.1\\x20\\x22GET\\x22 w *.";
    assert!(line.ends_with(wanted), "{line}");
}
