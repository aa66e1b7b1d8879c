//! The calls of the admin API. Each is a question to the control plane's loop, which owns the
//! answers.

use super::access::{self, Access};
use super::calls::drop_in;
use super::calls::engines;
use super::calls::flow;
use super::calls::replicas;
use super::calls::{add_worker, windows, worker_drain};
use super::client_port::ClientCallers;
use super::explanation::explain::ExplainRequest;
use super::form::{self, AdminRoute, BodyRule, QueryRule};
use super::page;
use super::port::{self, AdminListener};
use super::question::{self, Question, Questions, ask, gone};
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, Query, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{from_fn_with_state, map_response};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, delete, get, post};
use axum::{Json, Router};
use forebay_fleet::worker::Leg;
use forebay_http1::header::{ADMIN, REASON};
use forebay_prompt::parse::{ApiShape, Refusal};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Value of the field [`ADMIN`].
const ADMIN_VERSION: &str = "1";

const HOW_TO_ASK: &str = "\
GET with ?model=NAME&prompt=TEXT, or ?model=NAME&messages=JSON for a chat, shows where such a request would go and why;
&cache_salt=TEXT salts it, &endpoint=PATH names another path, &text=true adds the rendered prompt,
&session=NAME is what a header field with the session would say.
POST takes a request's whole body; ?endpoint= names its path (/v1/chat/completions if left out).
";

/// Every call of the admin API.
pub fn admin_routes() -> impl Iterator<Item = AdminRoute> {
    routes().map(|(route, _)| route)
}

type ServedRoute = (AdminRoute, MethodRouter<Questions>);

fn routes() -> impl Iterator<Item = ServedRoute> {
    of_router().into_iter().chain(of_workers())
}

const fn route(method: &'static str, path: &'static str, meaning: &'static str) -> AdminRoute {
    let parameters = QueryRule::Named(&[]);
    AdminRoute { method, path, meaning, parameters, body: BodyRule::Nothing }
}

const fn reading(path: &'static str, meaning: &'static str) -> AdminRoute {
    route("GET", path, meaning)
}

const fn posting(path: &'static str, meaning: &'static str) -> AdminRoute {
    route("POST", path, meaning)
}

fn of_router() -> [ServedRoute; 14] {
    [
        (reading("/", "the [live page](../operate/live-page.md)").with_any(), get(page::index)),
        (reading("/page/{file}", "a file of the live page").with_any(), get(page::file)),
        (
            reading("/live", "what the live page shows: a stream of events").with_any(),
            get(page::stream),
        ),
        (
            reading("/healthz", "200 while the process is alive").with_any(),
            get(|| async { "ok\n" }),
        ),
        (
            reading(
                "/readyz",
                "200 when the router can serve requests, else 503; with `reasons` and `concerns`",
            )
            .with_any(),
            get(readyz),
        ),
        (reading("/metrics", "[metrics](metrics.md)").with_any(), get(metrics)),
        (
            reading("/replicas", "the other routers; 404 for a router that is alone"),
            get(replicas::list),
        ),
        (
            reading(
                "/replicas/messages",
                "messages for [peers](../concepts/replicas.md), as lines",
            )
            .with_any(),
            get(replicas::messages),
        ),
        (reading("/admin/window", "each pool with its rejection window"), get(flow::windows)),
        (
            posting("/admin/window", "opens or closes windows")
                .of(BodyRule::Object(windows::HOW_TO_ASK)),
            post(flow::set_window),
        ),
        (
            posting(
                "/admin/reload",
                "reads the configuration again, see [Reload](../operate/reload.md)",
            ),
            post(flow::reload),
        ),
        (
            reading("/debug/overlap", "explains a prompt").with(&PROMPT_PARAMETERS),
            get(overlap_of_prompt),
        ),
        (
            posting("/debug/overlap", "explains a request")
                .with(&EXPLAIN_PARAMETERS)
                .of(BodyRule::Any),
            post(overlap),
        ),
        (
            reading("/debug/requests", "notes of requests, for `forebay record --router`"),
            get(notes),
        ),
    ]
}

