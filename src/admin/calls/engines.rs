//! Engine calls that the client port refuses, forwarded to all engines or to a single engine. The
//! calls are listed in [`ENGINE_CALLS`](forebay_prompt::parse::ENGINE_CALLS).

use super::engine_call::{
    EngineCall, EngineCallRefusal, EngineCallResult, EngineReply, target_for_all, target_for_one,
};
use super::flow::SLEEP_TAKES_NOTHING;
use super::sleep_refusal::SleepRefusal;
use crate::question::{Question, Questions, ask, gone, refused};
use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use forebay_prompt::parse::is_engine_call;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

/// Calls that only read, so a browser's GET may make them. SGLang lets a GET flush its cache.
const READING_CALLS: [&str; 20] = [
    "docs",
    "get_internal_state",
    "get_load",
    "get_model_info",
    "get_server_info",
    "get_weights_by_name",
    "get_world_size",
    "health",
    "health_generate",
    "is_paused",
    "is_scaling_elastic_ep",
    "is_sleeping",
    "load",
    "loads",
    "metrics",
    "model_info",
    "openapi.json",
    "redoc",
    "server_info",
    "weight_version",
];

/// Answers `/engines/{call}` for all workers.
pub(crate) async fn of_all(
    State(questions): State<Questions>,
    uri: Uri,
    method: Method,
    body: Bytes,
) -> Response {
    let target = uri.path_and_query().map_or("", |whole| whole.as_str());
    let target = target_for_all(target);
    called(&questions, None, target, &method, body).await
}

/// Answers `/workers/{id}/engine/{call}` for a single worker.
pub(crate) async fn of_one(
    State(questions): State<Questions>,
    Path((name, _)): Path<(String, String)>,
    uri: Uri,
    method: Method,
    body: Bytes,
) -> Response {
    let target = uri.path_and_query().map_or("", |whole| whole.as_str());
    let target = target_for_one(target);
    called(&questions, Some(name), target, &method, body).await
}

async fn called(
    questions: &Questions,
    worker: Option<String>,
    target: &str,
    method: &Method,
    body: Bytes,
) -> Response {
    let path = target.split('?').next().unwrap_or_default();
    if !is_engine_call(path) {
        let error = format!("{path:?} is no call of an engine: the page API lists those");
        return refused(StatusCode::NOT_FOUND, &error);
    }
    let last = path.rsplit('/').next().unwrap_or_default();
    let post = (method == Method::POST).then_some(body);
    if post.is_none() && !READING_CALLS.contains(&last) {
        let error = format!("{path:?} may change an engine: POST it");
        let allowed = [(header::ALLOW, "POST")];
        return (allowed, refused(StatusCode::METHOD_NOT_ALLOWED, &error)).into_response();
    }
    let is_order = matches!(last, "sleep" | "wake_up");
    if is_order && (target.contains('?') || post.as_ref().is_some_and(|body| !body.is_empty())) {
        return refused(StatusCode::BAD_REQUEST, SLEEP_TAKES_NOTHING);
    }
    let answers = match last {
        "sleep" => sent(questions, worker, true).await,
        "wake_up" => sent(questions, worker, false).await,
        _ => {
            let call = EngineCall { worker, post, target: format!("/{target}") };
            ask(questions, |back| Question::CallEngines(call, back)).await
        }
    };
    match answers {
        Some(Ok(answers)) => shown(&answers),
        Some(Err(EngineCallRefusal::NoWorker)) => {
            refused(StatusCode::NOT_FOUND, "no such worker: GET /workers lists their names")
        }
        Some(Err(EngineCallRefusal::Busy)) => {
            let error = "too many calls of engines are under way: call again when they have ended";
            refused(StatusCode::SERVICE_UNAVAILABLE, error)
        }
        None => gone(),
    }
}

