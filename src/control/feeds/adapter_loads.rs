//! The calls by which workers load adapters, beside the loop.

use super::adapters::{AdapterLoad, Adapters};
use forebay_base::WorkerIndex;
use forebay_discovery::WorkerClients;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Of an engine's answer, for the log and for clients.
const ANSWER_BYTES_MAX: usize = 512;

/// What is wanted, and the workers that were asked.
#[derive(Default)]
pub(in crate::control) struct AdapterLoads {
    pub(in crate::control) wanted: Adapters,
    asked: JoinSet<LoadOutcome>,
}

/// What a worker made of a call.
pub(in crate::control) struct LoadOutcome {
    pub(in crate::control) adapter: Arc<str>,
    pub(in crate::control) worker: WorkerIndex,
    pub(in crate::control) said: Result<(), String>,
}

impl AdapterLoads {
    /// Asks a worker, in its turn among all calls of engines.
    pub(in crate::control) fn ask(
        &mut self,
        load: AdapterLoad,
        asked_as: Option<(String, Option<String>)>,
        clients: WorkerClients,
        turns: Rc<Semaphore>,
    ) {
        let AdapterLoad { adapter, worker, target, body } = load;
        self.asked.spawn_local(async move {
            let _turn = turns.acquire().await;
            let said = match asked_as {
                None => Err("it is gone".to_owned()),
                Some((authority, api_key)) => {
                    let body = Some(body.into());
                    let said = clients.hand(&authority, api_key, target, body, ANSWER_BYTES_MAX);
                    said.await.and_then(|(status, text, _)| match status {
                        200..300 => Ok(()),
                        // Both engines say so of one that they have.
                        400 if text.contains("already") && text.contains("loaded") => Ok(()),
                        _ => Err(format!("it answered {status}: {text}")),
                    })
                }
            };
            LoadOutcome { adapter, worker, said }
        });
    }

    /// The next answer, if one has come.
    pub(in crate::control) fn next_answer(&mut self) -> Option<LoadOutcome> {
        self.asked.try_join_next()?.ok()
    }
}