fn of_workers() -> [ServedRoute; 15] {
    [
        (reading("/workers", "the fleet as the router sees it"), get(workers)),
        (
            posting("/workers", "adds a worker, see [Workers](../operate/workers.md)")
                .of(BodyRule::Object(add_worker::HOW_TO_ASK)),
            post(flow::add_worker),
        ),
        (
            route("DELETE", "/workers/{id}", "removes a worker once it is idle"),
            delete(flow::remove_worker),
        ),
        (reading("/workers/{id}", "one worker of it, by name; else 404"), get(flow::worker)),
        (
            posting(
                "/workers/{id}/drain",
                "gets nothing new, and may move streams, see [Workers](../operate/workers.md)",
            )
            .of(BodyRule::Object(worker_drain::HOW_TO_ASK)),
            post(flow::drain),
        ),
        (posting("/workers/{id}/undrain", "the worker takes requests again"), post(flow::undrain)),
        (
            posting(
                "/workers/{id}/sleep",
                "the engine sleeps once it is idle, see [Workers](../operate/workers.md#sleep)",
            ),
            post(flow::sleep_engine),
        ),
        (posting("/workers/{id}/wake_up", "the engine wakes up"), post(flow::wake_engine)),
        (
            posting(
                "/engines/{*call}",
                "each worker's answer to a call, see [Calls of engines](api.md#calls-of-engines)",
            )
            .with_any()
            .of(BodyRule::Any),
            post(engines::of_all),
        ),
        (
            reading("/engines/{*call}", "the same for calls that only read").with_any(),
            get(engines::of_all),
        ),
        (
            posting("/workers/{id}/engine/{*call}", "the same call to one worker")
                .with_any()
                .of(BodyRule::Any),
            post(engines::of_one),
        ),
        (
            reading("/workers/{id}/engine/{*call}", "the same for calls that only read").with_any(),
            get(engines::of_one),
        ),
        (
            posting("/add_worker?url=", "as vllm-router: adds a worker, answers once it serves")
                .with(&["url"]),
            post(drop_in::add),
        ),
        (
            posting("/remove_worker?url=", "as vllm-router: removes a worker").with(&["url"]),
            post(drop_in::remove),
        ),
        (reading("/list_workers", "as vllm-router: URLs of the workers"), get(drop_in::list)),
    ]
}

/// Serves until the task is dropped.
pub async fn serve(
    listener: AdminListener,
    callers: Option<ClientCallers>,
    questions: Questions,
    access: Arc<Access>,
) {
    let router = router(questions, Arc::clone(&access));
    let by_clients = callers.map(|callers| (callers, access));
    port::serve(listener, by_clients, router).await;
}

pub(crate) fn router(questions: Questions, access: Arc<Access>) -> Router {
    let router = Router::new();
    #[cfg(debug_assertions)]
    let router = router.route("/debug/plant", post(plant));
    let paths: BTreeSet<&str> = admin_routes().map(|route| route.path()).collect();
    let router = paths.iter().fold(router, |router, path| router.route(path, methods_of(path)));
    let mut paths: Vec<&str> = admin_routes().map(|route| route.path).collect();
    paths.dedup();
    let paths = format!("no such call: try {}", paths.join(", "));
    router
        .layer(DefaultBodyLimit::disable())
        .fallback(|| async { (StatusCode::NOT_FOUND, paths) })
        .layer(from_fn_with_state(access, access::check))
        .layer(map_response(form::in_form))
        .layer(map_response(async |mut answer: Response| {
            answer.headers_mut().insert(ADMIN, HeaderValue::from_static(ADMIN_VERSION));
            answer
        }))
        .with_state(questions)
}

/// The calls of a path, each behind the check of what it takes.
fn methods_of(path: &'static str) -> MethodRouter<Questions> {
    let here = || routes().filter(|(route, _)| route.path() == path);
    let methods: Vec<&str> = here().map(|(route, _)| route.method).collect();
    let calls = here().fold(MethodRouter::new(), |calls, (route, handler)| {
        calls.merge(handler.route_layer(from_fn_with_state(route, form::check)))
    });
    calls.fallback(async move || form::wrong_method(path, &methods))
}

async fn readyz(State(questions): State<Questions>) -> Response {
    let Some(readiness) = ask(&questions, Question::Ready).await else { return gone() };
    let is_ready = readiness.reasons.is_empty();
    let status = if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(readiness.shown())).into_response()
}

