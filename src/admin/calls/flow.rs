//! Operator calls of the admin API: rejection windows, workers and the configuration. All responses
//! are JSON, refusals included.

use super::add_worker::AddWorkerRequest;
use super::sleep_refusal::SleepRefusal;
use super::windows::WindowRequest;
use super::worker_drain::{NoStreamMove, WorkerDrain};
use crate::access::CallerOrigin;
use crate::question::{Question, Questions, ask, gone, refused};
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde_json::Value;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// A sleep level or a partial wake-up would change what the worker can serve.
pub(crate) const SLEEP_TAKES_NOTHING: &str =
    "sleep and wake_up take no query and no body here: the engine goes by its defaults";
/// Poll interval while a call waits for a worker.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

pub(crate) async fn windows(State(questions): State<Questions>) -> Response {
    ask(&questions, Question::Windows).await.map_or_else(gone, |list| Json(list).into_response())
}

/// `POST /admin/window`; responds like the GET after the change.
pub(crate) async fn set_window(
    State(questions): State<Questions>,
    caller: Option<Extension<CallerOrigin>>,
    body: Bytes,
) -> Response {
    let asked = match WindowRequest::from_body(&body) {
        Ok(asked) => asked,
        Err(fault) => return refused(StatusCode::BAD_REQUEST, &fault),
    };
    let order = asked.clone();
    let answer = ask(&questions, |back| Question::SetWindow(asked, back)).await;
    match answer {
        Some(Ok(list)) => {
            order.log(caller.as_deref().map_or("?", |caller| &caller.name));
            Json(list).into_response()
        }
        Some(Err(unknown)) => refused(StatusCode::NOT_FOUND, &unknown.0),
        None => gone(),
    }
}

pub(crate) async fn reload(State(questions): State<Questions>) -> Response {
    match ask(&questions, Question::Reload).await {
        Some(Ok(done)) => Json(done.shown()).into_response(),
        Some(Err(refused)) => (refused.status(), Json(refused.shown())).into_response(),
        None => gone(),
    }
}

/// Answers `GET /workers/{id}`: a single worker.
pub(crate) async fn worker(
    State(questions): State<Questions>,
    Path(name): Path<String>,
) -> Response {
    let known = ask(&questions, |back| Question::Worker(name.clone(), back)).await;
    one_worker(&name, known)
}

/// `POST /workers/{id}/drain`; responds like the GET of the worker after the change.
pub(crate) async fn drain(
    questions: State<Questions>,
    name: Path<String>,
    body: Bytes,
) -> Response {
    match WorkerDrain::from_body(&body) {
        Ok(order) => set_draining(questions, name, order).await,
        Err(fault) => refused(StatusCode::BAD_REQUEST, &fault),
    }
}

/// `POST /workers/{id}/undrain`; responds like `drain`.
pub(crate) async fn undrain(questions: State<Questions>, name: Path<String>) -> Response {
    set_draining(questions, name, WorkerDrain::Off).await
}

/// Answers `POST /workers`: adds a worker.
pub(crate) async fn add_worker(State(questions): State<Questions>, body: Bytes) -> Response {
    let asked = match AddWorkerRequest::from_body(&body) {
        Ok(asked) => asked,
        Err(fault) => return refused(StatusCode::BAD_REQUEST, &fault),
    };
    let wait = asked.wait;
    match ask(&questions, |back| Question::AddWorker(asked, back)).await {
        Some(Ok(worker)) => {
            if let Some(fault) = not_kept(&questions).await {
                take_back(&questions, &worker).await;
                let error = format!("not added: {fault}; mend that and call again");
                return refused(StatusCode::INSUFFICIENT_STORAGE, &error);
            }
            match wait {
                None => (StatusCode::CREATED, Json(worker)).into_response(),
                Some(wait) => served(&questions, &worker, wait).await,
            }
        }
        Some(Err(reason)) => refused(reason.status(), &reason.message()),
        None => gone(),
    }
}

/// Reason why a restart would lose the change, if it would.
pub(crate) async fn not_kept(questions: &Questions) -> Option<String> {
    let kept = ask(questions, Question::OrdersStored).await;
    kept.unwrap_or_else(|| Err("the router stops".to_owned())).err()
}

/// Removes a worker that a restart would lose. Requests that it has received are served.
pub(crate) async fn take_back(questions: &Questions, worker: &Value) {
    let name = member(worker, "name").to_owned();
    let _ = ask(questions, |back| Question::RemoveWorker(name, back)).await;
}

