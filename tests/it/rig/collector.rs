//! A collector of OpenTelemetry: takes OTLP over HTTP in JSON, and reads it as strictly as the
//! encoding is written down.

use super::{PATIENCE, Worker};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Write;
use std::time::{Duration, Instant};

/// It listens; what it has taken is read by [`Collector::spans`].
pub(crate) struct Collector {
    worker: Worker,
}

/// One span, checked.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    pub(crate) trace: String,
    pub(crate) id: String,
    pub(crate) parent: String,
    pub(crate) state: String,
    pub(crate) name: String,
    pub(crate) kind: u64,
    pub(crate) from_ns: u128,
    pub(crate) until_ns: u128,
    pub(crate) is_error: bool,
    pub(crate) attributes: BTreeMap<String, Value>,
}

impl Collector {
    /// Takes everything.
    pub(crate) fn start() -> Self {
        Self::answering(|_| Some("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}".into()))
    }

    /// `answer`: what it says to its export of that number; `None`: nothing at all.
    pub(crate) fn answering(
        answer: impl Fn(usize) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        let count = std::sync::atomic::AtomicUsize::new(0);
        let worker = Worker::start(move |_, stream| {
            let number = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            match answer(number) {
                Some(answer) => stream.write_all(answer.as_bytes()).is_ok(),
                None => {
                    let _ = std::io::Read::read(stream, &mut [0]);
                    false
                }
            }
        });
        Self { worker }
    }

    pub(crate) fn url(&self) -> String {
        self.worker.url()
    }

    /// The spans of the next exports, until there are as many of that name.
    pub(crate) fn spans(&self, name: &str, count: usize) -> Vec<Span> {
        let start = Instant::now();
        let mut spans = Vec::new();
        while spans.iter().filter(|span: &&Span| span.name == name).count() < count {
            let left = PATIENCE.saturating_sub(start.elapsed());
            let seen = self.worker.seen.recv_timeout(left);
            let seen = seen.unwrap_or_else(|_| panic!("no {count} spans {name} in {spans:#?}"));
            assert!(seen.head.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{}", seen.head);
            assert!(seen.head.contains("content-type: application/json"), "{}", seen.head);
            spans.extend(decoded(&seen.body));
        }
        spans
    }

    /// Exports that have come and were not looked at.
    pub(crate) fn is_silent(&self, time: Duration) -> bool {
        self.worker.seen.recv_timeout(time).is_err()
    }
}

fn decoded(body: &[u8]) -> Vec<Span> {
    let export: Value = serde_json::from_slice(body).unwrap();
    let resource = &export["resourceSpans"][0];
    let service = &resource["resource"]["attributes"][0];
    assert_eq!(
        (&service["key"], &service["value"]["stringValue"]),
        (&"service.name".into(), &"forebay".into())
    );
    let spans = resource["scopeSpans"][0]["spans"].as_array().unwrap();
    spans.iter().map(span).collect()
}

fn span(span: &Value) -> Span {
    let text = |name: &str| span[name].as_str().unwrap_or_default().to_owned();
    let is_id = |id: &str, digits: usize| {
        id.len() == digits && id.bytes().all(|byte| b"0123456789abcdef".contains(&byte))
    };
    assert!(is_id(&text("traceId"), 32) && is_id(&text("spanId"), 16), "{span}");
    let parent = text("parentSpanId");
    assert!(parent.is_empty() || is_id(&parent, 16), "{span}");
    let attributes = span["attributes"].as_array().unwrap().iter();
    let attributes = attributes.map(|one| {
        let value = match &one["value"]["intValue"] {
            Value::Null => one["value"]["stringValue"].clone(),
            number => number.as_str().unwrap().parse::<u64>().unwrap().into(),
        };
        assert!(!value.is_null(), "{one}");
        (one["key"].as_str().unwrap().to_owned(), value)
    });
    let read = Span {
        trace: text("traceId"),
        id: text("spanId"),
        parent,
        state: text("traceState"),
        name: text("name"),
        kind: span["kind"].as_u64().unwrap(),
        from_ns: text("startTimeUnixNano").parse().unwrap(),
        until_ns: text("endTimeUnixNano").parse().unwrap(),
        is_error: span["status"]["code"] == 2,
        attributes: attributes.collect(),
    };
    assert!(read.from_ns <= read.until_ns, "{span}");
    read
}

impl Span {
    pub(crate) fn took(&self) -> Duration {
        Duration::from_nanos(u64::try_from(self.until_ns - self.from_ns).unwrap())
    }
}