/// Sends workers to sleep, or wakes them. The router must know of the sleep: requests sent to a
/// sleeping engine are lost.
async fn sent(
    questions: &Questions,
    worker: Option<String>,
    sleeps: bool,
) -> Option<Result<Vec<EngineCallResult>, EngineCallRefusal>> {
    let is_one = worker.is_some();
    let names = match worker {
        Some(name) => vec![name],
        None => {
            let list = ask(questions, Question::Workers).await?;
            let all = list.get("workers").and_then(Value::as_array).into_iter().flatten();
            all.filter_map(|worker| Some(worker.get("name")?.as_str()?.to_owned())).collect()
        }
    };
    if names.is_empty() {
        return Some(Err(EngineCallRefusal::NoWorker));
    }
    let mut answers = Vec::new();
    for name in names {
        let order = |back| Question::SetSleeping(name.clone(), sleeps, back);
        let reply = match ask(questions, order).await? {
            Ok(worker) => {
                let status = StatusCode::ACCEPTED.as_u16();
                Ok(EngineReply { status, body: worker.to_string(), is_cut: false })
            }
            Err(SleepRefusal::Unknown) if is_one => {
                return Some(Err(EngineCallRefusal::NoWorker));
            }
            Err(why) => Err(why.message().to_owned()),
        };
        answers.push(EngineCallResult { worker: name.into(), reply });
    }
    Some(Ok(answers))
}

/// An engine's response: JSON if it parses as JSON, else text.
#[derive(Serialize)]
#[serde(untagged)]
enum ShownAnswer<'a> {
    /// Validated, but not parsed into a tree: it may be large.
    Json(&'a RawValue),
    Text(&'a str),
}

#[derive(Serialize)]
struct ShownCall<'a> {
    worker: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    answer: Option<ShownAnswer<'a>>,
    #[serde(skip_serializing_if = "is_false")]
    cut: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

impl<'a> ShownCall<'a> {
    fn of(answer: &'a EngineCallResult) -> Self {
        let worker = &*answer.worker;
        match &answer.reply {
            Err(fault) => {
                Self { worker, status: None, answer: None, cut: false, error: Some(fault) }
            }
            Ok(EngineReply { status, body, is_cut }) => {
                let json = if *is_cut { None } else { serde_json::from_str(body).ok() };
                let answer = json.map_or(ShownAnswer::Text(body), ShownAnswer::Json);
                let status = Some(*status);
                let answer = Some(answer);
                Self { worker, status, answer, cut: *is_cut, error: None }
            }
        }
    }
}

/// 200 if each engine answered 2xx.
fn shown(answers: &[EngineCallResult]) -> Response {
    let is_done = |answer: &EngineCallResult| {
        answer.reply.as_ref().is_ok_and(|reply| (200..300).contains(&reply.status))
    };
    let status = if answers.iter().all(is_done) { StatusCode::OK } else { StatusCode::BAD_GATEWAY };
    let workers: Vec<ShownCall<'_>> = answers.iter().map(ShownCall::of).collect();
    (status, Json(ShownCalls { workers })).into_response()
}

#[derive(Serialize)]
struct ShownCalls<'a> {
    workers: Vec<ShownCall<'a>>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_prompt::parse::ENGINE_CALLS;
    use serde_json::json;

    #[test]
    fn calls_that_only_read_are_calls_of_engines() {
        for call in READING_CALLS {
            assert!(ENGINE_CALLS.contains(&call), "{call}");
        }
    }

    #[test]
    fn an_answer_is_shown_as_what_it_is() {
        let shown = |status, body: &str, is_cut| {
            let reply = Ok(EngineReply { status, body: body.to_owned(), is_cut });
            let answer = EngineCallResult { worker: "a".into(), reply };
            serde_json::to_value(ShownCall::of(&answer)).unwrap()
        };
        let json = shown(200, r#"{"ok":true}"#, false);
        assert_eq!(json, json!({ "worker": "a", "status": 200, "answer": { "ok": true } }));
        let text = shown(404, "Not Found", false);
        assert_eq!(text, json!({ "worker": "a", "status": 404, "answer": "Not Found" }));
        let cut = shown(200, "1", true);
        assert_eq!(cut, json!({ "worker": "a", "status": 200, "answer": "1", "cut": true }));
    }
}
