//! The thread that explains prompts. An explained request may be as large as any request, and must
//! not block the control plane. Explanations run one after another. Limits: `QUESTIONS_MAX`
//! questions wait, further ones are refused.

use super::explain::{ExplainRequest, ExplainSources, Explainer};
use forebay_base::NanosSinceStart;
use forebay_board::account::ShardCounters;
use forebay_board::{LoadBoard, LoadReports};
use forebay_config::Config;
use forebay_fleet::worker::FleetSnapshot;
use forebay_index::IndexReader;
use forebay_prompt::parse::{Reason, Refusal};
use serde_json::Value;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;
use tokio::sync::oneshot;

/// Questions that wait; each holds a body of at most the admin API's limit.
const QUESTIONS_MAX: usize = 4;
const COME_BACK_AFTER: Duration = Duration::from_secs(1);
/// When the thread competes with a shard for a core, the shard wins.
const NICE: i32 = 10;

/// Facts gathered when the question arrives.
#[derive(Debug)]
pub struct ExplainFacts {
    pub config: Arc<Config>,
    /// The fleet snapshot of the shards.
    pub fleet: Arc<FleetSnapshot>,
    /// Load of each rank.
    pub board: Arc<LoadBoard>,
    /// Load reports of engines.
    pub reports: LoadReports,
    /// The radix index, read-only.
    pub index: IndexReader,
    /// Counters of each shard.
    pub counters: Vec<Arc<ShardCounters>>,
    /// Arrival time of the question.
    pub now: NanosSinceStart,
}

/// Channel for the answer to the caller.
pub type ExplainAnswer = oneshot::Sender<Result<Value, Refusal>>;
type ExplainQuestion = (ExplainRequest, ExplainFacts, ExplainAnswer);

/// Handle of the thread, which ends when the handle is dropped.
#[derive(Debug)]
pub struct ExplainThread(SyncSender<ExplainQuestion>);

impl ExplainThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system has no room for a thread.
    pub fn start() -> io::Result<Self> {
        let (questions, asked) = sync_channel(QUESTIONS_MAX);
        std::thread::Builder::new().name("explain".into()).spawn(move || work(&asked))?;
        Ok(Self(questions))
    }

    /// Queues a question; refuses it if the queue is full.
    pub fn ask(&self, asked: ExplainRequest, known: ExplainFacts, answer: ExplainAnswer) {
        if let Err(refused) = self.0.try_send((asked, known, answer)) {
            use std::sync::mpsc::TrySendError::{Disconnected, Full};
            let (Full((_, _, answer)) | Disconnected((_, _, answer))) = refused;
            let refusal = Refusal::new(Reason::RejectedInFlight);
            let _ = answer.send(Err(refusal.with_retry_after(COME_BACK_AFTER)));
        }
    }
}

fn work(asked: &Receiver<ExplainQuestion>) {
    // Without the permission both threads share the core.
    let _ = rustix::process::nice(NICE);
    let mut explainer = Explainer::new();
    while let Ok((asked, known, answer)) = asked.recv() {
        let sources = ExplainSources {
            config: &known.config,
            fleet: &known.fleet,
            board: &known.board,
            reports: &known.reports,
            index: &known.index,
            counters: &known.counters,
            now: known.now,
        };
        // The caller may have disconnected.
        let _ = answer.send(explainer.explain(&asked, &sources));
    }
}
