//! Calls of engines that the client port does not take, handed to the engines themselves: to all of
//! them, or to one. Which calls: [`ENGINE_CALLS`](forebay_prompt::parse::ENGINE_CALLS).

use super::engine_call::{CallAnswer, EngineCall, EngineCallRefused, EngineReply, TO_ALL, TO_ONE};
use super::flow::refused;
use super::question::{Question, Questions, ask, gone};
use super::sleep_refused::SleepRefused;
use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use forebay_prompt::parse::is_engine_call;
use serde_json::{Value, json};

/// Calls that only read, so that a browser's GET may make them. SGLang lets a GET flush its cache.
const READING_CALLS: [&str; 17] = [
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
    let target = target.strip_prefix(TO_ALL).unwrap_or_default();
    called(&questions, None, target, &method, body).await
}

/// Answers `/workers/{id}/engine/{call}` for one worker.
pub(crate) async fn of_one(
    State(questions): State<Questions>,
    Path((name, _)): Path<(String, String)>,
    uri: Uri,
    method: Method,
    body: Bytes,
) -> Response {
    let target = uri.path_and_query().map_or("", |whole| whole.as_str());
    let target = target.split_once(TO_ONE).map_or("", |(_, target)| target);
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
        return refused(StatusCode::METHOD_NOT_ALLOWED, &error);
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
        Some(Err(EngineCallRefused::NoWorker)) => {
            refused(StatusCode::NOT_FOUND, "no such worker: GET /workers lists their names")
        }
        Some(Err(EngineCallRefused::Busy)) => {
            let error = "too many calls of engines are under way: call again when they have ended";
            refused(StatusCode::SERVICE_UNAVAILABLE, error)
        }
        None => gone(),
    }
}

/// Sends workers to sleep, or wakes them: an engine that the router does not know to sleep would
/// lose requests.
async fn sent(
    questions: &Questions,
    worker: Option<String>,
    sleeps: bool,
) -> Option<Result<Vec<CallAnswer>, EngineCallRefused>> {
    let names = match worker {
        Some(name) => vec![name],
        None => {
            let list = ask(questions, Question::Workers).await?;
            let all = list.get("workers").and_then(Value::as_array).into_iter().flatten();
            all.filter_map(|worker| Some(worker.get("name")?.as_str()?.to_owned())).collect()
        }
    };
    if names.is_empty() {
        return Some(Err(EngineCallRefused::NoWorker));
    }
    let mut answers = Vec::new();
    for name in names {
        let order = |back| Question::SetSleeping(name.clone(), sleeps, back);
        let said = match ask(questions, order).await? {
            Ok(worker) => {
                let status = StatusCode::ACCEPTED.as_u16();
                Ok(EngineReply { status, body: worker.to_string(), is_cut: false })
            }
            Err(SleepRefused::Unknown) => return Some(Err(EngineCallRefused::NoWorker)),
            Err(why) => Err(why.message().to_owned()),
        };
        answers.push(CallAnswer { worker: name.into(), said });
    }
    Some(Ok(answers))
}

/// 200 if each engine did what it was told.
fn shown(answers: &[CallAnswer]) -> Response {
    let is_done = |answer: &CallAnswer| {
        answer.said.as_ref().is_ok_and(|reply| (200..300).contains(&reply.status))
    };
    let all_done = answers.iter().all(is_done);
    let list: Vec<Value> = answers.iter().map(one_shown).collect();
    let status = if all_done { StatusCode::OK } else { StatusCode::BAD_GATEWAY };
    (status, Json(json!({ "workers": list }))).into_response()
}

/// The answer stands there as JSON where it is JSON, else as text.
fn one_shown(answer: &CallAnswer) -> Value {
    let name = &*answer.worker;
    match &answer.said {
        Err(fault) => json!({ "worker": name, "error": fault }),
        Ok(EngineReply { status, body, is_cut: true }) => {
            json!({ "worker": name, "status": status, "answer": body, "cut": true })
        }
        Ok(EngineReply { status, body, .. }) => {
            let body = serde_json::from_str(body).unwrap_or_else(|_| Value::from(body.as_str()));
            json!({ "worker": name, "status": status, "answer": body })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_prompt::parse::ENGINE_CALLS;

    #[test]
    fn calls_that_only_read_are_calls_of_engines() {
        for call in READING_CALLS {
            assert!(ENGINE_CALLS.contains(&call), "{call}");
        }
    }

    #[test]
    fn an_answer_is_shown_as_what_it_is() {
        let shown = |status, body: &str, is_cut| {
            let said = Ok(EngineReply { status, body: body.to_owned(), is_cut });
            one_shown(&CallAnswer { worker: "a".into(), said })
        };
        let json = shown(200, r#"{"ok":true}"#, false);
        assert_eq!(json, json!({ "worker": "a", "status": 200, "answer": { "ok": true } }));
        let text = shown(404, "Not Found", false);
        assert_eq!(text, json!({ "worker": "a", "status": 404, "answer": "Not Found" }));
        let cut = shown(200, "1", true);
        assert_eq!(cut, json!({ "worker": "a", "status": 200, "answer": "1", "cut": true }));
    }
}