async fn metrics(State(questions): State<Questions>) -> Response {
    let Some(text) = ask(&questions, Question::Metrics).await else { return gone() };
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

async fn workers(State(questions): State<Questions>) -> Response {
    let Some(list) = ask(&questions, Question::Workers).await else { return gone() };
    Json(list).into_response()
}

/// A fault for a test: `?shard=0` panics, `?shard=0&hang_ms=2000` hangs.
#[cfg(debug_assertions)]
#[derive(Deserialize)]
struct Plant {
    shard: usize,
    hang_ms: Option<u64>,
}

#[cfg(debug_assertions)]
async fn plant(State(questions): State<Questions>, Query(plant): Query<Plant>) -> StatusCode {
    use forebay_mailbox::PlantedFault;
    let hang = |ms| PlantedFault::Hang(std::time::Duration::from_millis(ms));
    let fault = plant.hang_ms.map_or(PlantedFault::Panic, hang);
    match ask(&questions, |back| Question::Plant(plant.shard, fault, back)).await {
        Some(true) => StatusCode::OK,
        _ => StatusCode::NOT_FOUND,
    }
}

/// Streams request notes until the reader disconnects.
async fn notes(State(questions): State<Questions>) -> Response {
    match ask(&questions, Question::Notes).await {
        Some(Some(reader)) => {
            let kind = [(header::CONTENT_TYPE, "application/octet-stream")];
            (kind, Body::new(reader)).into_response()
        }
        Some(None) => {
            let busy = "requests are being recorded already";
            question::refused(StatusCode::SERVICE_UNAVAILABLE, busy)
        }
        None => gone(),
    }
}

/// Names of the fields of [`Explain`].
const EXPLAIN_PARAMETERS: [&str; 4] = ["endpoint", "leg", "session", "text"];

#[derive(Deserialize)]
struct Explain {
    #[serde(default = "chat_completions")]
    endpoint: String,
    leg: Option<AskedLeg>,
    session: Option<String>,
    #[serde(default)]
    text: bool,
}

/// The requested leg; without it the route decides.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum AskedLeg {
    Whole,
    Prefill,
    Decode,
}

impl From<AskedLeg> for Leg {
    fn from(leg: AskedLeg) -> Self {
        match leg {
            AskedLeg::Whole => Self::Whole,
            AskedLeg::Prefill => Self::Prefill,
            AskedLeg::Decode => Self::Decode,
        }
    }
}

fn chat_completions() -> String {
    "/v1/chat/completions".to_owned()
}

async fn overlap(
    State(questions): State<Questions>,
    Query(explain): Query<Explain>,
    body: Bytes,
) -> Response {
    let Explain { endpoint, leg, session, text } = explain;
    let leg = leg.map(Leg::from);
    let asked = ExplainRequest { endpoint, body, leg, session, with_text: text };
    explained(&questions, asked).await
}

async fn explained(questions: &Questions, asked: ExplainRequest) -> Response {
    let answer = ask(questions, |back| Question::Overlap(asked, back)).await;
    match answer {
        Some(Ok(explained)) => Json(explained).into_response(),
        Some(Err(refusal)) => refused(&refusal),
        None => gone(),
    }
}

/// Refuses as the client port would.
fn refused(refusal: &Refusal) -> Response {
    let mut body = Vec::new();
    refusal.encode_body(ApiShape::OpenAi, &mut body);
    let status =
        StatusCode::from_u16(refusal.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let reason = refusal.reason().as_str();
    let fields = [(header::CONTENT_TYPE.as_str(), "application/json"), (REASON, reason)];
    (status, fields, body).into_response()
}

/// Names of the fields of [`ExplainPrompt`].
const PROMPT_PARAMETERS: [&str; 8] =
    ["model", "prompt", "messages", "cache_salt", "endpoint", "leg", "session", "text"];

/// A prompt in the query, for calls by hand.
#[derive(Deserialize)]
struct ExplainPrompt {
    model: Option<String>,
    prompt: Option<String>,
    /// A chat instead, as JSON.
    messages: Option<String>,
    cache_salt: Option<String>,
    endpoint: Option<String>,
    leg: Option<AskedLeg>,
    session: Option<String>,
    #[serde(default)]
    text: bool,
}

impl ExplainPrompt {
    /// The question that a body with the same fields would be; `None` unless there is exactly one
    /// prompt.
    fn into_asked(self) -> Option<ExplainRequest> {
        let (key, value, path) = match (self.prompt, self.messages) {
            (Some(prompt), None) => ("prompt", Value::String(prompt), "/v1/completions"),
            (None, Some(messages)) => {
                ("messages", serde_json::from_str(&messages).ok()?, "/v1/chat/completions")
            }
            _ => return None,
        };
        let mut body = serde_json::Map::new();
        body.insert(key.to_owned(), value);
        let named = [("model", self.model), ("cache_salt", self.cache_salt)];
        for (key, text) in named {
            body.extend(text.map(|text| (key.to_owned(), Value::String(text))));
        }
        let endpoint = self.endpoint.unwrap_or_else(|| path.to_owned());
        let body = Bytes::from(Value::Object(body).to_string());
        let leg = self.leg.map(Leg::from);
        let session = self.session;
        Some(ExplainRequest { endpoint, body, leg, session, with_text: self.text })
    }
}

async fn overlap_of_prompt(
    State(questions): State<Questions>,
    Query(prompt): Query<ExplainPrompt>,
) -> Response {
    match prompt.into_asked() {
        Some(asked) => explained(&questions, asked).await,
        None => (StatusCode::BAD_REQUEST, HOW_TO_ASK).into_response(),
    }
}
