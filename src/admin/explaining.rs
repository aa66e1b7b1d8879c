//! The thread that explains prompts, so that the control plane goes on meanwhile: what is explained
//! may be as long as a request may be. One question after the other. Limits: `QUESTIONS_MAX`
//! questions wait, further ones are refused.

use super::explain::{ExplainRequest, ExplainSources, Explainer};
use forebay_base::NanosSinceStart;
use forebay_config::Config;
use forebay_fleet::account::ShardCounters;
use forebay_fleet::worker::{FleetSnapshot, LoadBoard, LoadReports};
use forebay_index::IndexReader;
use forebay_prompt::parse::{Reason, Refusal};
use serde_json::Value;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;
use tokio::sync::oneshot;

/// Questions that wait; bodies are as long as the admin API takes them.
const QUESTIONS_MAX: usize = 4;
const COME_BACK_AFTER: Duration = Duration::from_secs(1);
/// Where the thread competes with a shard for a core, the shard wins.
const NICE: i32 = 10;

/// What is known when the question comes.
#[derive(Debug)]
pub struct ExplainFacts {
    /// What was configured, as it runs.
    pub config: Arc<Config>,
    /// The fleet that the shards have.
    pub fleet: Arc<FleetSnapshot>,
    /// What is in flight where.
    pub board: Arc<LoadBoard>,
    /// What engines report of their load.
    pub reports: LoadReports,
    /// The radix index, for reading.
    pub index: IndexReader,
    /// What each shard has counted.
    pub counters: Vec<Arc<ShardCounters>>,
    /// When the question came.
    pub now: NanosSinceStart,
}

/// The way back to who asked.
pub type ExplainAnswer = oneshot::Sender<Result<Value, Refusal>>;
type ExplainQuestion = (ExplainRequest, ExplainFacts, ExplainAnswer);

/// The way to the thread, which ends when this is dropped.
#[derive(Debug)]
pub struct Explaining(SyncSender<ExplainQuestion>);

impl Explaining {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system has no room for a thread.
    pub fn start() -> io::Result<Self> {
        let (questions, asked) = sync_channel(QUESTIONS_MAX);
        std::thread::Builder::new().name("explain".into()).spawn(move || work(&asked))?;
        Ok(Self(questions))
    }

    /// Hands over a question; refuses it where too many wait.
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
    // Not allowed: then they share.
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
        // Who asked may have gone.
        let _ = answer.send(explainer.explain(&asked, &sources));
    }
}
