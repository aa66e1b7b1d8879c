//! Spans for a collector: made at each tick from the traces of the shards, and sent by a single
//! task at a time. A slow or absent collector costs spans, which are counted, and nothing else.
//! Limits: `TRACE_*` of `base::limits`.

mod otlp;

use self::otlp::{SpanMaker, envelope};
use super::super::ports::Ports;
use forebay_admin::SpanFigures;
use forebay_base::limits::{
    TRACE_BATCH_AGE_MAX, TRACE_BATCH_SPANS_MAX, TRACE_BYTES_WAITING_MAX, TRACE_FLUSH_TIME_MAX,
    TRACE_RETRY_AFTER_MAX, TRACE_SPANS_WAITING_MAX,
};
use forebay_base::{NanosSinceStart, since_1970};
use forebay_config::{TracesConfig, read_header_file};
use forebay_discovery::{NamedResolver, cause_of};
use forebay_fleet::worker::FleetSnapshot;
use forebay_tls::{ConnectFiles, Connector};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{Client, Response};
use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

/// Most bytes read of a collector's answer.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// Pause before the second try, unless the collector names a pause.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Spans that wait, and the state of the export.
#[derive(Debug, Default)]
pub(super) struct Traces {
    /// HTTP client, and the configuration that it was made for.
    client: Option<ExportClient>,
    waiting: VecDeque<String>,
    waiting_bytes: usize,
    /// Creation time of the oldest waiting span.
    since: NanosSinceStart,
    export: Rc<ExportState>,
}

/// A client with the files of a configuration.
#[derive(Debug)]
struct ExportClient {
    config: TracesConfig,
    client: Client,
}

/// Results of the task that sends.
#[derive(Debug, Default)]
struct ExportState {
    is_sending: Cell<bool>,
    /// The last export has failed: only the first failure in a row is logged.
    has_failed: Cell<bool>,
    figures: Cell<SpanFigures>,
}

impl Traces {
    /// Spans sent and lost so far.
    pub(super) fn figures(&self) -> SpanFigures {
        self.export.figures.get()
    }

    /// Takes the traces of the shards, and sends due spans.
    pub(super) fn tick(
        &mut self,
        config: &TracesConfig,
        ports: &Ports,
        fleet: &FleetSnapshot,
        now: NanosSinceStart,
    ) {
        self.collect(config, ports, fleet, now);
        let is_due = self.waiting.len() >= TRACE_BATCH_SPANS_MAX
            || now >= self.since.plus(TRACE_BATCH_AGE_MAX);
        if self.waiting.is_empty() || !is_due || self.export.is_sending.get() {
            return;
        }
        if let Some(sending) = self.batch(config) {
            tokio::task::spawn_local(sending);
        }
    }

    /// Sends the remaining spans, in bounded time.
    pub(super) async fn finish(&mut self, config: &TracesConfig) {
        let Some(sending) = self.batch(config) else { return };
        let _ = timeout(TRACE_FLUSH_TIME_MAX, sending).await;
    }

    fn collect(
        &mut self,
        config: &TracesConfig,
        ports: &Ports,
        fleet: &FleetSnapshot,
        now: NanosSinceStart,
    ) {
        let start_ns = since_1970().as_nanos().saturating_sub(u128::from(now.0));
        let maker = SpanMaker { fleet, start_ns };
        let is_on = config.endpoint.is_some();
        if !is_on {
            self.waiting.clear();
            self.waiting_bytes = 0;
        }
        ports.take_traces(|traced| {
            let spans = if is_on { maker.spans(&traced) } else { Vec::new() };
            for span in spans {
                let bytes = self.waiting_bytes.saturating_add(span.len());
                if self.waiting.len() >= TRACE_SPANS_WAITING_MAX || bytes > TRACE_BYTES_WAITING_MAX
                {
                    self.export.count(|figures| figures.full += 1);
                    continue;
                }
                if self.waiting.is_empty() {
                    self.since = now;
                }
                self.waiting_bytes = bytes;
                self.waiting.push_back(span);
            }
        });
    }

    /// The client. After a failed export its files are read again: they may have been mended.
    fn client(&mut self, config: &TracesConfig) -> Result<Client, String> {
        let has_files = config.ca.is_some() || config.headers_file.is_some();
        let is_doubted = has_files && self.export.has_failed.get();
        let is_usable = |made: &&ExportClient| made.config == *config && !is_doubted;
        if let Some(made) = self.client.as_ref().filter(is_usable) {
            return Ok(made.client.clone());
        }
        let client = client(config)?;
        self.client = Some(ExportClient { config: config.clone(), client: client.clone() });
        Ok(client)
    }

