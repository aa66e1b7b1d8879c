//! What the admin API asks the control plane's loop, with the way back.

use super::adding::{AddRefused, AddWorkerRequest};
use super::draining::{StreamsStay, WorkerDrain};
use super::engine_call::{CallAnswer, EngineCall, EngineCallRefused};
use super::explain::ExplainRequest;
use super::live::LiveViewer;
use super::notes::NotesReader;
use super::reload::{ReloadRefused, Reloaded};
use super::sleep_refused::SleepRefused;
use super::windows::{UnknownModel, WindowRequest};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use forebay_prompt::parse::Refusal;
use forebay_replicas::{MessageStream, ReplicaId, SubscribeRefused};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

/// A question to the loop, with the way back.
#[derive(Debug)]
pub enum Question {
    /// Why no requests can be served; empty when they can.
    Ready(oneshot::Sender<Vec<String>>),
    /// All metrics as text.
    Metrics(oneshot::Sender<String>),
    /// The fleet with its ranks, as JSON.
    Workers(oneshot::Sender<Value>),
    /// One worker of it; `None` for a name that none has.
    Worker(String, oneshot::Sender<Option<Value>>),
    /// The same, after the operator's word whether it drains.
    SetDraining(String, WorkerDrain, oneshot::Sender<Result<Option<Value>, StreamsStay>>),
    /// Its engine is to sleep, or to wake up; the worker as it is then.
    SetSleeping(String, bool, oneshot::Sender<Result<Value, SleepRefused>>),
    /// What engines answer to a call; it may take minutes.
    CallEngines(EngineCall, oneshot::Sender<Result<Vec<CallAnswer>, EngineCallRefused>>),
    /// A worker more; the worker as it is then.
    AddWorker(AddWorkerRequest, oneshot::Sender<Result<Value, AddRefused>>),
    /// One less, once it is idle; `None` for a name that none has.
    RemoveWorker(String, oneshot::Sender<Option<Value>>),
    /// Whether what was changed before outlives the process as configured; else why it does not.
    Kept(oneshot::Sender<Result<(), String>>),
    /// A viewer of the live page; `None` where there are too many.
    Watch(oneshot::Sender<Option<LiveViewer>>),
    /// A reader of request notes; `None` while there is another one.
    Notes(oneshot::Sender<Option<NotesReader>>),
    /// Other replicas; `None` for a router that is alone.
    Replicas(oneshot::Sender<Option<Value>>),
    /// Messages to other replicas, for the replica that asks.
    ReplicaMessages(Option<ReplicaId>, oneshot::Sender<Result<MessageStream, SubscribeRefused>>),
    /// The rejection windows.
    Windows(oneshot::Sender<Value>),
    /// The same, opened or closed before.
    SetWindow(WindowRequest, oneshot::Sender<Result<Value, UnknownModel>>),
    /// Read the configuration again.
    Reload(oneshot::Sender<Result<Reloaded, ReloadRefused>>),
    /// Tells a shard to do wrong; whether it was told.
    #[cfg(debug_assertions)]
    Plant(usize, forebay_fleet::mailbox::PlantedFault, oneshot::Sender<bool>),
    /// Where a request would go and why.
    Overlap(ExplainRequest, oneshot::Sender<Result<Value, Refusal>>),
}

/// The way to the loop.
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

pub(crate) fn gone() -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, "shutting down\n").into_response()
}
