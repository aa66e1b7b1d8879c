//! Calls of vllm-router that name a worker in the query, for existing scripts. Responses are text,
//! as in vllm-router. Errors are JSON with the same text, as all errors of the admin API.

use super::add_worker::{AddWorkerRequest, WAIT_MAX};
use super::flow::{member, not_kept, take_back, until_up};
use crate::question::{Question, Questions, ask, gone};
use axum::Json;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use forebay_config::{EngineAddress, EngineLikeness, WorkerUrl};
use serde::Deserialize;
use serde_json::{Value, json};

const NO_URL: &str = "Worker URL required. Provide 'url' query parameter";

/// The query of these calls.
#[derive(Debug, Deserialize)]
pub(crate) struct WorkerQuery {
    url: Option<String>,
}

/// `POST /add_worker?url=`; responds once the worker serves.
pub(crate) async fn add(
    State(questions): State<Questions>,
    Query(WorkerQuery { url }): Query<WorkerQuery>,
) -> Response {
    let Some(url) = url else { return faulty(NO_URL.to_owned()) };
    let asked = match AddWorkerRequest::from_url(&url) {
        Ok(asked) => asked,
        Err(fault) => return faulty(fault),
    };
    let name = match ask(&questions, |back| Question::AddWorker(asked, back)).await {
        Some(Ok(worker)) => {
            if let Some(fault) = not_kept(&questions).await {
                take_back(&questions, &worker).await;
                return faulty(format!("Worker {url} is not added: {fault}"));
            }
            member(&worker, "name").to_owned()
        }
        Some(Err(reason)) if reason.status() == StatusCode::CONFLICT => {
            return faulty(format!("Worker {url} already exists"));
        }
        Some(Err(reason)) => return faulty(reason.message()),
        None => return gone(),
    };
    if until_up(&questions, &name, WAIT_MAX).await.is_none() {
        let seconds = WAIT_MAX.as_secs();
        return faulty(format!("Worker {url} does not serve after {seconds} s; it stays added"));
    }
    format!("Successfully added worker: {url}").into_response()
}

/// `POST /remove_worker?url=`; an unknown worker is no error.
pub(crate) async fn remove(
    State(questions): State<Questions>,
    Query(WorkerQuery { url }): Query<WorkerQuery>,
) -> Response {
    let Some(url) = url else { return faulty(NO_URL.to_owned()) };
    let asked = match WorkerUrl::parse(&url) {
        Ok(asked) => asked,
        Err(fault) => return faulty(format!("`url` {fault}: give http://host:port")),
    };
    let Some(list) = ask(&questions, Question::Workers).await else { return gone() };
    let same = |worker: &&Value| is_at(worker, &asked);
    let exact = workers(&list).find(|worker| member(worker, "url") == asked.text());
    if let Some(worker) = exact.or_else(|| workers(&list).find(same)) {
        let name = member(worker, "name").to_owned();
        if ask(&questions, |back| Question::RemoveWorker(name, back)).await.is_none() {
            return gone();
        }
        if let Some(fault) = not_kept(&questions).await {
            return faulty(format!("Worker {url} is removed until a restart: {fault}"));
        }
    }
    format!("Successfully removed worker: {url}").into_response()
}

/// Is the worker at the URL, however its address is spelled? As for the addition of a worker.
fn is_at(worker: &Value, asked: &WorkerUrl) -> bool {
    let Ok(own) = WorkerUrl::parse(member(worker, "url")) else { return false };
    let first_rank = worker.pointer("/ranks/0/address").and_then(Value::as_str);
    let resolved = first_rank.and_then(|address| address.parse().ok());
    let [asked, own] = [asked, &own].map(|url| EngineAddress::of(url, None));
    asked.likeness(&own, [None, resolved]) == EngineLikeness::One
}

/// Answers `GET /list_workers`: URLs of all workers.
pub(crate) async fn list(State(questions): State<Questions>) -> Response {
    let Some(list) = ask(&questions, Question::Workers).await else { return gone() };
    let urls: Vec<&str> = workers(&list).map(|worker| member(worker, "url")).collect();
    Json(json!({ "urls": urls })).into_response()
}

fn workers(list: &Value) -> impl Iterator<Item = &Value> {
    list.get("workers").and_then(Value::as_array).into_iter().flatten()
}

fn faulty(text: String) -> Response {
    (StatusCode::BAD_REQUEST, text).into_response()
}
