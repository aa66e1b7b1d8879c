//! The thread that explains prompts. An explained request may be as large as any request, and must
//! not block the control plane. Explanations run in sequence. A panic ends a single explanation,
//! and not the thread. Limits: `QUESTIONS_MAX` questions wait, further questions are refused.

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
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::TrySendError::{Disconnected, Full};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;
use tokio::sync::oneshot;

/// Questions that wait; each holds a body of at most the admin API's limit.
const QUESTIONS_MAX: usize = 4;
const RETRY_AFTER: Duration = Duration::from_secs(1);
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

impl ExplainFacts {
    fn sources(&self) -> ExplainSources<'_> {
        ExplainSources {
            config: &self.config,
            fleet: &self.fleet,
            board: &self.board,
            reports: &self.reports,
            index: &self.index,
            counters: &self.counters,
            now: self.now,
        }
    }
}

/// Result of an explanation: the explanation as JSON, or the refusal of the request.
type ExplainResult = Result<Value, Refusal>;

/// Channel for the answer to the caller.
pub type ExplainReplySender = oneshot::Sender<ExplainResult>;
type ExplainQuestion<F> = (ExplainRequest, F, ExplainReplySender);

/// Handle of the thread, which ends when the handle is dropped.
#[derive(Debug)]
pub struct ExplainThread(SyncSender<ExplainQuestion<ExplainFacts>>);

impl ExplainThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system has no room for a thread.
    pub fn start() -> io::Result<Self> {
        let (sender, questions) = sync_channel(QUESTIONS_MAX);
        std::thread::Builder::new().name("explain".into()).spawn(move || {
            // The system may forbid this (seccomp). Both threads then get equal shares of the core.
            let _ = rustix::process::nice(NICE);
            work(&questions, || {
                let mut explainer = Explainer::new();
                move |request: &ExplainRequest, facts: &ExplainFacts| {
                    explainer.explain(request, &facts.sources())
                }
            });
        })?;
        Ok(Self(sender))
    }

    /// Queues a question; refuses it if the queue is full.
    pub fn ask(&self, request: ExplainRequest, facts: ExplainFacts, reply: ExplainReplySender) {
        let Err(unsent) = self.0.try_send((request, facts, reply)) else { return };
        let (refusal, reply) = match unsent {
            Full((_, _, reply)) => {
                let refusal = Refusal::new(Reason::RejectedInFlight);
                (refusal.with_retry_after(RETRY_AFTER), reply)
            }
            // A later question would find no thread either.
            Disconnected((_, _, reply)) => (Refusal::new(Reason::Internal), reply),
        };
        let _ = reply.send(Err(refusal));
    }
}

/// Answers questions until the handle is dropped. A panic may leave the working memory of `explain`
/// half written: the next question gets new memory from `new_explain`.
fn work<F, E>(questions: &Receiver<ExplainQuestion<F>>, new_explain: impl Fn() -> E)
where
    E: FnMut(&ExplainRequest, &F) -> ExplainResult,
{
    let mut explain = new_explain();
    while let Ok((request, facts, reply)) = questions.recv() {
        let run = AssertUnwindSafe(|| explain(&request, &facts));
        let explained = catch_unwind(run).unwrap_or_else(|_| {
            tracing::error!("an explanation of a prompt panicked (this is a bug)");
            explain = new_explain();
            Err(Refusal::new(Reason::Internal))
        });
        // The caller may have disconnected.
        let _ = reply.send(explained);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The question after a panic is answered, from fresh working memory.
    #[test]
    fn a_panic_ends_one_explanation() {
        let (sender, questions) = sync_channel(QUESTIONS_MAX);
        let replies: Vec<_> = [false, true, false]
            .into_iter()
            .map(|panics| {
                let (reply, replied) = oneshot::channel();
                let request = ExplainRequest {
                    endpoint: String::new(),
                    body: axum::body::Bytes::new(),
                    leg: None,
                    session: None,
                    with_text: false,
                };
                sender.send((request, panics, reply)).unwrap();
                replied
            })
            .collect();
        drop(sender);
        work(&questions, || {
            let mut count = 0;
            move |_: &ExplainRequest, panics: &bool| {
                count += 1;
                assert!(!panics, "planted");
                Ok(count.into())
            }
        });
        let replies: Vec<_> =
            replies.into_iter().map(|reply| reply.blocking_recv().unwrap()).collect();
        let reasons = replies.iter().map(|reply| reply.as_ref().err().map(Refusal::reason));
        assert!(reasons.eq([None, Some(Reason::Internal), None]), "{replies:?}");
        assert_eq!(replies[2].as_ref().unwrap(), 1, "fresh working memory");
    }
}
