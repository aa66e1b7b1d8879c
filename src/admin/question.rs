//! Questions of the admin API to the control plane's loop.

use super::calls::add_worker::{AddRefusal, AddWorkerRequest};
use super::calls::engine_call::{EngineCall, EngineCallRefusal, EngineCallResult};
use super::calls::reload::{ReloadRefusal, ReloadReport};
use super::calls::sleep_refusal::SleepRefusal;
use super::calls::windows::{UnknownModel, WindowRequest};
use super::calls::worker_drain::{NoStreamMove, WorkerDrain};
use super::explanation::explain::ExplainRequest;
use super::live::LiveViewer;
use super::notes::NotesReader;
use super::readiness::RouterReadiness;
use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use forebay_prompt::parse::Refusal;
use forebay_replicas::{MessageStream, ReplicaId, SubscribeError};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

/// A question to the loop, with the channel for the answer.
#[derive(Debug)]
pub enum Question {
    /// Why the router serves no requests; empty if it does.
    Ready(oneshot::Sender<RouterReadiness>),
    /// All metrics as text.
    Metrics(oneshot::Sender<String>),
    /// The fleet with its ranks as JSON.
    Workers(oneshot::Sender<Value>),
    /// A worker by name; `None` if unknown.
    Worker(String, oneshot::Sender<Option<Value>>),
    /// A worker by name, after the operator's drain order.
    SetDraining(String, WorkerDrain, oneshot::Sender<Result<Option<Value>, NoStreamMove>>),
    /// Sends an engine to sleep, or wakes it; the worker after the order.
    SetSleeping(String, bool, oneshot::Sender<Result<Value, SleepRefusal>>),
    /// Responses of engines to a call; they may take minutes.
    CallEngines(EngineCall, oneshot::Sender<Result<Vec<EngineCallResult>, EngineCallRefusal>>),
    /// Adds a worker; its state after that.
    AddWorker(AddWorkerRequest, oneshot::Sender<Result<Value, AddRefusal>>),
    /// Removes a worker once it is idle; `None` if unknown.
    RemoveWorker(String, oneshot::Sender<Option<Value>>),
    /// Whether earlier changes persist over a restart as configured; else why not.
    OrdersStored(oneshot::Sender<Result<(), String>>),
    /// A viewer of the live page; `None` at the limit.
    Watch(oneshot::Sender<Option<LiveViewer>>),
    /// A reader of request notes; `None` while there is another reader.
    Notes(oneshot::Sender<Option<NotesReader>>),
    /// Other replicas; `None` without replicas.
    Replicas(oneshot::Sender<Option<Value>>),
    /// Messages to other replicas, for the replica that asks.
    ReplicaMessages(Option<ReplicaId>, oneshot::Sender<Result<MessageStream, SubscribeError>>),
    Windows(oneshot::Sender<Value>),
    /// Opens or closes rejection windows; the windows after that.
    SetWindow(WindowRequest, oneshot::Sender<Result<Value, UnknownModel>>),
    /// Reads the configuration again.
    Reload(oneshot::Sender<Result<ReloadReport, ReloadRefusal>>),
    /// Plants a fault in a shard; false if there is no such shard.
    #[cfg(debug_assertions)]
    Plant(usize, forebay_mailbox::PlantedFault, oneshot::Sender<bool>),
    /// Explains the routing of a request.
    Overlap(ExplainRequest, oneshot::Sender<Result<Value, Refusal>>),
}

/// Channel to the loop.
pub type Questions = mpsc::Sender<Question>;

/// Asks the loop; `None` when the loop has ended.
pub(crate) async fn ask<T>(
    questions: &Questions,
    question: impl FnOnce(oneshot::Sender<T>) -> Question,
) -> Option<T> {
    let (back, answer) = oneshot::channel();
    questions.send(question(back)).await.ok()?;
    answer.await.ok()
}

/// The control plane's loop has ended.
pub(crate) fn gone() -> Response {
    refused(StatusCode::SERVICE_UNAVAILABLE, "the router shuts down")
}

/// A refusal in the form that commands recognize as a router's.
pub(crate) fn refused(status: StatusCode, error: &str) -> Response {
    (status, Json(json!({ "error": error }))).into_response()
}