/// The response to an order that lasts only until a restart.
fn forgotten(fault: &str) -> Response {
    let error = format!(
        "the order holds, and a restart forgets it: {fault}. The router tries on: mend that"
    );
    refused(StatusCode::INSUFFICIENT_STORAGE, &error)
}

/// Responds once the worker serves.
async fn served(questions: &Questions, worker: &Value, wait: Duration) -> Response {
    let name = member(worker, "name");
    match until_up(questions, name, wait).await {
        Some(worker) => (StatusCode::CREATED, Json(worker)).into_response(),
        None => refused(
            StatusCode::GATEWAY_TIMEOUT,
            &format!("{name:?} does not serve yet; it stays added: GET /workers/{name} shows it"),
        ),
    }
}

/// A text member of the worker's JSON.
pub(crate) fn member<'v>(worker: &'v Value, name: &str) -> &'v str {
    worker.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// The worker once it is up; `None` after the wait.
pub(crate) async fn until_up(questions: &Questions, name: &str, wait: Duration) -> Option<Value> {
    let up = async {
        loop {
            let worker = ask(questions, |back| Question::Worker(name.to_owned(), back)).await??;
            if member(&worker, "state") == "up" {
                return Some(worker);
            }
            sleep(LOOK_AGAIN).await;
        }
    };
    timeout(wait, up).await.ok().flatten()
}

/// Answers `DELETE /workers/{id}`: begins the removal.
pub(crate) async fn remove_worker(
    State(questions): State<Questions>,
    Path(name): Path<String>,
) -> Response {
    let known = ask(&questions, |back| Question::RemoveWorker(name.clone(), back)).await;
    let leaves = matches!(known, Some(Some(_)));
    if leaves && let Some(fault) = not_kept(&questions).await {
        return forgotten(&fault);
    }
    let answer = one_worker(&name, known);
    if leaves { (StatusCode::ACCEPTED, answer).into_response() } else { answer }
}

async fn set_draining(
    State(questions): State<Questions>,
    Path(name): Path<String>,
    order: WorkerDrain,
) -> Response {
    let asked = |back| Question::SetDraining(name.clone(), order, back);
    let known = match ask(&questions, asked).await.transpose() {
        Ok(known) => known,
        Err(NoStreamMove) => return refused(StatusCode::CONFLICT, NoStreamMove::MESSAGE),
    };
    let sleeps = |worker: &Value| worker.get("sleep").is_some_and(Value::is_string);
    if let Some(Some(worker)) = &known
        && order != WorkerDrain::Off
        && sleeps(worker)
    {
        let error = "the worker sleeps, or is about to, and takes no such order: wake it up first";
        return refused(StatusCode::CONFLICT, error);
    }
    if matches!(known, Some(Some(_)))
        && let Some(fault) = not_kept(&questions).await
    {
        return forgotten(&fault);
    }
    one_worker(&name, known)
}

/// `POST /workers/{id}/sleep`; responds like the GET of the worker after the change.
pub(crate) async fn sleep_engine(questions: State<Questions>, name: Path<String>) -> Response {
    set_sleeping(questions, name, true).await
}

/// `POST /workers/{id}/wake_up`; responds like `sleep`.
pub(crate) async fn wake_engine(questions: State<Questions>, name: Path<String>) -> Response {
    set_sleeping(questions, name, false).await
}

async fn set_sleeping(
    State(questions): State<Questions>,
    Path(name): Path<String>,
    sleeps: bool,
) -> Response {
    let order = |back| Question::SetSleeping(name.clone(), sleeps, back);
    match ask(&questions, order).await {
        Some(Ok(worker)) => (StatusCode::ACCEPTED, Json(worker)).into_response(),
        Some(Err(SleepRefusal::Unknown)) => one_worker(&name, Some(None)),
        Some(Err(why)) => refused(StatusCode::CONFLICT, why.message()),
        None => gone(),
    }
}

fn one_worker(name: &str, known: Option<Option<Value>>) -> Response {
    match known {
        Some(Some(worker)) => Json(worker).into_response(),
        Some(None) => {
            let error = format!("no worker is called {name:?}: GET /workers lists their names");
            refused(StatusCode::NOT_FOUND, &error)
        }
        None => gone(),
    }
}