    /// The next export; `None` if there is nothing to send, or nowhere.
    fn batch(&mut self, config: &TracesConfig) -> Option<impl Future<Output = ()> + use<>> {
        let url = config.url().filter(|_| !self.waiting.is_empty())?;
        let count = self.waiting.len().min(TRACE_BATCH_SPANS_MAX);
        let spans: Vec<String> = self.waiting.drain(..count).collect();
        let bytes: usize = spans.iter().map(String::len).sum();
        self.waiting_bytes = self.waiting_bytes.saturating_sub(bytes);
        let body = envelope(&config.service, &spans);
        let export = Rc::clone(&self.export);
        let patience = config.timeout;
        let client = self.client(config);
        export.is_sending.set(true);
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        Some(async move {
            let sent = match client {
                Ok(client) => send(&client, &url, body, patience).await,
                Err(fault) => Err(ExportFault::Unreachable(fault)),
            };
            export.note(count, sent, &url);
            export.is_sending.set(false);
        })
    }
}

/// Makes a client of the collector: authorities and header fields come from files.
fn client(config: &TracesConfig) -> Result<Client, String> {
    let mut fields = HeaderMap::new();
    let fields_of_file = config.headers_file.as_deref().map_or(Ok(Vec::new()), read_header_file);
    for field in fields_of_file.map_err(|fault| fault.to_string())? {
        let name = HeaderName::try_from(field.name).map_err(|error| error.to_string())?;
        let mut value = HeaderValue::try_from(field.value).map_err(|error| error.to_string())?;
        value.set_sensitive(true);
        fields.insert(name, value);
    }
    let mut builder = Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(config.timeout)
        .dns_resolver(Arc::new(NamedResolver))
        .default_headers(fields);
    let server = config.server().and_then(Result::ok);
    if let Some(url) = server.filter(|url| url.is_tls) {
        let files = ConnectFiles { ca: config.ca.clone(), certificate: None };
        let connector = Connector::read(&files, &url.host).map_err(|error| error.to_string())?;
        builder = builder.use_preconfigured_tls(connector.config());
    }
    builder.build().map_err(|error| format!("no client: {error}"))
}

/// Why spans are lost.
enum ExportFault {
    /// No answer in time, or no connection.
    Unreachable(String),
    /// A status that is no success.
    Refused(u16),
}

impl ExportState {
    fn count(&self, change: impl FnOnce(&mut SpanFigures)) {
        let mut figures = self.figures.get();
        change(&mut figures);
        self.figures.set(figures);
    }

    /// `sent`: spans that the collector has rejected.
    fn note(&self, count: u64, sent: Result<u64, ExportFault>, url: &str) {
        let fault = match sent {
            Ok(rejected) => {
                let rejected = rejected.min(count);
                self.count(|figures| {
                    figures.exported += count - rejected;
                    figures.refused += rejected;
                });
                if self.has_failed.replace(false) {
                    info!(url, "the collector takes spans again");
                }
                return;
            }
            Err(ExportFault::Unreachable(cause)) => {
                self.count(|figures| figures.unreachable += count);
                cause
            }
            Err(ExportFault::Refused(status)) => {
                self.count(|figures| figures.refused += count);
                format!("it answered {status}")
            }
        };
        if !self.has_failed.replace(true) {
            let help = "correct `traces.endpoint`, or start the collector";
            warn!(url, fault, help, "spans are lost: the collector does not take them");
        }
    }
}

/// Sends the spans. Retries once if the collector names a pause; every other fault loses the spans.
async fn send(
    client: &Client,
    url: &str,
    body: String,
    patience: Duration,
) -> Result<u64, ExportFault> {
    let first = post(client, url, &body, patience).await?;
    let Some(pause) = retry_pause(&first) else { return judged(first).await };
    sleep(pause).await;
    judged(post(client, url, &body, patience).await?).await
}

async fn post(
    client: &Client,
    url: &str,
    body: &str,
    patience: Duration,
) -> Result<Response, ExportFault> {
    let request = client.post(url).header(CONTENT_TYPE, "application/json");
    let sent = request.body(body.to_owned()).timeout(patience).send().await;
    sent.map_err(|error| ExportFault::Unreachable(cause_of(&error)))
}

/// `None`: there is no second try.
fn retry_pause(response: &Response) -> Option<Duration> {
    let may_retry = matches!(response.status().as_u16(), 429 | 502..=504);
    let asked = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
    let asked = asked.map(|text| text.trim().parse().map(Duration::from_secs));
    let pause = match asked {
        None => RETRY_PAUSE,
        Some(Ok(pause)) => pause,
        // A date: the next batch is as good.
        Some(Err(_)) => return None,
    };
    (may_retry && pause <= TRACE_RETRY_AFTER_MAX).then_some(pause)
}

async fn judged(mut response: Response) -> Result<u64, ExportFault> {
    let status = response.status().as_u16();
    if status != 200 {
        return Err(ExportFault::Refused(status));
    }
    let mut body = Vec::new();
    while let Ok(Some(chunk)) = response.chunk().await {
        if body.len() + chunk.len() > ANSWER_BYTES_MAX {
            return Ok(0);
        }
        body.extend_from_slice(&chunk);
    }
    let answer: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
    let rejected = answer.pointer("/partialSuccess/rejectedSpans");
    // A 64-bit number is text in this encoding, but some collectors write a number.
    let count = rejected.and_then(|it| it.as_u64().or_else(|| it.as_str()?.parse().ok()));
    Ok(count.unwrap_or(0))
}
